"""What is on disk changes only with a new schema number, and what is kept is read."""

import json
import shutil
from dataclasses import fields, replace

import pytest

from spsbench.errors import DataError
from spsbench.metrics.intervals import Estimate
from spsbench.metrics.summaries import Summary
from spsbench.reports.run_tables import run_table
from spsbench.settings.records import DraftProbs, Record, RoundRecord, Score
from spsbench.store.manifest import RUN_SCHEMA, Manifest
from spsbench.store.records import records
from tests.golden import make
from tests.golden.make import GOLDEN, KEPT

FIGURES = "a figure changed: keep it with `python -m tests.golden.make --figures`, no schema does"
NEW = "a field changed: count RUN_SCHEMA up, then keep new files: `python -m tests.golden.make`"
DOCS = GOLDEN.parents[1] / "docs" / "reference" / "records.md"


@pytest.fixture(scope="module")
def now(tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden") / "run"
    make.write(folder)
    return folder


def shape(value):
    """Names and types of a value of JSON; intervals may be there or not, remarks are any number."""
    if isinstance(value, dict):
        if value.keys() - {"loaded"} == set(Estimate._fields) - {"loaded"}:
            return "estimate"
        return {name: shape(inside) for name, inside in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(text, str) for text in value):
            return "texts"
        return [shape(inside) for inside in value]
    return type(value).__name__


@pytest.mark.parametrize("name", KEPT)
def test_every_field_is_as_this_schema_has_it(now, name):
    written, kept = (folder / name for folder in (now, GOLDEN / str(RUN_SCHEMA)))
    if name.endswith(".jsonl"):
        lines, kept_lines = (path.read_bytes().splitlines() for path in (written, kept))
        if name.startswith("records"):  # the first is of the start, which has a time
            assert shape(json.loads(lines.pop(0))) == shape(json.loads(kept_lines.pop(0))), NEW
        assert lines == kept_lines, NEW
    else:
        found, known = (json.loads(path.read_text()) for path in (written, kept))
        found.pop("crc", None)  # of a manifest: the kept one was written without
        assert shape(found) == shape(known), FIGURES if name == "summary.json" else NEW


def test_the_kept_run_has_every_field():
    lines = (GOLDEN / str(RUN_SCHEMA) / "records-00-of-01.jsonl").read_text().splitlines()
    found = {name for line in lines for name in json.loads(line)}
    assert found == {field.name for field in fields(Record)} | {"n", "start", "attempt", "crc"}


def test_the_kept_run_is_read_as_it_was_made():
    folder = GOLDEN / str(RUN_SCHEMA)
    cells = Manifest.load(folder).configurations(folder)
    assert list(cells.values()) == make.cells()
    read, written = (sorted(each, key=key) for each in (records(folder), make.records()))
    assert [record.to_json() for record in read] == [record.to_json() for record in written]
    table = run_table(folder)
    saved = json.loads((folder / "summary.json").read_text())["rows"]
    assert [row["id"] for row in saved] == [row.cell.id for row in table.rows]
    for ours, theirs in zip(saved, table.rows, strict=True):
        for name, figure in theirs.figures.items():
            kept = ours["metrics"][name]  # intervals are not a matter of the schema
            assert (kept is None) == (figure is None), name
            if figure is not None:
                assert kept["mean"] == pytest.approx(figure.mean), name
                assert kept["n"] == figure.n, name


def key(record):
    return record.key


@pytest.mark.parametrize("schema", [RUN_SCHEMA - 1, RUN_SCHEMA + 1])
def test_another_schema_is_refused_in_one_line(now, tmp_path, schema):
    copy = shutil.copytree(now, tmp_path / "copy")
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps(manifest | {"schema": schema}))
    with pytest.raises(
        DataError, match=rf"schema {schema} \(.*expected schema {RUN_SCHEMA}\. .*anew$"
    ):
        run_table(copy)


def test_a_cell_under_the_id_of_another_is_refused(now, tmp_path):
    copy = shutil.copytree(now, tmp_path / "copy")
    values = json.loads((copy / "manifest.json").read_text().replace("0.8", "0.7", 1))
    del values["crc"]
    (copy / "manifest.json").write_text(json.dumps(values))
    with pytest.raises(DataError, match=r"foreign cell .* has the fields of"):
        run_table(copy)


def test_a_planted_change_is_seen(tmp_path, monkeypatch):
    written = Record.to_json
    monkeypatch.setattr(Record, "to_json", lambda self: written(replace(self, group="other")))
    make.write(tmp_path / "run")
    with pytest.raises(AssertionError, match="count RUN_SCHEMA up"):
        test_every_field_is_as_this_schema_has_it(tmp_path / "run", "records-00-of-01.jsonl")


def test_every_field_is_explained():
    text = DOCS.read_text()
    names = [field.name for kind in (Record, Score, Summary) for field in fields(kind)]
    names += [*RoundRecord._fields, *DraftProbs._fields, *json.loads(
        (GOLDEN / str(RUN_SCHEMA) / "manifest.json").read_text()
    )]  # fmt: skip
    names += json.loads((GOLDEN / str(RUN_SCHEMA) / "summary.json").read_text())["rows"][0]
    renamed = {"spread", "measured"}  # `spread_ms`, and figures that have names of their own
    assert not [name for name in names if f"`{name}`" not in text and name not in renamed]
