"""The driver of a run over a real folder, with work that makes records up."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from spsbench.benchmark import maker
from spsbench.benchmark.jobs import Job, part_jobs, units_of
from spsbench.benchmark.maker import Maker, RecordMaking, UnitRecords
from spsbench.benchmark.models import Models
from spsbench.errors import MismatchError, UnavailableError
from spsbench.methods.resolve import resolve
from spsbench.models.cache import ModelCache
from spsbench.settings.execution import Access, Workers
from spsbench.settings.grid import make_request
from spsbench.settings.records import RoundRecord
from spsbench.settings.task import Sample
from spsbench.store.manifest import Manifest
from spsbench.store.records import placed_records
from spsbench.store.run import open_run
from spsbench.store.starts import Provenance
from spsbench.workers.environment import check_same_environment
from tests.oracles.jobs import ARS, BASE, EXPERIMENT, part
from tests.simulation import record
from tests.workers.inline import inline

SAMPLES = [Sample(f"s/{n}", "the cat") for n in range(12)]
SAME = {"python": "3.11"}
MACHINES = [Provenance(hardware={"cpu": f"cpu {n}"}, threads=1) for n in (1, 2)]
PART = part(ARS, BASE, samples=2)
RUN = replace(EXPERIMENT, parts=(PART,))
ROUND = RoundRecord(0, 0, 0, 1, None, 0.1, 0.0, 0.1)


def made(job):
    return record(job.cell, job.sample.id, job.repeat, [ROUND], text="a")


@dataclass(frozen=True)
class MadeUp:
    """Makes records up, as if on two machines; the sample s/4 fails."""

    expected: Any
    environment: Any

    def prepare(self):
        check_same_environment(self.expected, self.environment)

    def __call__(self, unit):
        if unit.jobs[0].sample.id == "s/4":
            raise ValueError("spoilt")
        return UnitRecords(list(map(made, unit.jobs)), MACHINES[unit.jobs[0].repeat % 2], {})


@pytest.fixture
def conducted(tmp_path, monkeypatch):
    def conduct(*, dies=lambda unit: False, environment=SAME, most=1000):
        inline(monkeypatch, dies, lambda work: MadeUp(work.expected, environment))
        monkeypatch.setattr(maker, "describe_worker", lambda folders: SAME)
        monkeypatch.setattr(maker, "folders_for", lambda *_: {})
        manifest = Manifest(
            experiment=RUN.described(),
            cells={cell.id: cell.to_json() for cell in RUN.cells},
            fingerprint={"a": 1},
        )
        with open_run(tmp_path / "run", manifest, resume=True) as writer:
            making = RecordMaking(
                experiment=RUN,
                samples=[SAMPLES],
                writer=writer,
                watch=lambda progress: None,
                stop=lambda: writer.count > most,
            )
            making.make(Workers(on="processes:2"), Access(), Models(ModelCache()))
        return tmp_path / "run"

    return conduct


EVERY = sorted(job.key for job in part_jobs(PART, SAMPLES, RUN.seed))


def keys(folder):
    return sorted(placed.record.key for placed in placed_records(folder))


def test_stopped_or_lost_and_resumed_each_record_is_there_once_with_its_machine(conducted):
    folder = conducted(most=20)
    stopped = keys(folder)
    with pytest.raises(UnavailableError):
        conducted(dies=lambda unit: unit.jobs[0].sample.id == "s/9")
    lost = keys(folder)
    assert 0 < len(stopped) < len(lost) < len(EVERY)
    conducted()
    assert keys(folder) == EVERY
    everything = list(placed_records(folder))
    failed = [placed.record for placed in everything if placed.record.error is not None]
    assert sorted(record.key for record in failed) == [k for k in EVERY if k[1] == "s/4"]
    assert {record.error for record in failed} == {"ValueError: spoilt"}
    for placed in everything:
        if placed.record.error is None:
            assert placed.start.machine == MACHINES[placed.record.repeat % 2].machine


def test_the_arms_of_a_prompt_are_made_by_one_worker_in_their_order():
    every = list(part_jobs(PART, SAMPLES, RUN.seed))
    units = list(units_of(every, SAMPLES, []))
    assert len(units) == 24
    assert [job for unit in units for job in unit.jobs] == every
    assert all(len({(job.sample.id, job.repeat) for job in u.jobs}) == 1 for u in units)


def test_a_conversation_is_one_unit_and_knows_its_answers():
    turns = [Sample("c", "hi"), Sample("c turn 2", "and?", after="c")]
    begun = Job(ARS, turns[0], 0)
    units = list(
        units_of([j for j in part_jobs(PART, turns, 0) if j != begun], turns, [made(begun)])
    )
    assert [len(unit.jobs) for unit in units] == [3, 4]
    assert units[0].turns == tuple(turns)
    assert [record.key for record in units[0].answers] == [begun.key]
    assert not units[1].answers
    for unit in units:
        assert [job.sample.id for job in unit.jobs] == sorted(job.sample.id for job in unit.jobs)


def test_a_worker_of_another_environment_is_refused(conducted):
    with pytest.raises(MismatchError):
        conducted(environment={"python": "3.12"})


def test_a_worker_warms_up_each_depth_and_measures_the_distance(monkeypatch):
    options = {"target": "nano-draft", "weights": "int8", "engine": "eager", "max_new_tokens": 6}
    cells = [resolve(make_request(**options, **more)) for more in ({"k": 0}, {"schedule": "ema"})]
    warmed = []
    monkeypatch.setattr(
        "spsbench.benchmark.maker.warm_depths", lambda cell, *_: warmed.append(cell)
    )
    work = Maker(cells=cells, access=Access(offline=True), warmup=1)
    samples = SAMPLES[:2]
    units = units_of(list(part_jobs(part(*cells, samples=1), samples, 0)), samples, [])
    records = [made for unit in units for made in work(unit).records]
    assert all("distance" in made.to_json() for made in records)
    assert sorted(c.id for c in warmed) == sorted(cell.id for cell in cells)
