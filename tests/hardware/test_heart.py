"""Signs of life: who is silent is lost, who is slow or ends in order is not."""

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from spsbench.hardware import heart
from spsbench.hardware.heart import FRAME, Heart, call, listen, take

Losses = list[tuple[int, float | None]]


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heart, "BEAT", 0.01)
    monkeypatch.setattr(heart, "_patience", 2.0)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


def soon(holds: Callable[[], object]) -> bool:
    until = time.monotonic() + 20
    while not holds() and time.monotonic() < until:
        time.sleep(0.005)
    return bool(holds())


def telling(losses: Losses) -> Callable[[int, float | None], None]:
    return lambda rank, silent: losses.append((rank, silent))


def test_two_hearts_keep_each_other_and_part_in_order(pair: tuple[socket.socket, ...]) -> None:
    lost: Losses = []
    first = Heart({1: pair[0]}, True, telling(lost))
    other = Heart({0: pair[1]}, False, telling(lost))
    heart.be_patient(5.0)
    assert soon(lambda: other._patience == 5), "rank 0 tells how long it is patient"
    time.sleep(0.1)
    ends = threading.Thread(target=other.stop)
    ends.start()
    first.part()
    ends.join()
    assert (lost, first._peers) == ([], {})


def test_one_that_does_not_take_its_leave_is_lost(pair: tuple[socket.socket, ...]) -> None:
    lost: Losses = []
    heart.be_patient(0.1)
    Heart({1: pair[0]}, True, telling(lost)).part()
    assert lost == [(1, 0.1)]


def test_one_that_is_silent_is_lost(pair: tuple[socket.socket, ...]) -> None:
    lost: Losses = []
    heart.be_patient(0.4)
    watching = Heart({1: pair[0]}, True, telling(lost))
    for _ in range(10):
        pair[1].send(FRAME.pack(100))
        time.sleep(0.02)
    assert lost == [], "it beats"
    assert soon(lambda: lost)
    assert lost == [(1, 0.4)]
    watching.stop()


def test_one_whose_connection_closes_is_lost_at_once(pair: tuple[socket.socket, ...]) -> None:
    lost: Losses = []
    heart.be_patient(1e6)
    watching = Heart({3: pair[0]}, True, telling(lost))
    pair[1].close()
    assert soon(lambda: lost)
    assert lost == [(3, None)]
    watching.stop()


def test_time_in_which_we_stood_still_ourselves_is_no_silence(
    pair: tuple[socket.socket, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole command was stopped for a thousand seconds, and goes on."""
    lost: Losses = []
    watching = Heart({1: pair[0]}, True, telling(lost))
    began = time.monotonic
    monkeypatch.setattr(heart.time, "monotonic", lambda: began() + 1000)
    for _ in range(5):
        pair[1].send(FRAME.pack(100))
        time.sleep(0.02)
    assert lost == []
    watching.stop()


def test_who_does_not_know_the_secret_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    made, address, port, secret = listen()
    assert address == "", "the others look where they meet"
    known = [call(address, port, b"?" * 16, 1), call(address, port, secret, 1)]
    found = take(made, secret, 1, time.monotonic() + 20)
    assert list(found) == [1]
    assert known[0].recv(1) == b"", "closed"
    with pytest.raises(TimeoutError):
        take(listen()[0], secret, 1, time.monotonic() + 0.05)
    for each in (*known, *found.values()):
        each.close()
    assert not [t for t in threading.enumerate() if t.name == "heart"]
