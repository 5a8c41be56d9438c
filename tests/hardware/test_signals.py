import os
import signal
import subprocess
import sys
import threading

import pytest

from spsbench.hardware.signals import SIGNALS, graceful, held

WORK = """
import signal, sys, time
from spsbench.hardware.signals import graceful
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is born with it ignored
with graceful() as interrupt:
    print("ready", flush=True)
    while not interrupt.requested:
        time.sleep(0.005)
    print("noted", flush=True)
    if sys.argv[1] == "stuck":
        time.sleep(60)
sys.exit(interrupt.code)
"""


@pytest.fixture(autouse=True)
def heard():
    """Under `nohup` this process is born with SIGHUP ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_is_noted_and_handlers_come_back(number):
    before = [signal.getsignal(each) for each in SIGNALS]
    with graceful() as interrupt:
        assert not interrupt.requested
        assert interrupt.code == 0
        os.kill(os.getpid(), number)
        assert interrupt.requested
    assert interrupt.code == {1: 129, 2: 130, 15: 143}[number]
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_handlers_come_back_after_an_error():
    before = [signal.getsignal(each) for each in SIGNALS]
    with pytest.raises(KeyError), graceful():
        raise KeyError
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_the_second_interrupt_is_raised_at_once():
    with graceful() as interrupt:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert interrupt.code == 143


DEAF = """
import time
from spsbench.hardware.signals import graceful
with graceful(0.01, lambda: "go on later"):
    print("ready", flush=True)
    time.sleep(600)
"""


def test_work_that_does_not_end_in_time_is_ended():
    command = [sys.executable, "-S", "-c", DEAF]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(signal.SIGINT)
        assert child.communicate(timeout=60) == (b"", b"go on later\n")
    assert child.returncode == 130


def test_work_that_has_ended_is_left_alone():
    with graceful(0.0) as interrupt:
        pass
    assert not interrupt.requested
    with graceful(3600.0) as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        timers = [each for each in threading.enumerate() if isinstance(each, threading.Timer)]
    assert interrupt.requested
    for timer in timers:
        timer.join(60)  # the timer was cancelled
        assert not timer.is_alive()


@pytest.mark.parametrize(("how", "number"), [("once", signal.SIGHUP), ("stuck", signal.SIGTERM)])
def test_a_process_ends_in_time(number, how):
    command = [sys.executable, "-S", "-c", WORK, how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(number)
        assert child.stdout.readline() == b"noted\n"
        if how == "stuck":
            child.send_signal(number)
        child.wait(60)
    assert child.returncode == (128 + number if how == "once" else -number)


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with graceful() as interrupt:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not interrupt.requested
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_comes_meanwhile_goes_to_the_handler_afterwards():
    told = []
    before = signal.signal(signal.SIGINT, lambda number, frame: told.append("handled"))
    try:
        with held():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            told.append("done")
        assert told == ["done", "handled", "handled"]
        with pytest.raises(ZeroDivisionError), held():
            told.append(signal.raise_signal(signal.SIGINT) or 1 / 0)
        assert told[3:] == ["handled"]
        with held():  # a handler that is exchanged meanwhile stays
            mine = signal.getsignal(signal.SIGINT)
            signal.signal(signal.SIGINT, signal.default_int_handler)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler is not mine
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with held():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_gets_and_holds_no_handlers():
    seen = []

    def work():
        with graceful() as interrupt, held():
            seen.append((interrupt.code, signal.getsignal(signal.SIGINT)))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(0, before)]
