"""Traces of a run: every draft of a part along every text of its ArS cells, each once.

The identity of texts and drafts is compared before a trace is used.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from spsbench.benchmark.jobs import Answers, prompt_ids
from spsbench.benchmark.target_probs import TextTracer
from spsbench.benchmark.trace_draft import DraftTracer
from spsbench.errors import UsageError
from spsbench.metrics.sums import group_by
from spsbench.models.cache import Loaded
from spsbench.settings.cell import Cell
from spsbench.settings.experiment import TaskPart
from spsbench.settings.method import Drafting
from spsbench.settings.models import ModelSpec
from spsbench.settings.records import Key, Record
from spsbench.settings.task import Sample
from spsbench.store.provenance import digest, hash_file, hash_files
from spsbench.store.run_folder import Shard
from spsbench.store.traces import TraceSource, TraceWriter, traces_path

TOKENIZER = ("tokenizer", "special_tokens", "added_tokens", "vocab.", "merges.")


def trace_source(plain: Cell, folders: Mapping[ModelSpec, Path]) -> TraceSource:
    """Return the identity of an ArS cell's texts: distribution, target, chat and system message."""
    target = plain.target
    return TraceSource(
        {
            **{f"sampling.{n}": value for n, value in plain.recorded_distribution.items()},
            **{f"target.{name}": value for name, value in model_identity(target, folders).items()},
        },
        chat=plain.chat,
        system=plain.system,
    )


def draft_identity(cell: Cell, folders: Mapping[ModelSpec, Path]) -> dict[str, Any]:
    """Return a draft's identity by name: drafter, hash of its source, and any draft model's."""
    drafter = cell.drafter
    identity: dict[str, Any] = {"drafter": f"{drafter} {drafter.source}".rstrip()}
    if cell.draft is not None:
        identity |= model_identity(cell.draft, folders)
    return identity


def model_identity(model: ModelSpec, folders: Mapping[ModelSpec, Path]) -> dict[str, Any]:
    """Return a model's id, revision, dtype, and what names its weights, by name, from its folder.

    That is an adapter and quantisation, if any, and digests of its files, the tokenizer's apart to
    name differences; for random weights the digest of `config.json`.
    """
    folder = folders[model]
    identity: dict[str, Any] = {"id": model.id, "revision": model.revision, "dtype": model.dtype}
    identity |= {"adapter": model.adapter} if model.adapter else {}
    if model.random:
        config = hash_file(folder / "config.json")[:16]
        return identity | {"weights": model.weights, "config": config}
    if model.quantised is not None:
        identity["weights"] = model.weights
    files = hash_files(folder, model.adapter)
    words = {name: value for name, value in files.items() if name.startswith(TOKENIZER)}
    other_files = {name: value for name, value in files.items() if name not in words}
    return identity | {"files": digest(other_files)[:16], "tokenizer": digest(words)[:16]}


log = logging.getLogger(__name__)

OnProgress = Callable[[int, int], None]
"""A callback with (texts done, all texts)."""


def trace_part(
    part: TaskPart,
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
    """Write the missing traces along those texts of a part that are finished, until `stop()`.

    `records` gives the run's records at each call; failed and empty ones are left out, and drafts
    that cannot be traced, which are logged. `on_progress` gets (texts traced, all) of a cell.
    MismatchError: the existing traces of a file are of other texts or drafts.
    """
    by_id, answers = {sample.id: sample for sample in samples}, Answers(samples, records())
    for plain in (cell for cell in part.cells if cell.k == 0):
        loaded = models(plain)
        by_name = group_by((cell for cell in part.traced if cell.same_work(plain)), Drafting.of)
        drafts = [
            DraftTracer(name, cells, models(cells[0]), draft_identity(cells[0], folders))
            for name, cells in by_name.items()
        ]
        for draft in drafts:
            if draft.untraceable is not None:
                log.info(f"note: no trace of {draft.name}: {draft.untraceable}")
        text = TextTracer(plain, loaded, sorted({n for x in drafts for n in x.drafter.layers}))
        with TraceWriter(
            traces_path(folder, plain.id, shard), trace_source(plain, folders)
        ) as writer:
            missing = [
                replace(record, rounds=[], laws=None)
                for record in records()
                if (record.cell, record.error) == (plain.id, None)
                and record.tokens
                and record.sample in by_id
                and (
                    record.key not in writer.known.texts
                    or any(lacks_trace(writer, record.key, draft) for draft in drafts)
                )
            ]
            for number, record in enumerate(missing):
                on_progress(number, len(missing))
                if stop():
                    return
                sample, tokens = by_id[record.sample], record.tokens
                before = answers.before(plain.id, sample, record.repeat)
                prompt = prompt_ids(loaded, plain, sample, before)
                rows = list(text.rows(prompt, tokens))
                writer.add_text(text.written(record.key, prompt, tokens, record.finish, rows))
                for draft in drafts:
                    if lacks_trace(writer, record.key, draft):
                        writer.add(record.key, draft.name, draft.along(prompt, tokens, rows))
                        writer.declare(draft.of)
            on_progress(len(missing), len(missing))


def lacks_trace(writer: TraceWriter, key: Key, draft: DraftTracer) -> bool:
    """Return whether a text has no trace of a draft, with its schedules, that can be traced."""
    return draft.untraceable is None and not writer.has(key, draft.name, frozenset(draft.schedules))


def check_traceable(part: TaskPart) -> None:
    """Raise UsageError for traced cells of another library's decoding loop, or of several ranks."""
    for cell in part.traced:
        if not cell.own_loop:
            raise UsageError(
                f"`record` trace with `decoder` {cell.decoder}: expected native, whose "
                "drafts can be asked"
            )
        if cell.ranks > 1:
            raise UsageError("`record` trace with several ranks: expected one")
