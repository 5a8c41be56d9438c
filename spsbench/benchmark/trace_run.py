"""The traces of a run: every draft of a part along every text of its ArS cells, each once."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from spsbench.benchmark.jobs import Answers, prompt_ids
from spsbench.benchmark.target_laws import TextTracer
from spsbench.benchmark.trace_draft import DraftTracer
from spsbench.errors import UsageError
from spsbench.models.cache import Loaded
from spsbench.settings.cell import Cell
from spsbench.settings.experiment import Part
from spsbench.settings.labels import drafting
from spsbench.settings.models import ModelSpec
from spsbench.settings.records import Key, Record
from spsbench.settings.task import Sample
from spsbench.store.folder import Shard
from spsbench.store.provenance import digest, hash_file, hash_files
from spsbench.store.trace_records import Along, DraftOf, Head, Written
from spsbench.store.traces import TraceWriter, traces_path

# What the texts of a trace are of, and what drafts along them: compared before any is used.

TOKENIZER = ("tokenizer", "special_tokens", "added_tokens", "vocab.", "merges.")


def head_of(plain: Cell, folders: Mapping[ModelSpec, Path]) -> Head:
    """What the texts of an ArS cell are of."""
    target = plain.models.target
    return Head(
        {
            **{f"sampling.{n}": value for n, value in plain.sampling.recorded_warp.items()},
            **{f"target.{name}": value for name, value in model_identity(target, folders).items()},
        }
    )


def draft_identity(cell: Cell, folders: Mapping[ModelSpec, Path]) -> dict[str, Any]:
    """What drafts."""
    drafter = cell.method.drafter
    found: dict[str, Any] = {"drafter": f"{drafter} {drafter.source}".rstrip()}
    if cell.models.draft is not None:
        found |= model_identity(cell.models.draft, folders)
    return found


def model_identity(model: ModelSpec, folders: Mapping[ModelSpec, Path]) -> dict[str, Any]:
    """A model by its name, revision and files; its tokenizer apart, so that it is told apart."""
    folder = folders[model]
    found: dict[str, Any] = {"id": model.id, "revision": model.revision, "dtype": model.dtype}
    if model.random:
        return found | {"weights": model.weights, "config": hash_file(folder / "config.json")[:16]}
    if model.quantised is not None:
        found["weights"] = model.weights
    files = hash_files(folder)
    words = {name: value for name, value in files.items() if name.startswith(TOKENIZER)}
    rest = {name: value for name, value in files.items() if name not in words}
    return found | {"files": digest(rest)[:16], "tokenizer": digest(words)[:16]}


log = logging.getLogger(__name__)

Told = Callable[[int, int], None]
"""Texts done, of how many."""


class Fit(NamedTuple):
    """What can be traced of a draft."""

    unfit: str | None  # why it cannot be
    schedules: frozenset[str]  # whose stops are to be in its trace


class Untraced(NamedTuple):
    """A text that some drafts are still to be traced along."""

    key: Key
    tokens: list[int]
    finish: str
    prompt: str
    said: list[dict[str, str]]  # the turns before
    drafts: list[str]


class Traced(NamedTuple):
    """What came of it."""

    text: Written
    along: list[tuple[Along, DraftOf]]


class Tracing:
    """Every draft of some cells along the texts of an ArS cell, on this machine.

    Args:
        plain: the ArS cell.
        traced: cells that draft; those of other work are left out.
    """

    def __init__(
        self,
        plain: Cell,
        traced: Sequence[Cell],
        models: Callable[[Cell], Loaded],
        folders: Mapping[ModelSpec, Path],
    ) -> None:
        self._plain, self._loaded = plain, models(plain)
        self._text = TextTracer(plain, self._loaded)
        self._drafts = {
            name: DraftTracer(name, own, models(own[0]), draft_identity(own[0], folders))
            for name, own in by_name(plain, traced).items()
        }

    @property
    def fits(self) -> dict[str, Fit]:
        """Name of a draft -> what can be traced of it, as far as it is known."""
        return {
            name: Fit(draft.unfit, frozenset(draft.schedules))
            for name, draft in self._drafts.items()
        }

    def __call__(self, each: Untraced) -> Traced:
        """Trace what is missing of a text."""
        prompt = prompt_ids(self._loaded.tokenizer, self._plain.work, each.prompt, each.said)
        laws = list(self._text.laws(prompt, each.tokens))
        written = self._text.written(each.key, prompt, each.tokens, each.finish, laws)
        found = []
        for draft in (self._drafts[name] for name in each.drafts):
            along = None if draft.unfit else draft.along(prompt, each.tokens, laws)
            if along is not None:
                found.append((along, draft.of))  # as it was found out on the way
        return Traced(written, found)


def trace_part(
    part: Part,
    samples: Sequence[Sample],
    records: Callable[[], Iterable[Record]],
    models: Callable[[Cell], Loaded],
    folders: Mapping[ModelSpec, Path],
    folder: Path,
    shard: Shard,
    *,
    told: Told = lambda done, total: None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Trace what is missing of a part whose texts are made.

    Raises:
        MismatchError: the traces there are of other texts or drafts.
    """
    for plain in plains(part):
        tracing = Tracing(plain, part.traced, models, folders)
        tell(tracing.fits)
        with TraceWriter(traces_path(folder, plain.id, shard), head_of(plain, folders)) as writer:
            missing = list(untraced(plain, samples, records, tracing.fits, writer))
            for number, each in enumerate(missing):
                told(number, len(missing))
                if stop():
                    return
                keep(writer, tracing(each))
            told(len(missing), len(missing))
            tell(tracing.fits)


