"""The driver of a run over a real folder, with work that makes records up."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from spsbench.benchmark import maker
from spsbench.benchmark.jobs import EMPTY, Job, jobs, key
from spsbench.benchmark.maker import Maker, RecordMaking, UnitRecords
from spsbench.benchmark.models import Models
from spsbench.benchmark.units import units_of
from spsbench.errors import MismatchError, UnavailableError
from spsbench.messages import lines_to
from spsbench.methods.resolve import resolve
from spsbench.models.cache import ModelCache
from spsbench.settings.cell_from_options import make_cell
from spsbench.settings.execution import Access, Workers
from spsbench.settings.records import RoundRecord
from spsbench.settings.task import Sample
from spsbench.store.log import iterate
from spsbench.store.manifest import Manifest
from spsbench.store.records import placed_records
from spsbench.store.run import open_run
from spsbench.store.starts import Provenance
from spsbench.workers.environment import check_environment
from tests.oracles.jobs import ARS, BASE, EXPERIMENT, Kept, carry_out, part
from tests.workers.inline import inline

SAMPLES = [Sample(f"s/{n}", "the cat") for n in range(12)]
SAME = {"python": "3.11"}
MACHINES = [Provenance(hardware={"cpu": f"cpu {n}"}, threads=1) for n in (1, 2)]
PART = part(ARS, BASE, samples=2)
RUN = replace(EXPERIMENT, parts=(PART,))
ROUND = RoundRecord(0, 0, 0, 1, None, 0.1, 0.0, 0.1)


def made(job):
    return replace(
        EMPTY,
        cell=job.cell.id,
        sample=job.sample.id,
        repeat=job.repeat,
        prompt_tokens=3,
        tokens=[7],
        text="a",
        finish="length",
        rounds=[ROUND],
    )


@dataclass(frozen=True)
class MadeUp:
    """Makes records up, as if on two machines; `spoilt` samples fail."""

    spoilt: tuple[str, ...] = ()
    expected: Any = None
    here: Any = None

    def prepare(self):
        check_environment(self.expected, self.here)

    def __call__(self, unit):
        if any(job.sample.id in self.spoilt for job in unit.jobs):
            raise ValueError("spoilt")
        return UnitRecords(list(map(made, unit.jobs)), MACHINES[unit.jobs[0].repeat % 2], {})


@pytest.fixture
def conducted(tmp_path, monkeypatch):
    def conduct(*, dies=lambda unit: False, spoilt=(), here=SAME, stop=lambda: False):
        def made_up(work):
            return MadeUp(spoilt, work.expected, here)

        inline(monkeypatch, dies, made_up)
        monkeypatch.setattr(maker, "environment", lambda folders: SAME)
        monkeypatch.setattr(maker, "folders_for", lambda *_: {})
        manifest = Manifest(
            experiment=RUN.described(),
            cells={cell.id: cell.to_json() for cell in RUN.cells},
            fingerprint={"a": 1},
        )
        lines = []
        with open_run(tmp_path / "run", manifest, resume=True) as writer, lines_to(lines.append):
            making = RecordMaking(
                experiment=RUN,
                samples=[SAMPLES],
                writer=writer,
                watch=lambda progress: None,
                stop=lambda: stop() or bool(writer.count > 20 and stop is halfway),
            )
            making.make(Workers(on="processes:2"), Access(), Models(ModelCache()))
        return tmp_path / "run", lines

    return conduct


def halfway():
    return False


EVERY = sorted(key(job) for job in jobs(PART, SAMPLES, RUN.seed))


def keys(folder):
    return sorted(placed.record.key for placed in placed_records(folder))


def test_every_record_once_and_of_its_machine(conducted):
    folder, _ = conducted()
    assert keys(folder) == EVERY
    lines = list(iterate(folder / "records-00-of-01.jsonl"))
    written = [line for line in lines if "start" not in line]
    assert {line["machine"] for line in written} == {machine.machine for machine in MACHINES}
    for placed, line in zip(placed_records(folder), written, strict=True):
        assert placed.start.machine == placed.start.provenance.machine == line["machine"]


def test_the_arms_of_a_prompt_are_made_by_one_worker_in_their_order():
    every = list(jobs(PART, SAMPLES, RUN.seed))
    units = list(units_of(every, SAMPLES, []))
    assert len(units) == 24
    assert [job for unit in units for job in unit.jobs] == every
    assert all(len({(job.sample.id, job.repeat) for job in u.jobs}) == 1 for u in units)


def test_a_conversation_is_one_unit_and_knows_its_answers():
    turns = [Sample("c", "hi"), Sample("c turn 2", "and?", after="c")]
    begun = Job(ARS, turns[0], 0)
    units = list(units_of([j for j in jobs(PART, turns, 0) if j != begun], turns, [made(begun)]))
    assert [len(unit.jobs) for unit in units] == [3, 4]
    assert units[0].turns == tuple(turns)
    assert [record.key for record in units[0].answers] == [key(begun)]
    assert not units[1].answers
    for unit in units:
        assert [job.sample.id for job in unit.jobs] == sorted(job.sample.id for job in unit.jobs)


def test_stopped_or_lost_and_resumed_it_ends_up_whole(conducted):
    folder, _ = conducted(stop=halfway)
    stopped = keys(folder)
    with pytest.raises(UnavailableError):
        conducted(dies=lambda unit: unit.jobs[0].sample.id == "s/9")
    lost = keys(folder)
    assert 0 < len(stopped) < len(lost) < len(EVERY)
    conducted()
    assert keys(folder) == EVERY


def test_a_unit_that_fails_is_in_the_run_with_its_error(conducted):
    folder, said = conducted(spoilt=("s/4",))
    failed = [p.record for p in placed_records(folder) if p.record.error is not None]
    assert sorted(record.key for record in failed) == [k for k in EVERY if k[1] == "s/4"]
    assert {record.error for record in failed} == {"ValueError: spoilt"}
    assert keys(folder) == EVERY
    assert any("gave up s/4" in line for line in said)


def test_a_worker_of_another_environment_is_refused_field_by_field(conducted):
    with pytest.raises(MismatchError):
        conducted(here={"python": "3.12"})


def test_workers_and_this_process_make_records_with_the_same_fields(monkeypatch):
    options = {"target": "nano-draft", "weights": "int8", "engine": "eager", "max_new_tokens": 6}
    cells = [resolve(make_cell(**options, **more)) for more in ({"k": 0}, {"schedule": "ema"})]
    one, experiment = part(*cells, samples=1), replace(EXPERIMENT, warmup=1)
    samples, models, store = SAMPLES[:2], Models(ModelCache(Access(offline=True))), Kept()
    warmed = []
    monkeypatch.setattr(
        "spsbench.benchmark.maker.warm_depths", lambda cell, *_: warmed.append(cell)
    )
    carry_out(one, samples, models, store, experiment=experiment)
    work = Maker(cells=cells, access=Access(offline=True), warmup=1)
    on_workers = [
        record
        for unit in units_of(list(jobs(one, samples, experiment.seed)), samples, [])
        for record in work(unit).records
    ]
    here, there = ({r.key: r.to_json().keys() for r in rs} for rs in (store.records, on_workers))
    assert here == there
    assert all("distance" in keys for keys in here.values())
    assert sorted(c.id for c in warmed) == sorted(cell.id for cell in [*cells, *cells])
