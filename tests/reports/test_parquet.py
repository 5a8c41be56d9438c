"""Parquet: the records as they are, a row a generation and a row a round."""

import io
from dataclasses import replace

import pyarrow.parquet

from spsbench.reports.parquet import parquet
from tests.reports.pages import HOSTILE, cells, report_of, simulated


def test_rows_are_the_records():
    records = simulated(samples=3)
    records[0] = replace(records[0], text=HOSTILE[6], flags=("first",), group="a")
    made = pyarrow.parquet.read_table(io.BytesIO(parquet(report_of(records, cells())))).to_pylist()
    whole = [row for row in made if row["kind"] == "generation"]
    rounds = [row for row in made if row["kind"] == "round"]
    assert len(whole) == len(records)
    assert len(rounds) == sum(len(each.rounds) for each in records)
    first = whole[0]
    assert (first["flags"], first["group"], first["round"]) == (["first"], "a", None)
    assert first["text"] == "half \\ud800 a pair \\udfff"
    for row, record in zip(whole, records, strict=True):
        assert row["tokens"] == record.tokens
        assert row["seconds"] == sum(r.seconds for r in record.rounds)
        own = [r for r in rounds if (r["cell"], r["sample"]) == (record.cell, record.sample)]
        assert [r["overlap"] for r in own] == [r.overlap for r in record.rounds]
        assert [r["round"] for r in own] == list(range(len(record.rounds)))


def test_a_part_of_a_run_is_not_written_twice():
    made = report_of(simulated(samples=2), cells())
    twice = replace(made, tables=[*made.tables, replace(made.tables[0], part=True)])
    assert parquet(twice) == parquet(made)
