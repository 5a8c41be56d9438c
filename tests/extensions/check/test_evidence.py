"""The kept answers behind rows of docs/audited: small, whole, and computed anew."""

from pathlib import Path

import pytest

from spsbench.extensions.check.journal import OPTIONS, Journal
from spsbench.extensions.check.library import recompute
from spsbench.extensions.check.plan import Plan

FOLDER = Path(__file__).parents[3] / "docs" / "audited" / "evidence"
FILES = sorted(FOLDER.rglob("*.jsonl.gz"))
MOST = 512 * 1024


def test_evidence_is_small_and_whole():
    for path in FILES:
        assert path.stat().st_size <= MOST, path
        journal = Journal.closed_of(path, lambda values: Plan.from_json(values, {}))
        assert len(journal) > 0
        assert OPTIONS in journal


def test_rows_link_evidence_that_is_there():
    for path in FILES:
        page = FOLDER.parent / "vllm.md"
        assert path.name in page.read_text(), f"no row of {page.name} links {path}"


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_figures_are_computed_anew(path):
    checked = recompute(path, {})
    assert checked.law is not None or checked.greedy is not None or checked.modes
