"""Run the suite on one processor beside two processes that never rest: `python -m tests.busy`.

A test that fails here counts on a machine that is fast, or alone. Without a way to choose
processors (macOS), two spinning processes stand beside each of them. `--share`, `--seed` and
`--minutes` are those of `tests.share`; other arguments are pytest's.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.share_arguments import arguments

SPINNING = 2  # processes beside the suite, a processor
SPIN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))"
PATIENCE = 1800  # seconds for one test


@contextmanager
def beside_spinning_processes() -> Iterator[None]:
    """Move this process and its children to one processor, where others spin."""
    processors = os.cpu_count() or 1
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        processors = 1
    with ExitStack() as stack:
        for _ in range(SPINNING * processors):
            spinning = stack.enter_context(subprocess.Popen([sys.executable, "-S", "-c", SPIN]))
            stack.callback(spinning.kill)
        yield


def main() -> int:
    words = arguments('make test-busy BUSY="{}"', str(__doc__))
    with beside_spinning_processes():
        return pytest.main(["-n", "0", "--timeout", str(PATIENCE), *words])


if __name__ == "__main__":
    sys.exit(main())
