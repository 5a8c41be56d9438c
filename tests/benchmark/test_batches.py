"""A benchmark in batches: the texts of each prompt alone, in any batch, stopped and resumed."""

import json
from pathlib import Path
from typing import Any

import pytest

from spsbench.benchmark.jobs import Job, groups
from spsbench.errors import OutOfMemoryError, UsageError
from spsbench.pair.load import load
from spsbench.pair.pair import Pair
from spsbench.settings.records import Record
from spsbench.settings.task import Sample
from spsbench.store.records import records
from tests.folders import random_model, save
from tests.simulation import cell

PROMPTS = 5
ASKED: dict[str, Any] = {"max_new_tokens": 8, "k": 2, "warmup": 0, "temperature": 1.0}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("models")
    target = save(folder / "target", random_model())
    draft = save(folder / "draft", random_model(noise=0.1))
    made: Pair = load(target=str(target), draft=str(draft), engine="eager")
    return made


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("data") / "prompts.jsonl"
    lines = [{"id": f"p{n}", "prompt": "the cat " * (n % 3) + "x"} for n in range(PROMPTS)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f"jsonl:path={file}"


def by_batch(folder: Path, pair: Pair) -> dict[tuple[int, bool, int], dict[str, Record]]:
    """(batch, continuous, K) -> sample -> its record."""
    cells = json.loads((folder / "manifest.json").read_text())["cells"]
    found: dict[tuple[int, bool, int], dict[str, Record]] = {}
    for record in records(folder):
        of = cells[record.cell]
        how = of.get("batch", 1), of.get("continuous", False), 0 if of["draft"] is None else 2
        found.setdefault(how, {})[record.sample] = record
    return found


def test_texts_are_the_same_in_every_batch_after_a_stop_and_a_resume(
    pair: Pair, task: str, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    how = {"out": str(out), "batch": "1,3", **ASKED}
    seen: list[Any] = []

    def watch(pace: Any) -> None:
        seen.append(pace.done)
        if pace.done == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pair.bench(task, watch=watch, **how)
    kept = {record.key: record for record in records(out)}
    assert len(kept) == 9
    run = pair.bench(task, resume=True, **how)
    found = by_batch(out, pair)
    assert {how: len(own) for how, own in found.items()} == {
        (batch, False, k): PROMPTS for batch in (1, 3) for k in (0, 2)
    }
    assert all(record in list(records(out)) for record in kept.values())
    for k in 0, 2:
        alone, rows = found[1, False, k], found[3, False, k]
        assert {name: r.tokens for name, r in alone.items()} == {
            name: r.tokens for name, r in rows.items()
        }
        assert all(r.machine_seconds is None for r in alone.values())
        assert all(
            0 < (r.machine_seconds or 0) < 3 * r.prefill_seconds + sum(t.seconds for t in r.rounds)
            for r in rows.values()
        )
    figures = {row["options"]: row for row in run.rows() if row["k"] == 2}
    assert figures["batch 3"]["machine_tokens_per_s"] > 0 < figures[""]["machine_tokens_per_s"]
    assert 0 < figures["batch 3"]["empty_rows"] < 1
    assert figures[""]["empty_rows"] == 0
    assert figures["batch 3"]["block_efficiency"] == figures[""]["block_efficiency"]


@pytest.mark.slow
def test_a_continuous_batch_makes_the_texts_of_a_static_one(
    pair: Pair, task: str, tmp_path: Path
) -> None:
    texts = []
    for continuous in False, True:
        asked = ASKED | {"method": ("sps",), "batch": "3", "continuous": continuous}
        run = pair.bench(task, out=str(tmp_path / str(continuous)), **asked)
        texts.append({r.sample: r.tokens for r in records(run.folder)})
    assert texts[0] == texts[1]


def test_groups_hold_the_jobs_of_one_batch_and_later_turns_wait() -> None:
    def sample(number: int, after: str | None = None) -> Sample:
        return Sample(id=f"s{number}", prompt="x", after=after)

    samples = [sample(0), sample(1, "s0"), sample(2), sample(3), sample(4)]
    alone, three = cell(2), cell(2).but(batch=3)
    jobs = [Job(each, s, 0) for s in samples for each in (three, alone)]
    told = [(g[0].cell.batch, [job.sample.id for job in g]) for g in groups(jobs)]
    assert told == [
        (3, ["s0", "s2"]),
        *((1, [name]) for name in ("s0", "s2")),
        (3, ["s3", "s4"]),
        *((1, [name]) for name in ("s3", "s4")),
        (3, ["s1"]),
        (1, ["s1"]),
    ]
    continuous = [Job(three.but(continuous=True), s, 0) for s in samples if s.after is None]
    assert [len(group) for group in groups(continuous)] == [4]


def test_what_a_batch_cannot_do_is_refused(
    pair: Pair, task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = {"out": str(tmp_path / "run")}
    with pytest.raises(UsageError):
        pair.bench(task, batch="2", decoder="hf", **ASKED, **out)
    with pytest.raises(UsageError):
        pair.bench(task, batch="0", **ASKED, **out)
    with pytest.raises(UsageError):
        pair.bench(task, batch="2", on="processes:2", **ASKED, **out)
    monkeypatch.setattr("spsbench.generation.ram", lambda: (1 << 20, 1 << 14))
    with pytest.raises(OutOfMemoryError):
        pair.bench(task, batch="2", **ASKED, **out)
    assert not (tmp_path / "run").exists()
