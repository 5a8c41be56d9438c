"""Every failure is one line and a code; a traceback only for those who ask."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import torch

from spsbench.cli import generate as command
from spsbench.errors import DataError, Exit
from spsbench.loop.decode import NonFiniteError
from tests.oracles.command import COMMAND, Ran


class PanicException(BaseException):
    """As pyo3 raises it where Rust panics: not an Exception."""


def fails_with(monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(command, "read_prompt", fail)


@pytest.mark.needs_fast
@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (DataError("a\nb\x1b[2J"), 65, "error: a b\\x1b[2J"),
        (PanicException("lost"), 65, "error: a library failed (lost)"),
        (MemoryError(), 75, "error: out of memory (no message)"),
        (torch.OutOfMemoryError("CUDA out of memory.\nmore"), 75, "error: out of memory (CUDA"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes"), 75, "error: out of"),
        (NonFiniteError("non-finite logits"), 1, "error: non-finite logits: expected finite"),
    ],
)
def test_known_failures(error, code, line, sps, monkeypatch):
    fails_with(monkeypatch, error)
    ran = sps("generate")
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.startswith(line)
    assert ran.err.count("\n") == 1


@pytest.mark.needs_fast
@pytest.mark.parametrize("kind", [KeyError, GeneratorExit])
def test_a_bug_leaves_its_traceback_in_a_file(kind, sps, monkeypatch):
    fails_with(monkeypatch, kind("lost"))
    ran = sps("generate")
    assert (ran.code, ran.out) == (Exit.INTERNAL, "")
    line = rf"error: internal: {kind.__name__}: '?lost'?\. The traceback is in (.+)\n"
    found = re.fullmatch(line, ran.err)
    assert found
    log = Path(found[1])
    assert "Traceback" in log.read_text()
    assert log.stat().st_mode & 0o077 == 0
    log.unlink()


@pytest.mark.needs_fast
@pytest.mark.parametrize("way", ["flag", "variable"])
def test_the_traceback_is_shown_to_who_asks(way, sps, monkeypatch):
    fails_with(monkeypatch, KeyError("lost"))
    if way == "variable":
        monkeypatch.setenv("SPS_DEBUG", "1")
    ran = sps("generate", *(["--debug"] if way == "flag" else []))
    assert ran.code == Exit.INTERNAL
    assert ran.err.startswith("Traceback")
    assert ran.err.endswith("error: internal: KeyError: 'lost'\n")


@pytest.mark.needs_fast
def test_an_interrupt(sps, monkeypatch):
    fails_with(monkeypatch, KeyboardInterrupt())
    assert sps("generate") == Ran(Exit.INTERRUPTED, "", "interrupted\n")


@pytest.mark.needs_fast
@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("OMP_NUM_THREADS", "0", Exit.USAGE),
        ("OMP_NUM_THREADS", "many", Exit.USAGE),
        ("OMP_NUM_THREADS", "", Exit.USAGE),
        ("TMPDIR", "/no/such/folder", Exit.MISSING),
    ],
)
def test_variables_that_cannot_work(name, value, code, sps, monkeypatch):
    monkeypatch.setenv(name, value)
    ran = sps("generate", "hi")
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.startswith(f"error: {name} is {value!r} (environment): expected ")
    assert ran.err.count("\n") == 1


@pytest.mark.needs_fast
def test_a_folder_that_may_not_be_searched(sps, monkeypatch):
    fails_with(monkeypatch, PermissionError(13, "Permission denied", "/their/folder"))
    ran = sps("generate")
    assert (ran.code, ran.err.count("\n")) == (Exit.PERMISSION, 1)
    assert ran.err.startswith("error: no access (/their/folder: Permission denied)")


def test_a_full_disk():
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([*COMMAND, "list"], stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == Exit.CANNOT_WRITE
    assert done.stderr == b"error: stdout cannot be written (No space left on device)\n"


def test_a_stdout_that_was_closed_before_the_start():
    closing = ["sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, "list"]
    done = subprocess.run(closing, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("readers", ["stdout", "both"])
def test_readers_that_have_gone(readers):
    reading, writing = os.pipe()
    os.close(reading)
    stderr = writing if readers == "both" else subprocess.PIPE
    done = subprocess.run([*COMMAND, "list"], stdout=writing, stderr=stderr, check=False)
    os.close(writing)
    assert done.returncode == 141
    assert not done.stderr
