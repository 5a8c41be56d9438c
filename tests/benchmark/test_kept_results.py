"""Results in the repository are of the weights in the repository."""

import json
from pathlib import Path

import pytest

import spsbench
from spsbench.settings.cell import Cell
from spsbench.store.provenance import fields_of_cells
from spsbench.store.records import records
from tests.golden.make import GOLDEN

RESULTS = Path(__file__).parents[2] / "results"
TEXTS = 4
KEPT_RUNS = (*sorted(RESULTS.glob("*/manifest.json")), *sorted(GOLDEN.glob("*/manifest.json")))
NEWER = {f"cells.{name}" for name in ("json_schema", "leave_open", "regex", "grammar")}
"""Fields that the oldest kept runs lack; today's fingerprints name them."""


def texts_of(folder: Path, cells=None) -> dict:  # with (drafted, tested, accepted, emitted)
    return {
        (record.cell, record.sample): (record.tokens, [played[:4] for played in record.rounds])
        for record in records(folder)
        if cells is None or record.cell in cells
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


@pytest.mark.parametrize("path", KEPT_RUNS, ids=lambda path: path.parent.name)
def test_cells_of_kept_runs_have_their_ids_and_fields(path):
    manifest = json.loads(path.read_text())
    cells = {name: Cell.from_json(values) for name, values in manifest["cells"].items()}
    assert [cell.id for cell in cells.values()] == list(cells)
    for number, part in enumerate(manifest["experiment"]["parts"]):
        if part["cells"]:
            prefix = f"part{number}."
            kept = {
                name.removeprefix(prefix): values
                for name, values in manifest["fingerprint"].items()
                if name.startswith(f"{prefix}cells.")
            }
            now = fields_of_cells([cells[name] for name in part["cells"]])
            assert {n: v for n, v in now.items() if n in kept or n not in NEWER} == kept
