"""Ray: without it one line; with it two nodes of this machine, which lose workers and one node."""

import importlib.util
import os
import socket
import subprocess
import sys

import pytest

from spsbench.errors import UnavailableError
from spsbench.store.traces import read_traces
from spsbench.workers import ray_workers
from tests.workers.compared import bare

NO_RAY = importlib.util.find_spec("ray") is None
with_ray = pytest.mark.skipif(NO_RAY, reason="no Ray here: pip install ray")
PATH = {"PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}


def test_without_ray_one_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UnavailableError):
        ray_workers.connect_to_ray("")


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_where_nothing_listens_ray_is_not_asked(scheme):
    with pytest.raises(OSError):
        ray_workers.check_reachable(f"{scheme}127.0.0.1:1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        ray_workers.check_reachable(f"{scheme}127.0.0.1:{server.getsockname()[1]}")
    ray_workers.check_reachable("auto")


TWO_NODES = """
import os, signal, sys
from pathlib import Path

from ray.cluster_utils import Cluster

from spsbench.errors import UnavailableError
from spsbench.settings.execution import Workers
from spsbench.workers.map_units import map_units
from tests.workers.doubling import Doubling, Written

written, folder = Written(), Path(sys.argv[1])
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
node = cluster.add_node(num_cpus=1)

def take(unit, result):
    written.take(unit, result)
    begun = [int(path.name) for path in folder.iterdir()]
    if len(written.taken) in (10, 20):
        os.kill(begun[-1], signal.SIGKILL)
        (folder / str(begun[-1])).unlink()
    if len(written.taken) == 30:
        assert len(begun) == 2
        cluster.remove_node(node, allow_graceful=False)

work = Doubling(failing=(7,), seconds=0.05, folder=str(folder))
on = Workers(on=f"ray:{cluster.address}")
try:
    map_units(on, work, range(60), take, threads=1)
except UnavailableError:  # Ray tried too often before it noticed the lost node
    assert len(written.taken) >= 30
    made = written.taken.keys() | written.failures.keys()
    map_units(on, work, [unit for unit in range(60) if unit not in made], written.take, threads=1)
written.check(60, but=(7,))
print("whole")
"""


@with_ray
@pytest.mark.cluster
def test_workers_and_a_node_that_are_lost_cost_no_unit(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", TWO_NODES, str(tmp_path)],
        env=os.environ | PATH,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.stdout.splitlines()[-1:] == ["whole"], done.stdout + done.stderr


@with_ray
@pytest.mark.cluster
@pytest.mark.parametrize("on", ["ray", "processes:2"])
def test_a_run_equals_a_local_one(tmp_path, on):
    """Byte for byte, but for times and machines; the driver makes the traces."""
    options = ["latency", "--limit", "3", "-k", "4", "--max-new-tokens", "16", "--threads", "1"]
    options += ["--record", "trace"]
    for folder, more in (("here", []), ("there", ["--on", on])):
        subprocess.run(
            [sys.executable, "-m", "spsbench", "bench", *options, *more, "-o", tmp_path / folder],
            env=os.environ | PATH,
            check=True,
            capture_output=True,
            timeout=280,
        )
    assert bare(tmp_path / "here") == bare(tmp_path / "there")
    here, there = (read_traces([tmp_path / folder]) for folder in ("here", "there"))
    assert here.texts
    assert (there.head, there.drafts) == (here.head, here.drafts)
    assert (there.texts.keys(), there.along.keys()) == (here.texts.keys(), here.along.keys())
