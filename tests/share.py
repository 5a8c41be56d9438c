"""A share of the tests, as a plug-in: `pytest -p tests.share --share 0.1 --seed 7 --minutes 4`.

The tests are drawn by the seed, so that the same command draws the same ones, in each process of
pytest-xdist as well; no test begins after the minutes.
"""

import random
import time

import pytest

ALL_DAY = 24 * 60.0  # minutes


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("share")
    group.addoption("--share", type=float, default=1.0)
    group.addoption("--seed", type=int, default=0)
    group.addoption("--minutes", type=float, default=ALL_DAY)


def pytest_configure(config: pytest.Config) -> None:
    share, seed, minutes = (config.getoption(name) for name in ("share", "seed", "minutes"))
    config.pluginmanager.register(Sample(share, seed, minutes))


class Sample:
    """A share of the collected tests, and an end to their beginning."""

    def __init__(self, share: float, seed: int, minutes: float) -> None:
        self.share, self.seed = share, seed
        self.until = time.monotonic() + 60 * minutes
        self.left_out = 0

    @pytest.hookimpl(trylast=True)  # after the marks have chosen
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list) -> None:
        count = round(self.share * len(items))
        drawn = set(random.Random(self.seed).sample([item.nodeid for item in items], count))
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
