"""Programs of many threads: few are let start, and a system that is full is waited for."""

import errno
import os
import subprocess
import threading
from dataclasses import replace
from typing import Any

import pytest

from spsbench.errors import Exit
from spsbench.extensions.sandbox import choice, levels, runner, scoring
from spsbench.extensions.sandbox.levels import BusyError, ProgramLimits
from spsbench.extensions.sandbox.runner import TASKS, run_program
from spsbench.tasks.program_texts import Program
from spsbench.tasks.verdicts import ProgramVerdict
from tests.extensions.sandbox.situations import run_trial

LIMITS = ProgramLimits(timeout=5.0)
LEVEL = levels.unconfined_level(LIMITS)  # for our own programs
MANY = """
import threading
threading.stack_size(1 << 16)
wait, most = threading.Event(), 0
try:
    for most in range(200): threading.Thread(target=wait.wait).start()
except RuntimeError as error:
    refused = error
finally:
    wait.set()
raise ValueError(f"{most} {refused}")
"""
MANY_BY_C = """
import ctypes
libc = ctypes.CDLL(None)
small, name, most = ctypes.create_string_buffer(64), ctypes.c_ulong(), 0
libc.pthread_attr_init(small)
libc.pthread_attr_setstacksize(small, ctypes.c_size_t(1 << 16))
while most < 200 and not libc.pthread_create(ctypes.byref(name), small, libc.pause, None): most += 1
raise ValueError(most)
"""


def test_the_interpreter_starts_only_so_many_threads():
    found = run_program(LEVEL, MANY, LIMITS)
    assert found.detail == f"ValueError: {TASKS} can't start new thread"
    again = "import threading\nfor _ in range(200):\n    t = threading.Thread(target=int)\n"
    again += "    t.start(); t.join()"
    assert run_program(LEVEL, again, LIMITS).verdict is ProgramVerdict.PASSED


@pytest.mark.parametrize("host", ["bare", "no bwrap"])
def test_the_kernel_does_too_where_users_are_apart(host, open_path):
    if not users_can_be_apart():
        pytest.skip("needs user namespaces")
    found = run_trial(host, "user", {"many": MANY_BY_C}, open_path, timeout=5.0, targets=False)
    verdict, detail = found["outcomes"]["many"]
    assert verdict == "failed"
    assert 16 < int(detail.removeprefix("ValueError: ")) < TASKS


def users_can_be_apart():
    command = ("setpriv", "--reuid=4242", "--clear-groups", "unshare", "--user", "true")
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


class Full:
    """A system without room for its first `times` processes."""

    def __init__(self, times: int) -> None:
        self.left, self.real = times, subprocess.Popen

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.left -= 1
        if self.left >= 0:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return self.real(*arguments, **named)


@pytest.fixture
def full(monkeypatch):
    """`full(times)`: from then on there is no room, that often."""
    return lambda times: monkeypatch.setattr(subprocess, "Popen", Full(times))


def test_room_for_a_process_is_waited_for(full):
    full(3)
    assert run_program(LEVEL, "x = 1", LIMITS).verdict is ProgramVerdict.PASSED
    full(1)
    assert choice.why_not(LEVEL) == ""


def test_a_helper_without_room_is_waited_for(tmp_path):
    """bubblewrap itself is started, and cannot start what is inside."""
    words = "bwrap: Can't fork for pid 1: Resource temporarily unavailable"
    script, seen = tmp_path / "helper", tmp_path / "seen"
    script.write_text(
        f'#!/bin/sh\n[ -e {seen} ] && exec "$@"\n: > {seen}\necho "{words}" >&2\nexit 1\n'
    )
    script.chmod(0o755)
    level = replace(LEVEL, command=(str(script),), own_pids=True)
    assert run_program(level, "x = 1", LIMITS).verdict is ProgramVerdict.PASSED
    assert seen.exists()


def test_waiting_for_room_ends_in_a_line(full, monkeypatch):
    monkeypatch.setattr(runner, "LONGEST", 0.02)
    full(1000)
    with pytest.raises(BusyError) as refused:
        run_program(LEVEL, "x = 1", LIMITS)
    line = str(refused.value)
    assert line.startswith("no room for another process or thread (none: Resource temporarily")
    assert "\n" not in line
    assert refused.value.code == Exit.SANDBOX == 3


def test_workers_are_there_before_programs_take_the_room(monkeypatch):
    real, refused = threading.Thread.start, iter([False, True, False, True])

    def start(thread):
        if next(refused, False):
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    programs = [Program(("", f"p{n}", 0), "x = 1") for n in range(3)]
    told = []
    scoring.judge_programs(
        programs, LEVEL, LIMITS, workers=3, report=lambda one, outcome: told.append(outcome.verdict)
    )
    assert told == ["passed"] * 3
    assert next(refused, None) is None
