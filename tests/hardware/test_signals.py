import asyncio
import os
import signal
import subprocess
import sys
import threading

import pytest

from spsbench.hardware.signals import SIGNALS, cancelling, graceful

WORK = """
import signal, sys, time
from spsbench.hardware.signals import graceful
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is born with it ignored
farewell = (lambda: "go on later") if sys.argv[1] == "deaf" else None
with graceful(farewell) as interrupt:
    print("ready", flush=True)
    while not interrupt.requested:
        time.sleep(0.005)
    print("noted", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def heard():
    """Under `nohup` this process is born with SIGHUP ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_is_noted_and_handlers_come_back(number, raises):
    before = [signal.getsignal(each) for each in SIGNALS]
    with graceful(raises=raises) as interrupt:
        assert (interrupt.requested, interrupt.code) == (False, 0)
        if raises:
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), number)
        else:
            os.kill(os.getpid(), number)
        assert interrupt.requested
        with pytest.raises(KeyboardInterrupt):  # the second is raised at once
            os.kill(os.getpid(), signal.SIGINT)
    assert interrupt.code == {1: 129, 2: 130, 15: 143}[number]
    assert [signal.getsignal(each) for each in SIGNALS] == before


@pytest.mark.parametrize("number", SIGNALS)
def test_asyncio_cancels_its_tasks_at_the_next_await(number):
    reached = []

    async def work():
        try:
            os.kill(os.getpid(), number)
            reached.append("the code goes on")
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            reached.append("its task is cancelled")
            raise

    with pytest.raises(KeyboardInterrupt), graceful(raises=True) as interrupt, cancelling():
        asyncio.run(work())
    assert reached == ["the code goes on", "its task is cancelled"]
    assert interrupt.code == 128 + number


@pytest.mark.parametrize(
    ("how", "number", "second", "code"),
    [
        ("stuck", signal.SIGTERM, signal.SIGTERM, -signal.SIGTERM),
        ("deaf", signal.SIGINT, None, 130),
    ],
)
def test_a_process_ends_in_time(how, number, second, code):
    command = [sys.executable, "-S", "-c", WORK, how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(number)
        assert child.stdout.readline() == b"noted\n"
        if second is not None:
            child.send_signal(second)
        _, err = child.communicate(timeout=60)
    assert child.returncode == code
    assert (err == b"go on later\n") == (how == "deaf")


def test_work_that_has_ended_in_time_is_left_alone():
    with graceful(lambda: "late"):
        os.kill(os.getpid(), signal.SIGINT)
        timers = [each for each in threading.enumerate() if isinstance(each, threading.Timer)]
    assert timers
    for timer in timers:
        timer.join(60)  # the timer was cancelled
        assert not timer.is_alive()


def test_an_ignored_signal_stays_ignored_and_another_thread_gets_no_handlers():
    codes = []

    def work():
        with graceful() as interrupt:
            codes.append((interrupt.code, signal.getsignal(signal.SIGINT)))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert codes == [(0, before)]
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with graceful() as interrupt:
        os.kill(os.getpid(), signal.SIGHUP)
        assert not interrupt.requested
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
