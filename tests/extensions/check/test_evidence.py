"""The kept answers behind rows of docs/audited: small, whole, and of the verdict of their row."""

from pathlib import Path

import pytest

from spsbench.audit.statistical.finding import AuditVerdict
from spsbench.extensions.check.check import run_check

FOLDER = Path(__file__).parents[3] / "docs" / "audited" / "evidence"
FILES = sorted(FOLDER.rglob("*.jsonl.gz"))
QUICK = ("ngram-modes", "plain-modes")
MOST = 512 * 1024


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=() if path.name.startswith(QUICK) else pytest.mark.slow)
        for path in FILES
    ],
    ids=lambda path: path.stem,
)
def test_kept_answers_give_the_verdict_of_their_row(path):
    lines = (FOLDER.parent / "vllm.md").read_text().splitlines()
    (row,) = [line for line in lines if line.startswith(f"| [{path.name.partition('.')[0]}]")]
    held = row.split("|")[-3].strip().startswith("HELD")
    assert run_check(None, {"resume": path}).verdict == (
        AuditVerdict.HELD if held else AuditVerdict.BIAS
    )
    assert path.stat().st_size <= MOST
