"""A cluster of two machines: a run over both, one of them lost, one that is another."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.folders import byte_tokenizer, random_model, save
from tests.waiting import wait_until
from tests.workers.compared import bare
from tests.workers.namespaces import lacking
from tests.workers.nodes import PATIENCE, PORT, two_nodes

ROOT = Path(__file__).resolve().parents[2]
NO_RAY = importlib.util.find_spec("ray") is None

PROMPTS = 240  # so that a node is lost before all are done, on a quick machine too

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.skipif(NO_RAY, reason="no Ray here: pip install ray"),
]


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    if (reason := lacking()) is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("models")
    rows = ({"id": str(n), "prompt": f"one two three {n} one two"} for n in range(PROMPTS))
    prompts = folder / "prompts.jsonl"
    prompts.write_text("\n".join(map(json.dumps, rows)))
    pair = [
        save(folder / "target", random_model(), byte_tokenizer()),
        save(folder / "draft", random_model(noise=0.1), byte_tokenizer()),
    ]
    given = ["bench", f"jsonl:path={prompts}", "--target", str(pair[0]), "--draft", str(pair[1])]
    given += ["--engine", "eager", "-k", "2", "--max-new-tokens", "8", "--warmup", "0"]
    return [sys.executable, "-m", "spsbench", *given, "--threads", "1", "--out"]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """Two machines; the cluster's head is on the first."""
    with two_nodes(tmp_path_factory.mktemp("nodes")) as (one, two):
        one.ray("--head", f"--port={PORT}", "--include-dashboard=false", environment=here())
        yield one, two


def here(root=ROOT):
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return {"PYTHONPATH": os.pathsep.join([str(root), *filter(None, inherited)])}


def address(one):
    return ["--on", f"ray:{one.address}:{PORT}"]


def test_a_node_is_lost_in_the_middle(asked, nodes, tmp_path):
    one, two = nodes
    local, there, out = tmp_path / "here", tmp_path / "there", tmp_path / "out"
    subprocess.run([*asked, str(local)], env={**os.environ, **here()}, check=True)
    two.ray(f"--address={one.address}:{PORT}", environment=here())
    running = one.popen(out, *asked, str(there), *address(one), environment=here())
    seen: set[str] = set()

    def are_both_seen():
        seen.update(node.name for node in nodes if node.processes("ray::Runner.run"))
        return len(seen) == 2 or running.poll() is not None

    wait_until(are_both_seen)
    (raylet,) = two.processes("/raylet/raylet\0")
    os.kill(raylet, signal.SIGKILL)
    assert running.wait(2 * PATIENCE) == 0, out.read_text()
    told = out.read_text()
    assert len(seen) == 2, told
    assert bare(there) == bare(local)


def test_another_environment_is_refused_field_by_field(asked, nodes, tmp_path):
    """The second machine has other code, and another release of a library."""
    one, two = nodes
    out = tmp_path / "out"
    two.end()
    other = tmp_path / "other"
    shutil.copytree(ROOT / "spsbench", other / "spsbench")
    with (other / "spsbench" / "errors.py").open("a") as file:
        file.write("\n# another\n")
    two.ray(f"--address={one.address}:{PORT}", environment=here(other))
    running = one.popen(out, *asked, str(tmp_path / "run"), *address(one), environment=here())
    assert running.wait(2 * PATIENCE) == 5, out.read_text()
    told = out.read_text()
    assert "another environment" in told
    assert "spsbench.code" in told
