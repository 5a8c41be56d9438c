"""The kept answers behind rows of docs/audited: small, whole, and computed anew."""

from pathlib import Path

import pytest

from spsbench.extensions.check.check import run_check
from spsbench.extensions.check.journal import OPTIONS, Journal

FOLDER = Path(__file__).parents[3] / "docs" / "audited" / "evidence"
FILES = sorted(FOLDER.rglob("*.jsonl.gz"))
MOST = 512 * 1024


def test_evidence_is_small_whole_and_linked():
    for path in FILES:
        assert path.stat().st_size <= MOST, path
        journal = Journal(path, resume=True, asks=False)
        assert len(journal) > 0
        assert OPTIONS in journal
        page = FOLDER.parent / "vllm.md"
        assert path.name in page.read_text(), f"no row of {page.name} links {path}"


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_figures_are_computed_anew(path):
    checked = run_check(None, {"resume": path})
    assert checked.law is not None or checked.greedy is not None or checked.modes
