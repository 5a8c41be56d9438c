"""Traces on disk: a log whose first line names the source of the texts, each line with its CRC."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from spsbench.errors import DataError, MismatchError, MissingError, PermissionDeniedError
from spsbench.settings.records import Key
from spsbench.store import trace_records as forms
from spsbench.store.log import Log, iterate
from spsbench.store.run_folder import Shard, shard_name
from spsbench.store.trace_records import VERSION, Along, DraftOf, Head, Proposed, Written

BEGIN = b'{"n":0,"head":'
"""The first bytes of a trace."""


def traces_path(folder: Path, cell: str, shard: Shard) -> Path:
    """Return the path of the traces of one cell's texts, in a shard of a run."""
    return folder / f"traces-{cell}-{shard_name(shard)}.jsonl"


@dataclass(kw_only=True, eq=False)
class Traces:
    """Texts, and the trace of each draft along them."""

    head: Head | None = None
    drafts: dict[str, DraftOf] = field(default_factory=dict)
    texts: dict[Key, Written] = field(default_factory=dict)
    along: dict[tuple[Key, str], Along] = field(default_factory=dict)

    def of(self, name: str) -> list[tuple[Written, Along]]:
        """Return the texts along which a draft was traced."""
        keys = [key for key in self.texts if (key, name) in self.along]
        return [(self.texts[key], self.along[key, name]) for key in keys]

    @property
    def tokens(self) -> int:
        """Return the number of tokens of all texts."""
        return sum(len(text.q) for text in self.texts.values())

    def take(self, values: dict[str, Any]) -> None:
        """Add one line of a log.

        Raises:
            KeyError, TypeError, ValueError: the line is no line of a trace.
        """
        if "head" in values:
            self.head = forms.read_head(values)
            if self.head.version != VERSION:
                raise ValueError(f"version {self.head.version}, not {VERSION}")
        elif "draft" in values:
            draft = forms.read_draft(values)
            self.drafts[draft.name] = draft
        elif "text" in values:
            text = forms.read_text(values)
            if len(text.entropy) != len(text.q):
                raise ValueError("columns of unlike length")
            self.texts[text.key] = text
        else:
            cell, sample, repeat = values["along"]
            key = cell, sample, repeat
            along = forms.read_along(values)
            if len(forms.columns(along)) != len(self.texts[key].q):
                raise ValueError("columns of unlike length")
            self.along[key, values["by"]] = along


def read_traces(paths: Sequence[Path]) -> Traces:
    """Read several files, or the folders of runs, as one; texts are merged by key.

    Raises:
        MissingError: no such file, or a run without traces.
        DataError: a damaged or foreign file.
        MismatchError: different texts or drafts; names the differences.
    """
    merged = Traces()
    for path in files(paths):
        traces = read_file(path)
        if traces.head is None:
            continue
        if merged.head is not None:
            refuse(traces.head, merged.head, path)
        for name, draft in traces.drafts.items():
            refuse_draft(draft, merged.drafts.get(name, draft), path)
        merged = Traces(
            head=traces.head,
            drafts={**merged.drafts, **traces.drafts},
            texts={**merged.texts, **traces.texts},
            along={**merged.along, **traces.along},
        )
    if merged.head is None or not merged.texts:
        raise MissingError(
            f"no texts in the trace ({', '.join(map(str, paths))}): expected some. Record them "
            "with sps bench TASK --record trace"
        )
    merged.texts = dict(sorted(merged.texts.items()))
    return merged


def check_traces(paths: Sequence[Path]) -> None:
    """Check that traces exist and begin as traces do, without reading them.

    Raises:
        MissingError: no such file, or a run without traces. DataError: another kind of file.
    """
    for path in files(paths):
        if not path.exists():
            raise MissingError(f"no such trace ({path}): expected a file. Check the path")


def files(paths: Sequence[Path]) -> Iterable[Path]:
    """Return the files of the paths: of a folder, all its traces.

    Raises:
        MissingError: a folder without traces.
        DataError: a device or a pipe, or a file that does not begin as a trace.
    """
    for path in paths:
        if not path.is_dir():
            check_begin(path)
            yield path
            continue
        inside = sorted(path.glob("traces-*.jsonl")) or sorted(path.glob("texts/traces-*.jsonl"))
        if not inside:
            raise MissingError(
                f"no traces in {path}: expected traces-*.jsonl. Record them with "
                "sps bench TASK --record trace"
            )
        for trace in inside:
            check_begin(trace)
            yield trace


