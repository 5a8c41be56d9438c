"""The library corpus: its manifest, its split, its refusal of another Python."""

import json
import sys

import pytest

from spsbench.tasks.corpora import stdlib

STORED = json.loads(stdlib.MANIFEST.read_text(encoding="utf-8"))


def test_manifest_holds_the_split_of_the_code():
    held = {path for path, entry in STORED["files"].items() if entry["split"] == "heldout"}
    assert held == stdlib.HELDOUT
    assert {entry["split"] for entry in STORED["files"].values()} == {"train", "heldout"}


@pytest.mark.skipif(
    sys.version_info[:3] != tuple(map(int, STORED["python"].split("."))),
    reason="another Python than the manifest's",
)
def test_manifest_is_this_pythons():
    assert stdlib.manifest() == STORED["files"]
    modules = stdlib.load()
    held = sum(len(module.text) for module in modules if module.split == "heldout")
    assert 0.04 < held / sum(len(module.text) for module in modules) < 0.08


def test_skips_tests_tables_and_installed_packages(tmp_path):
    for name in (
        "heapq.py",
        "abc.py",
        "empty.py",
        "test/test_abc.py",
        "site-packages/x.py",
        "encodings/cp037.py",
        "_sysconfigdata__linux.py",
        "config-3.11-x86_64/python-config.py",
    ):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("" if name == "empty.py" else "x = 1\n")
    found = {module.path: module.split for module in stdlib.modules(tmp_path)}
    assert found == {"abc.py": "train", "heapq.py": "heldout"}


def test_refuses_another_library_in_one_line(tmp_path):
    (tmp_path / "abc.py").write_text("x = 1\n")
    with pytest.raises(stdlib.CorpusMismatchError, match="--unpinned") as error:
        stdlib.load(root=tmp_path)
    assert "\n" not in str(error.value)
    assert STORED["python"] in str(error.value)
    assert len(stdlib.load(pinned=False, root=tmp_path)) == 1