def plains(part: Part) -> list[Cell]:
    """The cells along whose texts is traced."""
    return [cell for cell in part.cells if cell.k == 0]


def by_name(plain: Cell, traced: Sequence[Cell]) -> dict[str, list[Cell]]:
    """Name of a draft -> its cells, of those that do the same work as `plain`."""
    found: dict[str, list[Cell]] = {}
    for cell in traced:
        if cell.same_work(plain):
            found.setdefault(drafting(cell), []).append(cell)
    return found


def tell(fits: Mapping[str, Fit]) -> None:
    """Say which drafts cannot be traced."""
    for name, fit in fits.items():
        if fit.unfit is not None:
            log.info(f"note: no trace of {name}: {fit.unfit}")


def untraced(
    plain: Cell,
    samples: Sequence[Sample],
    records: Callable[[], Iterable[Record]],
    fits: Mapping[str, Fit],
    writer: TraceWriter,
) -> Iterator[Untraced]:
    """The texts that miss something; `fits` may come to know more meanwhile."""
    known = {sample.id: sample for sample in samples}
    answers = Answers(samples, records())
    for record in records():
        if record.cell != plain.id or record.error is not None or not record.tokens:
            continue
        if record.sample not in known:
            continue
        lacking = [
            name
            for name, fit in fits.items()
            if fit.unfit is None and not writer.has(record.key, name, fit.schedules)
        ]
        if lacking or record.key not in writer.known.texts:
            sample = known[record.sample]
            said = answers.before(record.cell, sample, record.repeat)
            of_text = record.key, record.tokens, record.finish
            yield Untraced(*of_text, sample.prompt, said, lacking)


def keep(writer: TraceWriter, found: Traced) -> None:
    """Write down what is new of it."""
    writer.add_text(found.text)
    for along, draft in found.along:
        writer.add(found.text.key, draft.name, along)
        writer.declare(draft)


def check_traceable(part: Part) -> None:
    """Refuse what no trace can be of, before anything is made.

    Raises:
        UsageError: another library's loop.
    """
    for cell in part.traced:
        if not cell.method.own_loop:
            raise UsageError(
                f"--record trace with --decoder {cell.method.decoder}: expected native, whose "
                "drafts can be asked"
            )
