"""What `--pair` may name, and the one command that measures it."""

import importlib.util
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


@pytest.mark.slow
def test_a_bundled_pair(peers, tmp_path):
    pair = peers.find_pair("nano", 0, tmp_path)
    assert (pair.target, pair.draft) == (BUNDLED["nano"], BUNDLED["nano-draft"])
    assert len(peers.make_prompts(pair, 2, 16)) == 2


def test_two_folders(peers, tmp_path):
    pair = peers.find_pair(f"{tmp_path}/big:{tmp_path}/small", 0, tmp_path)
    assert (pair.name, pair.made) == ("big-small", False)


def test_a_shape_that_was_made_is_found(peers, tmp_path):
    made = tmp_path / "work" / "mine-2"
    for folder in made, tmp_path / "mine":
        folder.mkdir(parents=True)
    (made / "pair.json").write_text("{}")
    described = tmp_path / "mine" / "config.json"
    described.write_text("{}")
    for given in tmp_path / "mine", described:
        pair = peers.find_pair(str(given), 2, tmp_path / "work")
        assert (pair.name, pair.target.parent) == ("mine", made)


def test_random_weights_are_asked_for_one_token_a_character(peers, tmp_path):
    pair = peers.Pair("made", tmp_path, tmp_path, tmp_path, made=True)
    assert peers.make_prompts(pair, 3, 5) == peers.make_prompts(pair, 3, 5)
    assert {len(text) for text in peers.make_prompts(pair, 3, 5)} == {5}


def test_all_engines_are_decoders_of_one_bench(peers, tmp_path):
    pair = peers.find_pair("nano", 0, tmp_path)
    for form in ("gguf/int8/target.gguf", "gguf/int8/draft.gguf", "openvino/int8/target"):
        (pair.work / form).mkdir(parents=True)  # as if converted before
    (pair.work / "openvino/int8/draft").mkdir()
    given = peers.flags(["--peers-python", "/python", "--threads", "2", "--quantised", "int8"])
    made = peers.command(given, pair, tmp_path / "prompts.jsonl")
    decoders = [made[i + 1] for i, word in enumerate(made) if word == "--decoder"]
    assert [name.partition(":")[0] for name in decoders] == ["native", "hf", "llamacpp", "openvino"]
    assert decoders[2].endswith("int8/draft.gguf,threads=2")
    with pytest.raises(SystemExit, match="expected --peers-python"):
        peers.command(peers.flags(["--engines", "llamacpp"]), pair, tmp_path / "prompts.jsonl")
