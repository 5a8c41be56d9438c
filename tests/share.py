"""A share of the tests, as a plug-in: `pytest -p tests.share --share 0.1 --seed 7`.

The tests are drawn by the seed, so that the same command draws the same ones, in each process of
pytest-xdist as well.
"""

import random

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--share", type=float, default=1.0)
    parser.addoption("--seed", type=int, default=0)


@pytest.hookimpl(trylast=True)  # after the marks have chosen
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    names, draw = [item.nodeid for item in items], random.Random(config.getoption("seed"))
    drawn = set(draw.sample(names, round(config.getoption("share") * len(names))))
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in drawn])
    items[:] = [item for item in items if item.nodeid in drawn]
