"""Drafters for SmolLM2-135M-Instruct: prompts, texts of people, and the commands of `sps train`.

    .venv/bin/sps models fetch smollm2
    .venv/bin/python benchmarks/smollm2.py                # all: an hour of one core
    .venv/bin/python benchmarks/smollm2.py --print        # the commands alone
    .venv/bin/python benchmarks/smollm2.py --times 4      # with four times the minutes to learn
    .venv/bin/python benchmarks/smollm2.py draft eagle3   # some of them
    .venv/bin/python benchmarks/smollm2.py more           # the bundled head learns on
    .venv/bin/python benchmarks/smollm2.py --write more   # from new texts: 50 minutes to write them
    pip download --no-deps gensim==4.4.0
    .venv/bin/python benchmarks/smollm2.py --wheel gensim-4.4.0-*.whl written articles

Each goes on where it was stopped. They learn from the target's texts that are kept beside this file
(5,000 prompts, 520,350 tokens at temperature 0.8), or with --write from new ones. Prompts are made
from what every Python has, and are none of a benchmark's (`sps train` compares them): functions to
complete, generated ones and those of the standard library; paragraphs of the language's reference
and generated news to sum up; functions and paragraphs to repeat or to edit. With them go questions
that the target asks itself. Modules held out (`recipes/nano/stdlib.py`) are not used:
`benchmarks/runs.py` copies from them.

`written` lets the target sum up articles as long as news has them (`corpora.articles`, from a wheel
that nothing else needs), and `articles` teaches the bundled head on, by these texts and some of
before. Neither the articles nor what the target wrote about them is kept in this repository.
"""

import argparse
import ast
import gzip
import json
import random
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file, save_file

from corpora import articles, functions, news, stdlib
from spsbench.extensions.training.texts import read_texts, split
from spsbench.tasks.humaneval import QUESTION
from spsbench.tasks.xsum import QUESTION as SUMMARY

WEIGHTS = "model.safetensors"
TEXTS = Path(__file__).with_name("smollm2_texts.jsonl.gz")
SEED = 16
WORDS = (60, 130)  # of a paragraph
LINES = (3, 14)  # of a function that is repeated
COUNTS = {"generated": 440, "library": 760, "reference": 200, "news": 140, "copies": 440}
FUNCTIONS = 1400  # of people's, with their bodies
QUESTIONS = 260  # that the target writes itself
ARTICLES = 1362  # that the wheel holds
EARLIER, THEIRS = 700, 500  # texts of before, and of people, that are learned beside articles
HELD_OUT, HELD_SEED = 48, 51  # texts of before that are not learned beside articles
COPY = (
    "Repeat this text word for word.\n\n{text}",
    "Write this again, and change nothing.\n\n{text}",
    "Correct the spelling in this text and write it out in full.\n\n{text}",
)
CODE = "```python\n{text}\n```"
EDIT = (
    "Repeat this function, and change nothing.\n\n```python\n{text}\n```",
    "Add a comment to this function and write it out in full.\n\n```python\n{text}\n```",
    "Rename the function to `compute`. Write all of it.\n\n```python\n{text}\n```",
)
KINDS = {  # options of sps train, minutes to learn, and evaluations meanwhile
    "draft-ce": ("draft --layers 3 --loss ce", 7, 3),
    "eagle3": (
        "head --kind eagle3 --draft-vocab 8192 --depth 4 --rate 2e-3 --whole "
        "--references {work}/references.jsonl",
        32,
        6,
    ),
    "draft": ("draft --from {work}/draft-ce/result --rate 1e-3", 10, 3),
    "medusa": ("head --kind medusa --draft-vocab 8192 --rate 2e-3", 6, 3),
    "mlp": ("head --kind mlp --inner 288 --rate 3e-3", 5, 3),
    "more": (
        "head --kind eagle3 --from smollm2-eagle3 --depth 4 --rate 6e-4 --whole "
        "--references {work}/references.jsonl",
        52,
        6,
    ),
    "written": ("head --kind eagle3 --from smollm2-eagle3", 0.2, 1),
    "articles": (
        "head --kind eagle3 --from smollm2-eagle3 --depth 4 --rate 6e-4 --whole "
        "--references {work}/some_references.jsonl",
        46,
        2,
    ),
}
LATER = ("more", "written", "articles")  # only where named
OF_TEXTS = "--tokens 192 --prompt-tokens 288 --together 256"
OF_ARTICLES = "--tokens 96 --prompt-tokens 480 --together 96"
BATCHES = {  # tokens a step, and at a time
    "draft-ce": (2048, 512),
    **dict.fromkeys(("eagle3", "more"), (1024, 512)),
    "articles": (4096, 1024),
}
SMALL = (1024, 256)  # of all others: many steps, and probabilities in memory that is reused
OF_ALL = f"--temperature 0.8 --seed {SEED} --held-out 32 --worth 0 --cost-seconds 0"


