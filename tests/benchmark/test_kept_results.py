"""Results in the repository are of the weights in the repository."""

import json
from pathlib import Path

import pytest

import spsbench

RESULTS = Path(__file__).parents[2] / "results"
TEXTS = 4


def texts_of(folder: Path, cells=None) -> dict:  # with (drafted, tested, accepted, emitted)
    lines = (folder / "records-00-of-01.jsonl").read_text().splitlines()
    return {
        (record["cell"], record["sample"]): (record["tokens"], [r[:4] for r in record["rounds"]])
        for record in map(json.loads, lines)
        if "tokens" in record and (cells is None or record["cell"] in cells)
    }


@pytest.mark.needs_fast
def test_texts_of_table_1_come_out_of_the_bundled_pair(tmp_path):
    spsbench.bench(
        "xsum:data=mini",
        target="nano",
        draft="nano-draft",
        method="sps",
        setting="greedy",
        k=4,
        limit=TEXTS,
        out=tmp_path / "run",
    )
    texts = texts_of(tmp_path / "run")
    kept = texts_of(RESULTS / "table1-nano", {cell for cell, _ in texts})
    assert len(texts) == TEXTS
    assert sum(kept.get(key) == text for key, text in texts.items()) >= TEXTS - 1  # a near tie
