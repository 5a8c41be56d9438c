"""The traces of a run: every draft of a part along every text of its ArS cells, each once."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from spsbench.errors import UsageError
from spsbench.forecast.traces import Head
from spsbench.models.shelf import Loaded
from spsbench.runs.asking import Answers, prompt_ids
from spsbench.runs.text_laws import TextTracer
from spsbench.runs.tracing import DraftTracer
from spsbench.settings.cell import Cell
from spsbench.settings.experiment import Part
from spsbench.settings.models import ModelSpec
from spsbench.settings.names import drafting
from spsbench.settings.records import Record
from spsbench.settings.task import Sample
from spsbench.store.folder import Shard
from spsbench.store.provenance import digest, hash_file, hash_files
from spsbench.store.traces import TraceWriter, traces_path

Say = Callable[[str], None]
Told = Callable[[int, int], None]
"""Texts done, of how many."""

TOKENIZER = ("tokenizer", "special_tokens", "added_tokens", "vocab.", "merges.")


class Missing(NamedTuple):
    """A text that some drafts are still to be traced along."""

    record: Record
    sample: Sample
    drafts: list[str]


def trace_part(
    part: Part,
    samples: Sequence[Sample],
    records: Callable[[], Iterable[Record]],
    models: Callable[[Cell], Loaded],
    folders: Mapping[ModelSpec, Path],
    folder: Path,
    shard: Shard,
    *,
    say: Say = lambda line: None,
    told: Told = lambda done, total: None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Trace what is missing of a part whose texts are made.

    Raises:
        MismatchError: the traces there are of other texts or drafts.
    """
    named: dict[str, list[Cell]] = {}
    for cell in part.traced:
        named.setdefault(drafting(cell), []).append(cell)
    for plain in (cell for cell in part.cells if cell.k == 0):
        text = TextTracer(plain, models(plain))
        drafts = _fit(named, plain, models, folders, say)
        with TraceWriter(traces_path(folder, plain.id, shard), head_of(plain, folders)) as writer:
            missing = list(_missing(plain, samples, records(), drafts, writer))
            answers = Answers(samples, records())
            for number, each in enumerate(missing):
                told(number, len(missing))
                if stop():
                    return
                _trace(text, each, answers, drafts, models(plain), writer)
            told(len(missing), len(missing))
            for draft in drafts.values():
                if draft.unfit is not None:
                    say(f"note: no trace of {draft.name}: {draft.unfit}")


def _fit(
    named: Mapping[str, Sequence[Cell]],
    plain: Cell,
    models: Callable[[Cell], Loaded],
    folders: Mapping[ModelSpec, Path],
    say: Say,
) -> dict[str, DraftTracer]:
    """The drafts of cells that do the same work as `plain` and can be traced."""
    found = {}
    for name, cells in named.items():
        own = [cell for cell in cells if cell.same_work(plain)]
        if not own:
            continue
        tracer = DraftTracer(name, own, models(own[0]), draft_identity(own[0], folders))
        if tracer.unfit is not None:
            say(f"note: no trace of {name}: {tracer.unfit}")
            continue
        found[name] = tracer
    return found


def _missing(
    plain: Cell,
    samples: Sequence[Sample],
    records: Iterable[Record],
    drafts: Mapping[str, DraftTracer],
    writer: TraceWriter,
) -> Iterator[Missing]:
    known = {sample.id: sample for sample in samples}
    for record in records:
        if record.cell != plain.id or record.error is not None or not record.tokens:
            continue
        if record.sample not in known:
            continue
        lacking = [
            name
            for name, tracer in drafts.items()
            if not writer.has(record.key, name, tracer.schedules)
        ]
        if lacking or record.key not in writer.known.texts:
            yield Missing(record, known[record.sample], lacking)


def _trace(
    text: TextTracer,
    each: Missing,
    answers: Answers,
    drafts: Mapping[str, DraftTracer],
    models: Loaded,
    writer: TraceWriter,
) -> None:
    record = each.record
    said = answers.before(record.cell, each.sample, record.repeat)
    prompt = prompt_ids(models.tokenizer, text.cell.work, each.sample.prompt, said)
    laws = list(text.laws(prompt, record.tokens))
    written = text.written(record.key, prompt, record.tokens, record.finish, laws)
    writer.add_text(written)
    for name in each.drafts:
        if drafts[name].unfit is not None:
            continue
        along = drafts[name].along(prompt, record.tokens, laws)
        if along is not None:
            writer.add(record.key, name, along)
            writer.declare(drafts[name].of)  # what was found out on the way


def head_of(plain: Cell, folders: Mapping[ModelSpec, Path]) -> Head:
    """What the texts of an ArS cell are of."""
    target, sampling = plain.models.target, plain.sampling
    return Head(
        {
            "sampling.temperature": sampling.temperature,
            "sampling.top_k": sampling.top_k,
            "sampling.top_p": sampling.top_p,
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
