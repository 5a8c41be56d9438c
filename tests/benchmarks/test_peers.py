"""What `--pair` may name."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from spsbench.settings.models import BUNDLED

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "peers.py"


@pytest.fixture(scope="module")
def peers():
    spec = importlib.util.spec_from_file_location("peers", SCRIPT)
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["peers"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def test_a_bundled_pair(peers, tmp_path):
    pair = peers.find_pair("nano", 0, tmp_path)
    assert (pair.target, pair.draft) == (BUNDLED["nano"], BUNDLED["nano-draft"])
    assert len(peers.make_prompts(pair, 2, 16)) == 2


def test_two_folders(peers, tmp_path):
    pair = peers.find_pair(f"{tmp_path}/big:{tmp_path}/small", 0, tmp_path)
    assert (pair.name, pair.made) == ("big-small", False)


def test_a_shape_is_made_once(peers, tmp_path, monkeypatch):
    made = []

    def run(command, **_):
        made.append(command[3:])
        Path(command[3]).mkdir(parents=True)
        (Path(command[3]) / "pair.json").write_text("{}")

    monkeypatch.setattr(subprocess, "run", run)
    (tmp_path / "mine").mkdir()
    described = tmp_path / "mine" / "config.json"
    described.write_text("{}")
    for given in (str(tmp_path / "mine"), str(described), str(described)):
        pair = peers.find_pair(given, 2, tmp_path / "work")
        assert (pair.name, pair.target.parent.name) == ("mine", "mine-2")
    assert made == [[str(tmp_path / "work" / "mine-2"), str(described), "2"]]
