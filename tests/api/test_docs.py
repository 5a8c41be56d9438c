"""Every example of docs/library.md, in one go, as it stands there."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs" / "library.md"
BLOCK = re.compile(r"```python\n(.*?)```", re.S)


@pytest.mark.slow
def test_the_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(DOCS.read_text())
    assert len(blocks) == 6
    names = {}
    for block in blocks:
        exec(compile(block, str(DOCS), "exec"), names)
    said = capsys.readouterr()
    assert "--temperature is -1.0: expected 0 or more" in said.out
    assert "held" in said.out.lower()
    assert (tmp_path / "work" / "run" / "summary.json").exists()
    assert len(names["run"].summary) == 3
    assert names["figure"].startswith(b"\x89PNG")
