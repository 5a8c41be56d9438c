"""A small run with every field in it: `python -m tests.golden.make` keeps it for this schema.

Do so once for each new `RUN_SCHEMA`, the number of manifests and of the lines of logs:
`test_schema.py` compares with it. `--figures` makes the summary alone anew, which is computed from
the kept lines: a new figure changes no schema.
"""

import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from spsbench.reports.run_tables import report_on
from spsbench.reports.text import json
from spsbench.settings.cell import Cell
from spsbench.settings.models import ModelSpec
from spsbench.settings.records import DraftProbs, Record, Score
from spsbench.spec import Spec
from spsbench.store.atomic import replace_file
from spsbench.store.manifest import RUN_SCHEMA, Manifest
from spsbench.store.run import open_run
from spsbench.store.run_folder import WHOLE
from spsbench.store.starts import Provenance
from spsbench.tasks.scores import write_scores
from tests.simulation import cell, failure, run

GOLDEN = Path(__file__).parent
KEPT = ("manifest.json", "records-00-of-01.jsonl", "scores-00-of-01.jsonl", "summary.json")
PART = {
    "title": "three articles",
    "task": "xsum",
    "prompt_version": "1",
    "metrics": [],
    "limit": None,
    "samples": 1,
    "repeats": 1,
    "cells": [],
}


def cells() -> list[Cell]:
    # The engine is named: what is on disk must not change with a default.
    engine = Spec("eager")
    target, draft = ModelSpec("large", "main", engine=engine), ModelSpec("small", engine=engine)
    nucleus = {"top_p": 0.8, "target": target, "max_new_tokens": 8}
    laws = Spec("native", (("laws", True),))
    return [cell(0, **nucleus), cell(4, **nucleus, draft=draft, decoder=laws)]


def records() -> list[Record]:
    made = []
    for number, of in enumerate(cells()):
        for place, one in enumerate(run(of, 0.7, 3)):
            changed = replace(one, text="é", group="news", prompt_cut=place == 1)
            if number and place == 0:
                laws = [DraftProbs([7] * r.drafted, [0.5] * r.drafted, [0.25] * r.drafted)
                        for r in one.rounds]  # fmt: skip
                seen = [2.5] * len(one.rounds)
                changed = replace(changed, flags=("first",), laws=laws, distance=0.5, experts=seen)
                changed = replace(changed, peak_memory_mib=1234.5, peak_gpu_mib=234.5)
                changed = replace(changed, machine_seconds=0.5, empty_seconds=0.125)
                changed = replace(changed, masks=4, mask_seconds=0.25, forced=1, closed=1)
                changed = replace(changed, removed_nats=0.5, thinking=True)
            made.append(changed)
        made.append(failure(of, "s3"))
    return made


def write(folder: Path) -> None:
    """The run with its scores and its summary."""
    manifest = Manifest(
        experiment={"title": "golden", "parts": [PART]},
        cells={of.id: of.to_json() for of in cells()},
        fingerprint={"seed": 0},
        created=datetime(2026, 1, 1, tzinfo=UTC),
    )
    with open_run(folder, manifest) as writer:
        writer.start(Provenance(hardware={"cpu": "made up"}))
        for record in records():
            writer.append(record)
    good = [record for record in records() if record.error is None]
    scores = [Score(*record.key, {"rouge2": 10.0 + i}) for i, record in enumerate(good)]
    write_scores(folder, WHOLE, scores)
    summarise(folder)


def summarise(folder: Path) -> None:
    """The summary of the run in a folder, which its lines and scores say."""
    replace_file(folder / "summary.json", json(report_on([folder], paper=True)).encode("ascii"))


if __name__ == "__main__":
    if "--figures" in sys.argv:
        summarise(GOLDEN / str(RUN_SCHEMA))
    else:
        write(GOLDEN / str(RUN_SCHEMA))
    for path in (GOLDEN / str(RUN_SCHEMA)).iterdir():
        if path.name not in KEPT:
            path.unlink()
