import errno
import fcntl
import os
import socket
import subprocess
import sys
import threading

import pytest

from spsbench.errors import InUseError
from spsbench.store.lock import Lock, boot_id

HOLD = "import sys, time; from pathlib import Path; from spsbench.store.lock import Lock; "
HOLD += "lock = Lock(Path(sys.argv[1])); print(flush=True); time.sleep(60)"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log"


@pytest.fixture
def flock_fails(monkeypatch):
    """Have the lock of the file system fail with an error."""

    def fail_with(number):
        def fail(*arguments):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(fcntl, "flock", fail)

    return fail_with


@pytest.fixture(params=["flock", "file"])
def kind(request, flock_fails):
    """The lock of the file system, and the one for those that have none."""
    if request.param == "file":
        flock_fails(errno.ENOLCK)
    return request.param


def test_one_holder_at_a_time(path, kind):
    with Lock(path), pytest.raises(InUseError):
        Lock(path, wait=0.01)
    with Lock(path) as lock:
        lock.close()  # twice does no harm
    assert [p.name for p in path.parent.iterdir()] == ["log"]


def test_it_waits_for_the_holder(path, kind):
    threading.Timer(0.1, Lock(path).close).start()
    Lock(path, wait=60).close()


def test_a_killed_holder_holds_nothing(path):
    child = subprocess.Popen([sys.executable, "-S", "-c", HOLD, path], stdout=subprocess.PIPE)
    with child:
        child.stdout.readline()
        with pytest.raises(InUseError):
            Lock(path)
        child.kill()
    Lock(path).close()


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("what", ["pid", "boot", "host"])
def test_a_file_left_behind_is_removed_if_its_holder_surely_ended(path, flock_fails, what, ended):
    flock_fails(errno.ENOSYS)
    done = subprocess.run([sys.executable, "-S", "-c", "import os; print(os.getpid())"], stdout=-1)
    pid = done.stdout.decode().strip() if ended and what == "pid" else os.getpid()
    boot = "before" if ended and what == "boot" else boot_id()
    host = "elsewhere" if what == "host" else socket.gethostname()
    held = path.with_name(".log.held")
    held.write_text(f"{host} {boot} {pid}")
    if ended and what != "host":  # of another machine nobody knows
        with Lock(path, wait=1):
            assert held.read_text().endswith(f" {os.getpid()}")
    else:
        with pytest.raises(InUseError):
            Lock(path)


def test_a_file_that_was_moved_away_is_not_the_one_to_lock(path, monkeypatch):
    real = fcntl.flock
    moved = []

    def move_once(file, how):
        if not moved:
            moved.append(path.rename(path.with_name("old")))
        real(file, how)

    monkeypatch.setattr(fcntl, "flock", move_once)
    with Lock(path, wait=1):
        assert path.exists()
        with pytest.raises(InUseError):
            Lock(path)
