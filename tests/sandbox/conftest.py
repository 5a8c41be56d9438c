"""The levels that can be tried here, and nothing kept between tests."""

import shutil
from pathlib import Path

import pytest

from spsbench.sandbox import selftest
from spsbench.sandbox.choice import AUTO
from spsbench.sandbox.level import Level


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Answers of the self-test go to a folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return selftest.cache()


@pytest.fixture(params=AUTO, ids=lambda level: level.name)
def level(request: pytest.FixtureRequest) -> Level:
    """Each level that this machine has; a missing one is a visible skip."""
    held: Level = request.param
    if reason := held.missing():
        pytest.skip(f"{held.name}: {reason}")
    answer = selftest.test(held)
    if held.name == "bwrap" and not answer.holds:
        pytest.skip(f"bwrap: {answer.reason}")  # a container without user namespaces
    return held


@pytest.fixture
def no_bwrap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine where bubblewrap is not installed."""
    found = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "bwrap" else found(name))