def check_begin(path: Path) -> None:
    """Refuse a file that is no trace before reading it into memory: it may be endless."""
    if not path.exists():
        return
    if not path.is_file():
        raise DataError(
            f"no trace ({path}): expected a file or the folder of a run, found neither. Check the "
            "path"
        )
    try:
        with path.open("rb") as file:
            begin = file.read(len(BEGIN))
    except PermissionError as error:
        raise PermissionDeniedError(
            f"cannot read {path} (permission denied): expected a readable file. Change its mode"
        ) from error
    if begin != BEGIN[: len(begin)]:
        raise DataError(
            f"foreign trace ({path}, line 1: no head): expected what `sps` wrote. Record it anew"
        )


def read_file(path: Path) -> Traces:
    """Read one file.

    Raises:
        MissingError, DataError: the file is missing, damaged, or no trace.
    """
    traces = Traces()
    for number, values in enumerate(iterate(path)):
        take(traces, values, path, number)
    return traces


def take(traces: Traces, values: dict[str, Any], path: Path, number: int) -> None:
    """Add one line, or raise an error that names the line."""
    try:
        if number == 0 and "head" not in values:
            raise ValueError("no head")
        traces.take(values)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"foreign trace ({path}, line {number + 1}: {error}): expected what `sps` wrote. "
            "Record it anew"
        ) from error


def refuse(mine: Head, theirs: Head, path: Path) -> None:
    """Check that two traces are of the same texts.

    Raises:
        MismatchError: the texts differ; names every differing field.
    """
    if lines := mine.differing(theirs):
        raise MismatchError.of(
            f"another trace ({path}): expected one of the same target, tokenizer and sampling. "
            "Record it anew",
            lines,
        )


def refuse_draft(mine: DraftOf, theirs: DraftOf, path: Path) -> None:
    """Check that drafts of the same name are the same.

    Raises:
        MismatchError: the drafts differ.
    """
    if lines := Head(mine.identity).differing(Head(theirs.identity)):
        raise MismatchError.of(
            f"another draft called {mine.name} ({path}): expected the same one. Record the trace "
            "anew",
            lines,
        )


class TraceWriter:
    """Traces with append access for this process. Use `TraceWriter` as a context manager."""

    def __init__(self, path: Path, head: Head) -> None:
        """Open or create the log.

        Raises:
            MismatchError: the log has other texts. DataError: the log is damaged.
            InUseError, WriteError: the log cannot be written.
        """
        self.path, self.known, self._seen = path, Traces(), 0
        self._log = Log(path, self._see)
        if self.known.head is None:
            self._append(forms.head_values(head))
        else:
            try:
                refuse(head, self.known.head, path)
            except MismatchError:
                self.close()
                raise

    def __enter__(self) -> "TraceWriter":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the log for other processes."""
        self._log.close()

    def declare(self, draft: DraftOf) -> None:
        """Write the identity of a draft, once; again if the draft turns out not to be exact."""
        declared = self.known.drafts.get(draft.name)
        if declared is not None:
            refuse_draft(draft, declared, self.path)
            draft = replace(draft, exact=draft.exact and declared.exact)
        if declared != draft:
            self._append(forms.draft_values(draft))

    def has(self, key: Key, name: str, schedules: Iterable[str] = ()) -> bool:
        """Return whether a draft was traced along a text, with the stops of these schedules."""
        along_before = self.known.along.get((key, name))
        return along_before is not None and (set(schedules) <= stops_of(along_before))

    def add_text(self, text: Written) -> None:
        """Write a text, once."""
        if text.key not in self.known.texts:
            self._append(forms.text_values(text))

    def add(self, key: Key, name: str, along: Along) -> None:
        """Write a draft along a text, once; or again, with the stops of more schedules."""
        written = self.known.along.get((key, name))
        if written is None or not stops_of(along) <= stops_of(written):
            self._append(forms.along_values(key, name, along))

    def _append(self, values: dict[str, Any]) -> None:
        self._log.append(values)
        self.known.take(values)

    def _see(self, values: dict[str, Any]) -> None:
        take(self.known, values, self.path, self._seen)
        self._seen += 1


def stops_of(along: Along) -> set[str]:
    """Return the schedules whose stops are known."""
    return set() if isinstance(along, Proposed) else set(along.stops)
