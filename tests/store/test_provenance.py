import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest
from msgspec import to_builtins

from spsbench.errors import DataError, MissingError
from spsbench.store.provenance import git_state, hash_files, provenance


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A checkout with a package in it."""
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, os.devnull)
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "first"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return package


def test_it_is_json_without_secrets(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    here = provenance()
    text = json.dumps(to_builtins(here), allow_nan=False)
    assert here.environment["OMP_NUM_THREADS"] == "3"
    assert "hf_secret" not in text
    assert str(Path.home()) not in text or str(Path.home()) == "/"
    assert here.versions["torch"]
    assert here.hardware["usable_cores"] >= 1


def test_the_state_of_a_checkout_and_none_of_an_installed_package(package, monkeypatch):
    clean = git_state(package)
    assert (len(clean.commit), clean.diff, clean.untracked) == (40, None, 0)
    (package / "new.py").write_text("")
    diffs = []
    for text in ("changed = 'secret'\n", "changed = 'again'\n"):
        (package / "__init__.py").write_text(text)
        state = git_state(package)
        assert (state.commit, len(state.diff), state.untracked) == (clean.commit, 64, 1)
        diffs.append(state.diff)
    assert diffs[0] != diffs[1]
    installed = package.parent / ".venv" / "package"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    assert git_state(installed) is None
    monkeypatch.setenv("PATH", "")
    assert git_state(package) is None


def test_the_files_that_decide_are_hashed(tmp_path):
    files = {"config.json": b"{}", "tokenizer.json": b"1", "model.safetensors": b"2" * 3_000_000}
    files |= {"pytorch_model.bin": b"3", "qwen.tiktoken": b"4"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "README.md").write_text("")
    (tmp_path / "tokenizer").mkdir()
    digests = hash_files(tmp_path)
    assert digests == {name: hashlib.sha256(files[name]).hexdigest() for name in sorted(files)}


def test_files_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "config.json").symlink_to("/proc/self/mem")  # an error of reading
    with pytest.raises(DataError):
        hash_files(tmp_path)
    with pytest.raises(MissingError):
        hash_files(tmp_path / "none")
