"""Jobs of a small experiment."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from spsbench.benchmark.maker import RecordMaking
from spsbench.methods.resolve import resolve
from spsbench.settings.cell import CellRequest
from spsbench.settings.execution import Access, Workers
from spsbench.settings.experiment import Experiment, TaskPart
from spsbench.settings.models import ModelSpec
from spsbench.settings.records import Record
from spsbench.settings.task import Fits, Sample
from spsbench.spec import Spec


class Numbered:
    """A task of a few prompts."""

    name, title, prompt_version = "numbered", "numbered prompts", "1"
    max_new_tokens = 8
    stop: tuple[str, ...] = ()
    metrics = ("length",)

    def samples(self, fits: Fits) -> Iterator[Sample]:
        for number in range(5):
            yield Sample(f"s/{number}", f"the cat {number}", group="even" if number % 2 else None)

    def score(self, sample: Sample, completion: str) -> dict[str, float]:
        return {"length": float(len(completion))}

    @staticmethod
    def combine(scores) -> dict[str, list[float]]:
        return {}


class Kept:
    """A writer that keeps records in a list."""

    folder = Path("run")

    def __init__(self) -> None:
        self.records: list[Record] = []

    def note(self, **facts: object) -> None:
        pass

    def is_missing(self, key: tuple[str, str, int]) -> bool:
        return key not in {record.key for record in self.records}

    def append(self, record: Record, machine: str | None = None) -> None:
        assert self.is_missing(record.key)
        self.records.append(record)


TARGET, DRAFT = (ModelSpec(name, engine=Spec("eager")) for name in "td")
BASE = resolve(CellRequest(target=TARGET, draft=DRAFT, max_new_tokens=8, ignore_eos=True))
ARS = BASE.auto_regressive
EXPERIMENT = Experiment(parts=(), seed=3, warmup=1)


def part(*cells, **changes):
    made = TaskPart(
        spec=Spec("numbered"), task=Numbered(), cells=cells, limit=None, samples=1, repeats=1
    )
    return replace(made, **changes)


def carry_out(one, samples, models, writer, *, experiment, stop=lambda: False):
    RecordMaking(
        experiment=replace(experiment, parts=(one,)),
        samples=[samples],
        writer=writer,
        watch=lambda progress: None,
        stop=stop,
    ).make(Workers(), Access(), models)
