"""Train the bundled heads: `python recipes/nano/heads.py [KIND ...] [--work DIR]`.

The target continues what people type (heads and openings of functions, files and articles, none of
them held out), and each head learns its texts. Each training goes on where it was stopped.
"""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from nano.openings import openings, write_prompts

COUNT = 480  # prompts of each kind
COMMON = "--temperature 1 --batch-tokens 1024 --micro-tokens 512 --held-out 32 --patience 0"
KINDS = {
    "eagle3": "--depth 4 --draft-vocab 2048 --rate 4e-3 --steps 900",
    "medusa": "--depth 4 --draft-vocab 1536 --rate 3e-3 --steps 600",
    "mlp": "--depth 4 --inner 160 --rate 3e-3 --steps 600",
    "mtp": "--depth 4 --rate 4e-3 --steps 900",
}


def main() -> None:
    """Write the prompts, then train."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("kinds", nargs="*", help=f"of {', '.join(KINDS)}; none: all, in order")
    options.add_argument("--work", type=Path, default=Path("work/nano-heads"))
    flags = options.parse_args()
    flags.work.mkdir(parents=True, exist_ok=True)
    file = flags.work / "prompts.jsonl"
    prompts = openings(COUNT)
    write_prompts(file, ({"prompt": text} for text in prompts))
    writing = (
        f"--prompts {file} --count {len(prompts)} --tokens 96 --prompt-tokens 224 --together 128"
    )
    for kind in flags.kinds or KINDS:
        first = flags.work / next(iter(KINDS)) / "texts.jsonl"
        texts = f"--texts {first}" if first.exists() and first.parent.name != kind else writing
        command = shlex.split(
            f"sps train head --kind {kind} --target nano {texts} {KINDS[kind]} {COMMON} --worth 0 "
            f"--cost-seconds 0 --out {flags.work / kind} --resume"
        )
        print(shlex.join(command), flush=True)
        subprocess.run([sys.executable, "-m", "spsbench", *command[1:]], check=True)


if __name__ == "__main__":
    main()
