"""Traces of a run: every draft of a part along every text of its ArS cells, each once.

The identity of texts and drafts is compared before a trace is used.
"""

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
from spsbench.store.provenance import digest, hash_file, hash_files
from spsbench.store.run_folder import Shard
from spsbench.store.trace_records import Along, DraftOf, Head, Written
from spsbench.store.traces import TraceWriter, traces_path

TOKENIZER = ("tokenizer", "special_tokens", "added_tokens", "vocab.", "merges.")


def head_of(plain: Cell, folders: Mapping[ModelSpec, Path]) -> Head:
    """Return the identity of the texts of an ArS cell."""
    target = plain.target
    return Head(
        {
            **{f"sampling.{n}": value for n, value in plain.recorded_warp.items()},
            **{f"target.{name}": value for name, value in model_identity(target, folders).items()},
        },
        chat=plain.chat,
        system=plain.system,
    )


def draft_identity(cell: Cell, folders: Mapping[ModelSpec, Path]) -> dict[str, Any]:
    """Return the identity of a draft."""
    drafter = cell.drafter
    identity: dict[str, Any] = {"drafter": f"{drafter} {drafter.source}".rstrip()}
    if cell.draft is not None:
        identity |= model_identity(cell.draft, folders)
    return identity


def model_identity(model: ModelSpec, folders: Mapping[ModelSpec, Path]) -> dict[str, Any]:
    """Return a model's name, revision and files; its tokenizer separately, to name differences."""
    folder = folders[model]
    identity: dict[str, Any] = {"id": model.id, "revision": model.revision, "dtype": model.dtype}
    if model.random:
        return identity | {
            "weights": model.weights,
            "config": hash_file(folder / "config.json")[:16],
        }
    if model.quantised is not None:
        identity["weights"] = model.weights
    files = hash_files(folder)
    words = {name: value for name, value in files.items() if name.startswith(TOKENIZER)}
    other_files = {name: value for name, value in files.items() if name not in words}
    return identity | {"files": digest(other_files)[:16], "tokenizer": digest(words)[:16]}


log = logging.getLogger(__name__)

OnProgress = Callable[[int, int], None]
"""A callback with (texts done, all texts)."""


class Fit(NamedTuple):
    """The traceable properties of a draft."""

    unfit: str | None  # reason why the draft cannot be traced
    schedules: frozenset[str]  # schedules with stops in the trace


class Untraced(NamedTuple):
    """A text with drafts still to be traced."""

    key: Key
    tokens: list[int]
    finish: str
    prompt: str
    said: list[dict[str, str]]  # the turns before
    drafts: list[str]


class Traced(NamedTuple):
    """The traces of one text."""

    text: Written
    along: list[tuple[Along, DraftOf]]


class Tracing:
    """The tracers of some cells' drafts along the texts of an ArS cell, on this machine.

    Args:
        plain: the ArS cell.
        traced: drafting cells; cells of other work are left out.
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
            name: DraftTracer(name, cells, models(cells[0]), draft_identity(cells[0], folders))
            for name, cells in by_name(plain, traced).items()
        }

    @property
    def fits(self) -> dict[str, Fit]:
        """Return draft name -> traceable properties, as far as known."""
        return {
            name: Fit(draft.unfit, frozenset(draft.schedules))
            for name, draft in self._drafts.items()
        }

    def __call__(self, text: Untraced) -> Traced:
        """Make the missing traces of a text."""
        prompt = prompt_ids(self._loaded, self._plain, text.prompt, text.said)
        laws = list(self._text.laws(prompt, text.tokens))
        written = self._text.written(text.key, prompt, text.tokens, text.finish, laws)
        drafts = []
        for draft in (self._drafts[name] for name in text.drafts):
            along = None if draft.unfit else draft.along(prompt, text.tokens, laws)
            if along is not None:
                drafts.append((along, draft.of))  # `along` may have updated `of`
        return Traced(written, drafts)


def trace_part(
    part: Part,
    samples: Sequence[Sample],
    records: Callable[[], Iterable[Record]],
    models: Callable[[Cell], Loaded],
    folders: Mapping[ModelSpec, Path],
    folder: Path,
    shard: Shard,
    *,
    on_progress: OnProgress = lambda done, total: None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Make the missing traces of a part whose texts are finished.

    Raises:
        MismatchError: the existing traces are of other texts or drafts.
    """
    for plain in plains(part):
        tracing = Tracing(plain, part.traced, models, folders)
        tell(tracing.fits)
        with TraceWriter(traces_path(folder, plain.id, shard), head_of(plain, folders)) as writer:
            missing = list(untraced(plain, samples, records, tracing.fits, writer))
            for number, text in enumerate(missing):
                on_progress(number, len(missing))
                if stop():
                    return
                keep(writer, tracing(text))
            on_progress(len(missing), len(missing))
            tell(tracing.fits)


def plains(part: Part) -> list[Cell]:
    """Return the cells whose texts are traced."""
    return [cell for cell in part.cells if cell.k == 0]


def by_name(plain: Cell, traced: Sequence[Cell]) -> dict[str, list[Cell]]:
    """Return draft name -> its cells with the same work as `plain`."""
    named_cells: dict[str, list[Cell]] = {}
    for cell in traced:
        if cell.same_work(plain):
            named_cells.setdefault(drafting(cell), []).append(cell)
    return named_cells


def tell(fits: Mapping[str, Fit]) -> None:
    """Log the drafts that cannot be traced."""
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
    """Yield the texts with missing traces; `fits` may change during the iteration."""
    by_id = {sample.id: sample for sample in samples}
    answers = Answers(samples, records())
    for record in records():
        if record.cell != plain.id or record.error is not None or not record.tokens:
            continue
        if record.sample not in by_id:
            continue
        lacking = [
            name
            for name, fit in fits.items()
            if fit.unfit is None and not writer.has(record.key, name, fit.schedules)
        ]
        if lacking or record.key not in writer.known.texts:
            sample = by_id[record.sample]
            said = answers.before(record.cell, sample, record.repeat)
            of_text = record.key, record.tokens, record.finish
            yield Untraced(*of_text, sample.prompt, said, lacking)


def keep(writer: TraceWriter, traced: Traced) -> None:
    """Write the new traces of a text."""
    writer.add_text(traced.text)
    for along, draft in traced.along:
        writer.add(traced.text.key, draft.name, along)
        writer.declare(draft)


def check_traceable(part: Part) -> None:
    """Refuse cells that cannot be traced, before anything is made.

    Raises:
        UsageError: the decoding loop of another library.
    """
    for cell in part.traced:
        if not cell.own_loop:
            raise UsageError(
                f"`record` trace with `decoder` {cell.decoder}: expected native, whose "
                "drafts can be asked"
            )
