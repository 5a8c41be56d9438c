"""Ray: without it one line; with it a cluster of this machine, whose workers are killed."""

import importlib.util
import os
import socket
import subprocess
import sys
from importlib.machinery import ModuleSpec
from types import SimpleNamespace

import pytest

from spsbench.errors import UnavailableError, UsageError
from spsbench.settings.execution import Workers
from spsbench.workers import ray_workers
from tests.workers.compared import bare

NO_RAY = importlib.util.find_spec("ray") is None
with_ray = pytest.mark.skipif(NO_RAY, reason="no Ray here: pip install ray")


def test_without_ray_one_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UnavailableError):
        ray_workers.connect("")


@pytest.mark.parametrize("on", ["there", "ray:", "processes", "processes:0", "processes:x", ""])
def test_another_crew_is_refused(on):
    with pytest.raises(UsageError):
        Workers(on=on)


KILLS = """
import os, signal
from pathlib import Path

from spsbench.workers.map_units import map_units
from spsbench.settings.execution import Workers
from tests.workers.doubling import Doubling, Written

written, killed = Written(), []

def take(unit, result):
    written.take(unit, result)
    if len(killed) < 3 and len(written.taken) > 5 * len(killed):
        for each in Path("/proc").glob("[0-9]*"):
            try:
                name = (each / "cmdline").read_bytes()
            except OSError:
                continue
            if name.startswith(b"ray::Runner") and int(each.name) not in killed:
                os.kill(int(each.name), signal.SIGKILL)
                killed.append(int(each.name))
                break

map_units(
    Workers(on="ray"),
    Doubling(failing=(7,), seconds=0.05),
    iter(range(60)),
    threads=1,
    take=take,
    give_up=written.give_up,
)
written.check(60, but=(7,))
assert written.given_up == {7: "ValueError: unit 7"}, written.given_up
assert len(killed) == 3
print("whole")
"""


@with_ray
@pytest.mark.cluster
def test_workers_of_a_local_cluster_are_killed(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", KILLS],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.stdout == "whole\n", done.stdout + done.stderr


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
    with pytest.raises(UnavailableError):
        ray_workers.connect(f"{scheme}127.0.0.1:1")


def test_an_address_where_something_listens_is_ray_s_affair():
    with socket.create_server(("127.0.0.1", 0)) as there:
        ray_workers.check_reachable(f"127.0.0.1:{there.getsockname()[1]}")
    ray_workers.check_reachable("auto")
    ray_workers.check_reachable("")