def heads_and_bodies() -> Iterator[tuple[str, str]]:
    """Yield functions of modules that are not held out: up to the docstring's end, and whole."""
    for module in stdlib.load(pinned=False):
        if module.split != "train":
            continue
        lines = module.text.splitlines()
        for node in ast.walk(ast.parse(module.text)):
            if not isinstance(node, ast.FunctionDef) or not ast.get_docstring(node):
                continue
            until = node.body[0].end_lineno or node.lineno
            parts = (lines[node.lineno - 1 : end] for end in (until, node.end_lineno))
            head, whole = (textwrap.dedent("\n".join(part)) for part in parts)
            yield head, whole


def paragraphs() -> list[str]:
    """Return prose of the language's reference, as it comes with Python."""
    parts = (part for text in topics.values() for part in text.split("\n\n"))
    plain = (" ".join(part.split()) for part in parts if not part.startswith("   "))
    texts: list[str] = []
    words: list[str] = []
    for part in plain:
        words += part.split()
        if len(words) >= WORDS[0]:
            texts.append(" ".join(words[: WORDS[1]]))
            words = []
    return texts


def prompts() -> Iterator[dict[str, str]]:
    """Yield all prompts; an id begins with the kind."""
    draw = random.Random(SEED)
    code = sorted(set(heads_and_bodies()))
    prose = sorted(set(paragraphs()))
    draw.shuffle(code)
    draw.shuffle(prose)
    generated = islice(functions.items(SEED, "train"), COUNTS["generated"])
    heads = [h for h, _ in code if h.count("\n") <= LINES[1]][: COUNTS["library"]]
    items = islice(news.items(SEED, "train"), COUNTS["news"])
    short = [w for _, w in reversed(code) if LINES[0] <= w.count("\n") <= LINES[1]]
    half = COUNTS["copies"] // 2
    summed_up, copied = prose[: COUNTS["reference"]], prose[COUNTS["reference"] :]
    kinds = {
        "generated": [QUESTION.format(prompt=item.prompt) for item in generated],
        "library": [QUESTION.format(prompt=h + "\n") for h in heads],
        "reference": [SUMMARY.format(document=text) for text in summed_up],
        "news": [SUMMARY.format(document=item.document) for item in items],
        "edit": [draw.choice(EDIT).format(text=text) for text in short[:half]],
        "copy": [draw.choice(COPY).format(text=text) for text in copied[:half]],
    }
    for kind, texts in kinds.items():
        for number, text in enumerate(texts):
            yield {"id": f"{kind}/{number}", "prompt": text}


def summaries(wheel: Path) -> Iterator[dict[str, str]]:
    """Yield a request to sum up each article of a wheel."""
    for number, text in enumerate(articles(wheel)):
        yield {"id": f"article/{number}", "prompt": SUMMARY.format(document=text)}


def references() -> Iterator[dict[str, str]]:
    """Yield prompts with texts of people after them: code, documentation and generated news."""
    code = random.Random(SEED).sample(sorted(set(heads_and_bodies())), FUNCTIONS)
    about = sorted(set(documented()))
    prose = paragraphs()
    kinds = {
        "function": [(QUESTION.format(prompt=h + "\n"), CODE.format(text=w)) for h, w in code],
        "explain": [(f"What is `{name}` in Python?", text) for name, text in about],
        "prose": [
            (f"Go on with this text.\n\n{one}", two)
            for one, two in zip(prose[::2], prose[1::2], strict=False)
        ],
        "news": [
            (SUMMARY.format(document=item.document), item.summary)
            for item in islice(news.items(SEED + 1, "train"), COUNTS["news"])
        ],
    }
    for kind, pairs in kinds.items():
        for number, (prompt, text) in enumerate(pairs):
            yield {"id": f"{kind}/{number}", "prompt": prompt, "reference": text}


def documented() -> Iterator[tuple[str, str]]:
    """Yield modules and classes that are not held out: name and docstring."""
    for module in stdlib.load(pinned=False):
        if module.split != "train":
            continue
        tree = ast.parse(module.text)
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef) and (text := ast.get_docstring(node)):
                name = node.name if isinstance(node, ast.ClassDef) else Path(module.path).stem
                if len(text.split()) >= WORDS[0] // 3:
                    yield name, text


