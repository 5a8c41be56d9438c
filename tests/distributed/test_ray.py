"""Ray: without it one line; with it a cluster of this machine, whose workers are killed."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
from functools import partial
from importlib.machinery import ModuleSpec
from types import SimpleNamespace

import pytest

from spsbench.distributed import connection, on_ray
from spsbench.distributed.protocol import Joined
from spsbench.errors import UnavailableError, UsageError
from spsbench.settings.execution import Crew
from tests.distributed.compared import bare
from tests.distributed.made import Doubling

NO_RAY = importlib.util.find_spec("ray") is None
with_ray = pytest.mark.skipif(NO_RAY, reason="no Ray here: pip install 'spsbench[ray]'")


def test_without_ray_one_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UnavailableError, match=r"pip install 'spsbench\[ray\]'"):
        connection.load()


@pytest.mark.parametrize("on", ["there", "ray:", "processes", "processes:0", "processes:x", ""])
def test_another_crew_is_refused(on):
    with pytest.raises(UsageError, match="--on"):
        Crew(on=on)


def test_cores_of_workers_where_there_are_none_are_refused():
    with pytest.raises(UsageError, match="--cpus-per-worker without --on"):
        Crew(cpus_per_worker=2)


def test_signals_stay_ours():
    before = signal.getsignal(signal.SIGTERM)
    with connection.own_signals():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) is before


KILLS = """
import os, signal, sys
from functools import partial
sys.path.insert(0, {root!r})
from spsbench.distributed.on_ray import RayWorkers
from spsbench.distributed.scheduler import Group, Scheduler
from spsbench.settings.execution import Crew
from tests.distributed.made import Doubling
from tests.distributed.test_ray import opener
from tests.distributed.test_scheduler import Book, whole

pool = RayWorkers(Crew(on="ray", cpus_per_worker=1), opener, None, "cpu")
book, killed = Book(), []

def told():
    if len(killed) < 3 and len(book.taken) > 5 * len(killed):
        pids = [p for p in pool.pids().values() if p not in killed]
        if pids:
            os.kill(pids[0], signal.SIGKILL)
            killed.append(pids[0])

Scheduler(pool, [Group(60, iter(range(60)))], book.ledger._replace(told=told)).run()
pool.close()
whole(book, but=(7,), count=60)
assert book.given_up == {{7: "ValueError: unit 7"}}, book.given_up
assert len(killed) == 3
print("whole")
"""


def opener(threads, beside):
    return Doubling(failing=(7,), seconds=0.05)


@with_ray
@pytest.mark.cluster
def test_workers_of_a_local_cluster_are_killed(tmp_path):
    root = os.getcwd()
    program = KILLS.format(root=root)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.stdout.endswith("whole\n"), done.stdout + done.stderr


@with_ray
@pytest.mark.cluster
@pytest.mark.parametrize("on", ["ray", "processes:2"])
def test_a_run_equals_a_local_one(tmp_path, on):
    """Byte for byte, but for times and machines."""
    given = ["latency", "--limit", "3", "-k", "4", "--max-new-tokens", "16", "--threads", "1"]
    for folder, more in (("here", []), ("there", ["--on", on])):
        subprocess.run(
            [sys.executable, "-m", "spsbench", "bench", *given, *more, "-o", tmp_path / folder],
            check=True,
            capture_output=True,
            timeout=280,
        )
    assert bare(tmp_path / "here") == bare(tmp_path / "there")


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_where_nothing_listens_ray_is_not_asked(monkeypatch, scheme):
    """It would ask for minutes."""
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(__spec__=ModuleSpec("ray", None)))
    with pytest.raises(UnavailableError, match=r"no cluster \(.*127\.0\.0\.1:1: .*refused"):
        on_ray.RayWorkers(Crew(on=f"ray:{scheme}127.0.0.1:1"), partial(Doubling), None, "cpu")


def test_an_address_where_something_listens_is_ray_s_affair():
    with socket.create_server(("127.0.0.1", 0)) as there:
        connection.reach(f"127.0.0.1:{there.getsockname()[1]}")
    connection.reach("auto")
    connection.reach("")


FIRST = "hello", 7, 99


def test_an_event_is_told_apart_from_a_hello(said):
    """A worker's first answer is its hello, process and niceness; each later one is an event."""

    class Answers:
        exceptions = type("E", (), {"RayActorError": KeyError, "RayError": OSError})

        @staticmethod
        def get(reference):
            return reference

    pool = on_ray.RayWorkers.__new__(on_ray.RayWorkers)
    pool._ray, pool._joined, pool._awaited = Answers, {}, {FIRST: "w", "event": "w"}
    assert pool._event(FIRST) == Joined("w", "hello")
    assert "RAY_worker_niceness=0" in said[0]
    assert pool.pids() == {"w": 7}
    assert pool._event("event") == "event"
