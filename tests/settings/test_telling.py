"""What takes long says so, once, to whoever listens."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

import spsbench
from spsbench.settings import telling
from spsbench.settings.telling import listening, quiet, working
from tests.folders import random_model, save


class AtOnce(threading.Timer):
    """A timer whose time is over when it starts."""

    seconds: ClassVar[list[float]] = []

    def __init__(self, interval: float, function: Callable[..., None], args: tuple[str]) -> None:
        super().__init__(interval, function, args)
        self.seconds.append(interval)

    def start(self) -> None:
        self.function(*self.args)
        super().start()


def test_what_takes_long_is_said_with_what_is_done_within_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(telling, "Timer", AtOnce)
    monkeypatch.setattr(telling, "PATIENCE", 2.0)
    said: list[str] = []
    with listening(said.append), working("loading"), working("compiling"):
        assert said == ["loading ...", "compiling ..."]
    with listening(said.append), listening(quiet), working("hashing"):
        pass  # quiet is what a library says where nobody asked: the command still listens
    with working("nobody listens"):
        pass
    assert said[2:] == ["hashing ..."]
    assert set(AtOnce.seconds) == {2.0}


def test_loading_a_pair_says_which_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "Timer", AtOnce)
    folder = save(tmp_path / "target", random_model())
    said: list[str] = []
    pair = spsbench.load(target=str(folder), engine="eager", say=said.append)
    assert said.index(f"{telling.LIBRARIES} ...") < said.index(f"loading {folder} ...")
    said.clear()
    pair.generate("the", max_new_tokens=1)
    assert said == []


def test_what_is_soon_done_is_not_said_and_leaves_no_thread() -> None:
    said: list[str] = []
    before = threading.active_count()
    with pytest.raises(KeyError), listening(said.append), working("loading"):
        raise KeyError
    assert said == []
    assert threading.active_count() == before
    assert telling._listeners == [quiet]
