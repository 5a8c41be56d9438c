"""Reports of interrupted runs: how much is there stands first, in every format."""

import csv as reader
import io
import json as decoder
import random
from dataclasses import replace

import pytest

from spsbench.reports.html import html
from spsbench.reports.run_tables import report_on
from spsbench.reports.table import report_text
from spsbench.reports.text import csv, json, latex, report_markdown
from spsbench.store.manifest import Manifest
from spsbench.store.progress import progress_of
from spsbench.store.run import merge_runs, open_run
from tests.golden.make import PART
from tests.simulation import cell, failure, record, rounds

SAMPLES = [f"s{number}" for number in range(12)]
SWEEP = [cell(k) for k in (0, 2, 4)]
GREEDY = [cell(k, temperature=0.0) for k in (0, 4)]
IN_BATCHES = [cell(k, batch=8) for k in (0, 4)]


def part(cells, **sizes):
    return {**PART, "title": "12 prompts", "cells": [of.id for of in cells], **sizes}


def begun(folder, cells, parts, count, *, fails=(), shard=(0, 1), still=False):
    """A run of which the first `count` generations are made; those in `fails` failed.

    `still`: no clock moved in a round.
    """
    manifest = Manifest(
        experiment={"title": "", "parts": parts, "samples": {"xsum": SAMPLES}},
        cells={of.id: of.to_json() for of in cells},
        fingerprint={"seed": 0},
    )
    keys = [(of, sample, repeat) for sample in SAMPLES for repeat in range(6) for of in cells]
    with open_run(folder, manifest, shard=shard) as writer:
        for number, (of, sample, repeat) in enumerate(
            key for key in keys if writer.is_missing((key[0].id, *key[1:])) and planned(key, parts)
        ):
            if number < count:
                made = record(of, sample, repeat, rounds(random.Random(0), of.k or 0, 0.7, 12))
                if still:
                    no_time = dict.fromkeys(("seconds", "draft_seconds", "target_seconds"), 0.0)
                    made = replace(made, rounds=[r._replace(**no_time) for r in made.rounds])
                writer.append(failure(of, sample, repeat) if number in fails else made)
    return folder


def planned(key, parts):
    of, sample, repeat = key
    return any(
        of.id in each.get("cells", ())
        and sample in SAMPLES[: each["limit"]]
        and repeat < each["repeats"] * (each["samples"] if of.temperature else 1)
        for each in parts
    )


SAMPLED = [part(cells, samples=3, limit=4) for cells in (SWEEP, GREEDY)]
TWO_PARTS = [part(SWEEP, limit=2), part(SWEEP[:2], limit=4)]
CASES = {
    "repeats": (SWEEP, [part(SWEEP, repeats=2)], (), "7 of 72 generations"),
    "samples of sampled texts": ([*SWEEP, *GREEDY], SAMPLED, (), "11 of 44 generations"),
    "a cell in two parts": (SWEEP, TWO_PARTS, (), "3 of 10 generations"),
    "failures are made": (SWEEP, [part(SWEEP)], (0, 1), "7 of 36 generations"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_missing_is_told(tmp_path, name):
    cells, parts, fails, expected = CASES[name]
    done, _, planned, _ = expected.split()
    run = begun(tmp_path / "run", cells, parts, int(done), fails=fails)
    assert str(progress_of(run)) == expected
    whole = progress_of(begun(tmp_path / "whole", cells, parts, 1000, fails=fails))
    assert whole.done == whole.total == int(planned)


def test_every_format_tells_it_first(tmp_path, undrawn):
    run = begun(tmp_path / "run", SWEEP, [part(SWEEP, repeats=2)], 7)
    made = report_on([run])
    lead = "Incomplete: 7 of 72 generations."
    assert report_markdown(made).partition("\n\n- ")[2].startswith(lead)
    content = decoder.loads(json(made))
    assert (content["done"], content["planned"]) == (7, 72)
    assert content["remarks"][0].startswith(lead)
    rows = list(reader.DictReader(io.StringIO(csv(made))))
    assert [(row["n"], row["planned"]) for row in rows] == [("3", "24"), ("2", "24"), ("2", "24")]
    page = html(made)
    head, _, answer = page.partition("The answer")
    assert f'<p class="lack">{lead}' in head
    assert "The run is incomplete: 7 of 72 generations" in answer.partition("</article>")[0]
    whole = begun(tmp_path / "whole", SWEEP, [part(SWEEP)], 36)
    assert "ncomplete" not in json(report_on([whole])) + report_markdown(report_on([whole]))
    both = report_on([run, whole])
    assert both.title == "run (incomplete: 7 of 72 generations), whole"


def test_rounds_without_a_time_are_shown_without_one(tmp_path, undrawn):
    cells = [*SWEEP, *IN_BATCHES]
    still, timed = (
        begun(tmp_path / name, cells, [part(cells)], 1000, still=name == "still")
        for name in ("still", "timed")
    )
    for runs, forms in ([still], ()), ([still, timed], (html,)):
        made = report_on(runs)
        for form in (report_markdown, latex, report_text, csv, *forms):
            assert "nan" not in form(made).lower().replace("nano", "")
        assert "NaN" not in json(made)
    rows = report_on([still]).tables[0].whole
    assert all(row.mean_token_time_ms is row.loop_time_ms is row.speedup is None for row in rows)
    assert all(row.block_efficiency.mean >= 1 for row in rows)


def test_shards_lack_what_others_have_until_they_are_merged(tmp_path):
    parts = [part(SWEEP)]
    shards = [
        begun(tmp_path / f"shard{number}", SWEEP, parts, 1000, shard=(number, 2))
        for number in range(2)
    ]
    counts = [progress_of(shard).done for shard in shards]
    assert sum(counts) == 36
    remark = report_on([shards[0]]).tables[0].remarks[0]
    assert remark == (
        f"Incomplete: {counts[0]} of 36 generations. The others belong to shards that have not "
        "started."
    )
    merge_runs(shards, tmp_path / "merged")
    assert progress_of(tmp_path / "merged").whole
    half = begun(tmp_path / "half", SWEEP, parts, 3, shard=(0, 2))
    assert "Continue with: sps bench" in progress_of(half).remark
    merge_runs([half, shards[1]], tmp_path / "lacking")
    remark = report_on([tmp_path / "lacking"]).tables[0].remarks[0]
    assert remark.startswith(f"Incomplete: {3 + counts[1]} of 36 generations. Continue with:")
