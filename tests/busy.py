"""Run the suite on one processor beside two processes that never rest: `python -m tests.busy`.

A test that fails here counts on a machine that is fast, or alone. Without a way to choose
processors (macOS), two spinning processes stand beside each of them. `--share 0.1` runs a tenth
of the tests, drawn by a seed that is printed, and begins no test after `--minutes`; `--seed` draws
the same ones again. Other arguments are pytest's.
"""

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

SPINNING = 2  # processes beside the suite, a processor
SPIN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))"
PATIENCE = 1800  # seconds for one test


class Sample:
    """A share of the collected tests, and an end to their beginning."""

    def __init__(self, share: float, seed: int, minutes: float) -> None:
        self.share, self.seed = share, seed
        self.until = time.monotonic() + 60 * minutes
        self.left_out = 0

    @pytest.hookimpl(trylast=True)  # after the marks have chosen
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list) -> None:
        wanted = round(self.share * len(items))
        drawn = set(random.Random(self.seed).sample([item.nodeid for item in items], wanted))
        config.hook.pytest_deselected(items=[i for i in items if i.nodeid not in drawn])
        items[:] = [item for item in items if item.nodeid in drawn]

    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if time.monotonic() < self.until:
            return None
        self.left_out += 1
        return True

    def pytest_terminal_summary(self, terminalreporter) -> None:
        if self.left_out:
            terminalreporter.line(f"{self.left_out} tests of the sample were not begun in time")


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
    parser = argparse.ArgumentParser(prog="python -m tests.busy", description=__doc__)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--minutes", type=float, default=24 * 60)
    known, others = parser.parse_known_args()
    words = [f"--share {known.share} --seed {known.seed}", *others] if known.share < 1 else others
    print(f'again: make test-busy BUSY="{" ".join(words)}"', flush=True)
    arguments = ["-n", "0", "--timeout", str(PATIENCE), *others]
    with beside_spinning_processes():
        return pytest.main(arguments, plugins=[Sample(known.share, known.seed, known.minutes)])


if __name__ == "__main__":
    sys.exit(main())