def commands(flags: Any) -> dict[str, list[str]]:
    """Return the command of each drafter; with --write the first one writes the texts of all."""
    work, count = flags.work, sum(COUNTS.values()) + QUESTIONS
    names = [name for name in KINDS if name in flags.kinds or not (flags.kinds or name in LATER)]
    writing = f"--prompts {work}/prompts.jsonl --prompts self --count {count} {OF_TEXTS}"
    reading = f"--texts {work}/{names[0] + '/' if flags.write else ''}texts.jsonl"
    of_articles = {
        "written": f"--prompts {work}/articles.jsonl --count {ARTICLES} {OF_ARTICLES}",
        "articles": f"--texts {work}/mixed.jsonl",
    }
    lines = {}
    for name in names:
        options, minutes, evaluations = KINDS[name]
        texts = writing if flags.write and name == names[0] else reading
        texts = of_articles.get(name, texts)
        step, part = BATCHES.get(name, SMALL)
        lines[name] = shlex.split(
            f"sps train {options.format(work=work)} --target smollm2 --out {work}/{name} {texts} "
            f"{OF_ALL} --minutes {minutes * flags.times:g} --evaluations {evaluations} "
            f"--batch-tokens {step} --micro-tokens {part}"
        )
    return lines


def mix(work: Path) -> None:
    """Write the texts on articles with some of before, and some of people."""
    draw = random.Random(SEED)
    earlier, _ = split(read_texts(work / "texts.jsonl", None, str), HELD_OUT, HELD_SEED)
    drawn = [{"prompt": prompt, "text": text} for prompt, text in draw.sample(earlier, EARLIER)]
    both = (work / "written" / "texts.jsonl").read_text() + json.dumps({"texts": drawn}) + "\n"
    (work / "mixed.jsonl").write_text(both)
    rows = (work / "references.jsonl").read_text().splitlines(keepends=True)
    (work / "some_references.jsonl").write_text("".join(draw.sample(rows, THEIRS)))


def average(before: Path, after: Path, out: Path) -> None:
    """Write a copy of the head `after` whose weights are the means of both heads'."""
    shutil.copytree(after, out)
    weights, others = (load_file(folder / WEIGHTS) for folder in (after, before))
    for name, tensor in weights.items():
        if tensor.is_floating_point():
            weights[name] = ((others[name].float() + tensor.float()) / 2).to(tensor.dtype)
    with safe_open(after / WEIGHTS, "pt") as file:
        save_file(weights, out / WEIGHTS, file.metadata())


def main() -> None:
    """Make the prompts, then run."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    every = f"of {', '.join(KINDS)}; none: all but {', '.join(LATER)}, in order"
    options.add_argument("kinds", nargs="*", help=every)
    options.add_argument("--write", action="store_true", help="let the target write new texts")
    options.add_argument("--wheel", type=Path, help="gensim's, for `written`: its articles")
    options.add_argument("--work", type=Path, default=Path("work/smollm2"))
    options.add_argument("--times", type=float, default=1, help="the minutes to learn")
    options.add_argument("--print", action="store_true", help="the commands, and no more")
    of_heads = "folders BEFORE AFTER OUT: write the mean of two heads' weights, and no more"
    options.add_argument("--average", nargs=3, type=Path, help=of_heads)
    flags = options.parse_args()
    if flags.average:
        average(*flags.average)
        return
    if unknown := set(flags.kinds) - KINDS.keys():
        options.error(f"{', '.join(unknown)}: expected {', '.join(KINDS)}")
    flags.work.mkdir(parents=True, exist_ok=True)
    files = {"prompts": prompts, "references": references}
    if flags.wheel:
        files["articles"] = partial(summaries, flags.wheel)
    for name, rows in files.items():
        file = flags.work / f"{name}.jsonl"
        if not file.exists():
            file.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    if not (flags.work / "texts.jsonl").exists():
        (flags.work / "texts.jsonl").write_bytes(gzip.decompress(TEXTS.read_bytes()))
    for name, command in commands(flags).items():
        print(shlex.join(command), flush=True)
        if not flags.print:
            if name == "articles":
                mix(flags.work)
            resume = ["--resume"] if (flags.work / name / "train.json").exists() else []
            done = subprocess.run(
                [sys.executable, "-m", "spsbench", *command[1:], *resume], check=False
            )
            if done.returncode:
                sys.exit(done.returncode)


if __name__ == "__main__":
    main()
