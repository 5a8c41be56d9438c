"""Brings `tests/suite.py` to processes that run tests: one that hands them out imports nothing."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what rewrites `tests/refusals.toml` and the golden files of reports."""
    parser.addoption("--approve", action="store_true", help="rewrite what is held")


def pytest_configure(config: pytest.Config) -> None:
    """Import the suite, unless workers do."""
    hands_out = config.getoption("tx", None) and not config.option.collectonly
    if not hands_out or hasattr(config, "workerinput"):
        config.pluginmanager.import_plugin("tests.suite")
