"""What `--pair` may name, and the one command that measures it."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "peers.py"


@pytest.fixture(scope="module")
def peers():
    spec = importlib.util.spec_from_file_location("peers", SCRIPT)
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["peers"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


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
    with pytest.raises(SystemExit):
        peers.command(peers.flags(["--engines", "llamacpp"]), pair, tmp_path / "prompts.jsonl")
