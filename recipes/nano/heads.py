"""Train the bundled heads: `python recipes/nano/heads.py [KIND ...] [--work DIR]`.

The target continues what people type (heads and openings of functions, files and articles, none of
them held out), and each head learns its texts. Each training goes on where it was stopped.
"""

import argparse
import ast
import json
import random
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from nano import functions, news, stdlib
from spsbench.tasks.articles import layout

COUNT = 480  # prompts of each kind
WORDS = (1, 8)  # of an article's opening
LINES = (1, 4)  # of a file's opening
COMMON = "--temperature 1 --batch-tokens 1024 --micro-tokens 512 --held-out 32 --patience 0"
KINDS = {
    "eagle3": "--depth 4 --draft-vocab 2048 --rate 4e-3 --steps 900",
    "medusa": "--depth 4 --draft-vocab 1536 --rate 3e-3 --steps 600",
    "mlp": "--depth 4 --inner 160 --rate 3e-3 --steps 600",
}


def prompts() -> Iterator[str]:
    """Return what people type, in a shuffled order of seed 0."""
    rng = random.Random("heads/0")
    made = [item.prompt for item in islice(functions.items(1, "train"), COUNT)]
    items = list(islice(news.items(1, "train"), 2 * COUNT))
    made += [layout([], item.document) for item in items[:COUNT]]
    made += [" ".join(item.document.split()[: rng.randint(*WORDS)]) for item in items[COUNT:]]
    modules = [module.text for module in stdlib.load(pinned=False) if module.split == "train"]
    made += ["\n".join(text.splitlines()[: rng.randint(*LINES)]) for text in modules][:COUNT]
    heads = sorted({head for text in modules for head in _heads(text)})
    made += rng.sample(heads, 2 * COUNT)
    rng.shuffle(made)
    yield from (text for text in dict.fromkeys(made) if text.strip())


def _heads(text: str) -> Iterator[str]:
    """Yield the first line of each function and class, as it is typed."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            line = lines[node.lineno - 1].strip()
            if line.endswith(":"):
                yield line


def main() -> None:
    """Write the prompts, then train."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("kinds", nargs="*", help=f"of {', '.join(KINDS)}; none: all, in order")
    options.add_argument("--work", type=Path, default=Path("work/nano-heads"))
    flags = options.parse_args()
    flags.work.mkdir(parents=True, exist_ok=True)
    file = flags.work / "prompts.jsonl"
    asked = [{"id": str(n), "prompt": text} for n, text in enumerate(prompts())]
    file.write_text("".join(json.dumps(each) + "\n" for each in asked))
    own = f"--prompts {file} --count {len(asked)} --tokens 96 --prompt-tokens 224 --together 128"
    for kind in flags.kinds or KINDS:
        first = flags.work / next(iter(KINDS)) / "texts.jsonl"
        texts = f"--texts {first}" if first.exists() and first.parent.name != kind else own
        command = shlex.split(
            f"sps train head --kind {kind} --target nano {texts} {KINDS[kind]} {COMMON} --worth 0 "
            f"--cost-seconds 0 --out {flags.work / kind} --resume"
        )
        print(shlex.join(command), flush=True)
        subprocess.run([sys.executable, "-m", "spsbench", *command[1:]], check=True)


if __name__ == "__main__":
    main()
