"""Lines for the user: who receives them, and when a slow step is announced."""

import logging
import threading
from collections.abc import Callable
from typing import ClassVar

import pytest

import spsbench
from spsbench import messages
from spsbench.errors import OutOfMemoryError
from spsbench.hardware.memory import importing_libraries
from spsbench.messages import announce_if_slow, lines_to, no_lines
from tests.folders import random_model, save

log = logging.getLogger("spsbench.somewhere")


class AtOnce(threading.Timer):
    """A timer whose time is over when it starts."""

    seconds: ClassVar[list[float]] = []

    def __init__(self, interval: float, function: Callable[..., None], args: tuple[str]) -> None:
        super().__init__(interval, function, args)
        self.seconds.append(interval)

    def start(self):
        self.function(*self.args)
        super().start()


def test_lines_go_to_say_once_and_to_no_other_handler(caplog):
    said = []
    log.info("before")
    with lines_to(said.append), lines_to(None), lines_to(said.append):
        log.info("100 %")
        log.info("100 %")
        log.debug("detail")
        with no_lines():
            log.info("hidden")
    log.info("after")
    assert said == ["100 %"]
    assert caplog.messages == []


def test_lines_are_seen_by_the_usual_configuration(caplog):
    said = []
    with caplog.at_level(logging.INFO, logger="spsbench"), lines_to(said.append):
        log.info("line")
    assert said == caplog.messages == ["line"]


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(messages, "Timer", AtOnce)


def test_slow_steps_are_announced_in_nested_blocks(impatient):
    said = []
    with lines_to(said.append), announce_if_slow("loading"), announce_if_slow("compiling"):
        assert said == ["loading ...", "compiling ..."]
    with announce_if_slow("nobody listens"):
        pass
    assert said[2:] == []
    assert set(AtOnce.seconds) == {messages.PATIENCE}


def test_loading_a_pair_announces_the_model(tmp_path, impatient):
    folder = save(tmp_path / "target", random_model())
    said = []
    pair = spsbench.load(target=str(folder), engine="eager", say=said.append)
    assert said.index(f"{messages.LIBRARIES} ...") < said.index(f"loading {folder} ...")
    said.clear()
    pair.generate("the", max_new_tokens=1)
    assert said == []


def test_fast_steps_are_not_announced_and_leave_no_thread():
    said = []
    before = threading.active_count()
    with pytest.raises(KeyError), lines_to(said.append), announce_if_slow("loading"):
        raise KeyError
    assert said == []
    assert threading.active_count() == before
    assert not any(isinstance(each, messages.Listener) for each in messages.log.handlers)


@pytest.mark.parametrize("space", [600 << 20, 2 << 30])
def test_libraries_that_lack_address_space_are_out_of_memory(monkeypatch, space):
    monkeypatch.setattr("resource.getrlimit", lambda kind: (space, space))
    said = f"ulimit -v is {space >> 10}"
    with pytest.raises(OutOfMemoryError, match=said), importing_libraries():
        raise ImportError("libtorch_cpu.so: failed to map segment from shared object")
