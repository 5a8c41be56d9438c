import fcntl
import subprocess
import sys

import pytest

from spsbench.errors import InUseError
from spsbench.store.lock import Lock

HOLD = "import sys, time; from pathlib import Path; from spsbench.store.lock import Lock; "
HOLD += "lock = Lock(Path(sys.argv[1])); print(flush=True); time.sleep(60)"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log"


def test_one_holder_at_a_time(path):
    with Lock(path), pytest.raises(InUseError):
        Lock(path)
    with Lock(path) as lock:
        lock.close()  # twice does no harm
    assert [p.name for p in path.parent.iterdir()] == ["log"]


def test_a_killed_holder_holds_nothing(path):
    child = subprocess.Popen([sys.executable, "-S", "-c", HOLD, path], stdout=subprocess.PIPE)
    with child:
        child.stdout.readline()
        with pytest.raises(InUseError):
            Lock(path)
        child.kill()
    Lock(path).close()


def test_a_file_that_was_moved_away_is_not_the_one_to_lock(path, monkeypatch):
    real = fcntl.flock
    moved = []

    def move_once(file, how):
        if not moved:
            moved.append(path.rename(path.with_name("old")))
        real(file, how)

    monkeypatch.setattr(fcntl, "flock", move_once)
    with pytest.raises(InUseError):
        Lock(path)
