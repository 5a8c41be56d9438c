"""The kept answers behind rows of docs/evidence: small, whole, and of the verdict of their row."""

import csv
from pathlib import Path

import pytest

from spsbench.audit.statistical.finding import AuditVerdict
from spsbench.extensions.check.check import run_check

FOLDER = Path(__file__).parents[3] / "docs" / "evidence"
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
    with (FOLDER / f"{path.parent.name}.csv").open(encoding="utf-8") as table:
        verdicts = {row["row"]: row["verdict"] for row in csv.DictReader(table)}
    words = verdicts[path.name.partition(".")[0]].partition(" ")[0].rstrip(",")
    expected = {"HELD": AuditVerdict.HELD, "no": AuditVerdict.UNKNOWN}
    assert run_check(None, {"resume": path}).verdict is expected.get(words, AuditVerdict.BIAS)
    assert path.stat().st_size <= MOST
