"""A small run with every field in it: `python -m tests.golden.make` keeps it for this schema.

Do so once for each new `SCHEMA`, never again: `test_schema.py` compares what is written with it.
"""

from dataclasses import asdict, replace
from pathlib import Path

from spsbench.digest import tables
from spsbench.reports.json import json
from spsbench.results import SCHEMA, Cell, DraftLaws, ModelRef, Record, Score, Spec
from spsbench.scores import write_scores
from spsbench.store.atomic import replace_file
from spsbench.store.folder import WHOLE
from spsbench.store.manifest import Manifest
from spsbench.store.run import open_run
from tests.simulation import cell, failure, run

GOLDEN = Path(__file__).parent
KEPT = ("manifest.json", "records-00-of-01.jsonl", "scores-00-of-01.jsonl", "summary.json")


def cells() -> list[Cell]:
    # The engine is named: what is on disk must not change with a default.
    engine = {"engine": Spec("eager")}
    nucleus = {"top_p": 0.8, "target": ModelRef("large", "main"), "max_new_tokens": 8, **engine}
    return [cell(0, **nucleus), cell(4, **nucleus, decoder=Spec("native", (("laws", True),)))]


def records() -> list[Record]:
    made = []
    for number, of in enumerate(cells()):
        for place, one in enumerate(run(of, 0.7, 3)):
            changed = replace(one, text="é", group="news", prompt_cut=place == 1)
            if number and place == 0:
                laws = [DraftLaws([7] * r.drafted, [0.5] * r.drafted, [0.25] * r.drafted)
                        for r in one.rounds]  # fmt: skip
                changed = replace(changed, flags=("first",), laws=laws)
            made.append(changed)
        made.append(failure(of, "s3"))
    return made


def write(folder: Path) -> None:
    """The run with its scores and its summary."""
    manifest = Manifest(
        experiment={"title": "golden", "parts": [{"title": "three articles"}]},
        cells={of.id: asdict(of) for of in cells()},
        fingerprint={"seed": 0},
        provenance={"hardware": {"cpu": "made up"}},
        created="2026-01-01T00:00:00+00:00",
    )
    with open_run(folder, manifest) as writer:
        for record in records():
            writer.append(record)
    good = [record for record in records() if record.error is None]
    scores = [Score(*record.key, {"rouge2": 10.0 + i}) for i, record in enumerate(good)]
    write_scores(folder, WHOLE, scores)
    (table,) = tables(folder)
    replace_file(folder / "summary.json", json(table.rows, table.title))


if __name__ == "__main__":
    write(GOLDEN / str(SCHEMA))
    for path in (GOLDEN / str(SCHEMA)).iterdir():
        if path.name not in KEPT:
            path.unlink()
