"""Traces: acceptance data of drafts along texts, in a log that names their source.

A file of traces is self-contained: it records the source of the texts (`TraceSource`) and the
drafts (`DraftOf`), and every number as computed, in single precision. A token takes 11 bytes, and a
draft of it 23 more (a deterministic draft: 3; 56 where each K has a draft of its own; a head: 23
a slot).
"""

import base64
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args

import numpy as np
from msgspec import ValidationError, convert, to_builtins
from numpy.typing import NDArray

from spsbench.errors import DataError, MismatchError, MissingError
from spsbench.metrics.intervals import Floats
from spsbench.settings.method import Drafting
from spsbench.settings.records import Key
from spsbench.store.log import HeadedLog, iterate
from spsbench.store.manifest import differences
from spsbench.store.run_folder import Shard, shard_name
from spsbench.untrusted import open_untrusted

VERSION = 1
NARROW = {"f": "<f4", "b": "u1", "u": "u1"}  # kind of numbers -> on disk
BEGIN = b'{"n":0,"head":'  # the first bytes of a trace
T = TypeVar("T")


@dataclass(frozen=True)
class TraceSource:
    """The source of the texts: everything that changes an acceptance. Flat, for comparison."""

    identity: Mapping[str, Any]
    version: int = VERSION
    chat: bool = False  # prompts are in the target's template
    system: str = ""

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """Return the fields that two traces of the same texts share."""
        return {**self.identity, "work.chat": self.chat, "work.system": self.system}


@dataclass(frozen=True, kw_only=True)
class DraftOf:
    """The identity of a draft, and how exact its trace is."""

    name: Drafting
    identity: Mapping[str, Any] = field(default_factory=dict)
    sampled: bool  # sampled from a distribution of the text alone; else deterministic
    exact: bool = True  # False: the draft also depends on rounds outside the trace
    most: int = 0  # tokens requested along a text, to which replays are limited; 0: one chain

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """Return the fields of the draft itself."""
        return self.identity

    def replays(self, k: int | None) -> bool:
        """Return whether rounds of K tokens, or of a schedule (None), follow from the trace."""
        return not (self.sampled and self.most) if k is None else not self.most or k <= self.most


@dataclass(frozen=True, kw_only=True, eq=False)
class Written:
    """One text of the target, L tokens."""

    key: Key
    prompt_tokens: int
    budget: int  # most tokens allowed
    finish: str
    q: Floats  # [L] probability of each generated token
    entropy: Floats  # [L] of the target's distribution, in nats


@dataclass(frozen=True, kw_only=True, eq=False)
class SampledDraft:
    """A sampled draft along a text; entropy and peak are of the distribution before greedy warp.

    Columns of a `depth` D are [L D]: the slots of a draft that begins at each position.
    """

    p: Floats  # [L] probability of each generated token
    overlap: Floats  # [L] sum_x min(p, q)
    entropy: Floats  # [L] in nats
    peak: Floats  # [L] the greatest probability
    agrees: NDArray[np.bool_]  # [L] whether its likeliest token is the target's
    reach: int | None = None  # positions after which the draft's own context is full
    stops: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict)  # schedule -> [L] slots
    depth: int = 0  # 0: a slot's distribution is that of its position, wherever the draft begins


@dataclass(frozen=True, kw_only=True, eq=False)
class Proposed:
    """A deterministic draft along a text, by the tokens that are requested (A numbers, rising).

    Where shorter drafts begin the longest one, A is 1 and `requested` is empty.
    """

    proposed: NDArray[np.uint8]  # [A L] number of tokens, first for the least request
    hits: NDArray[np.uint8]  # [A L] length of the prefix that equals the text
    requested: tuple[int, ...] = ()
    stops: ClassVar[Mapping[str, NDArray[np.uint8]]] = {}  # none

    def of(self, k: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return [L] tokens and hits of drafts for K tokens, else for the next or last request."""
        place = min(bisect_left(self.requested, k), max(len(self.requested) - 1, 0))
        shape = max(len(self.requested), 1), -1
        return self.proposed.reshape(shape)[place], self.hits.reshape(shape)[place]


Along = SampledDraft | Proposed


def pack(record: Any, renamed: str = "") -> dict[str, Any]:
    """Return field -> plain value of a record but for `renamed`, which a line names otherwise.

    An array becomes base64, of bytes or of single precision.
    """

    def encoded(array: NDArray[Any]) -> str:
        return base64.b64encode(array.astype(NARROW[array.dtype.kind]).tobytes()).decode("ascii")

    values = to_builtins(record, enc_hook=encoded)
    return {name: value for name, value in values.items() if name != renamed}


def unpack_record(values: Mapping[str, Any], kind: type[T]) -> T:
    """Return the record of type `kind` that `pack` made plain; other keys of `values` are ignored.

    ValueError: no field that has no default, one of another type, or two arrays of unlike lengths.
    """
    lengths = set[int]()

    def decoded(array_type: Any, text: Any) -> NDArray[Any]:
        (scalar,) = get_args(get_args(array_type)[1])
        narrow = NARROW[np.dtype(scalar).kind]
        array = np.frombuffer(base64.b64decode(text, validate=True), narrow).astype(scalar)
        lengths.add(len(array))
        return array

    record = convert(values, kind, dec_hook=decoded)
    if len(lengths) > 1:
        raise ValueError("columns of unlike length")
    return record


def traces_path(folder: Path, cell: str, shard: Shard) -> Path:
    """Return the path of the traces of one cell's texts, in a shard of a run."""
    return folder / f"traces-{cell}-{shard_name(shard)}.jsonl"


@dataclass(kw_only=True, eq=False)
class Traces:
    """Texts, and the trace of each draft along them."""

    head: TraceSource | None = None
    drafts: dict[Drafting, DraftOf] = field(default_factory=dict)
    texts: dict[Key, Written] = field(default_factory=dict)
    along: dict[tuple[Key, Drafting], Along] = field(default_factory=dict)

    def of(self, name: Drafting) -> list[tuple[Written, Along]]:
        """Return the texts along which a draft was traced, each with its trace."""
        keys = [key for key in self.texts if (key, name) in self.along]
        return [(self.texts[key], self.along[key, name]) for key in keys]

    def take(self, values: Mapping[str, Any], path: Path) -> None:
        """Add one line of the log at `path`; DataError: it is none of a trace."""
        try:
            self._take(values)
        except (KeyError, ValidationError, ValueError) as error:
            raise DataError(
                f"foreign trace ({path}: {error}): expected what sps wrote. Record it anew"
            ) from error

    def _take(self, values: Mapping[str, Any]) -> None:
        """Add a source, draft, text or draft along one, over older ones; Value-, KeyError: bad."""
        if "head" in values:
            self.head = unpack_record({**values, "identity": values["head"]}, TraceSource)
            if self.head.version != VERSION:
                raise ValueError(f"version {self.head.version}, not {VERSION}")
        elif "draft" in values:
            draft = unpack_record(
                {**values, "name": Drafting.parse(convert(values["draft"], str))}, DraftOf
            )
            self.drafts[draft.name] = draft
        elif "text" in values:
            text = unpack_record({**values, "key": values["text"]}, Written)
            self.texts[text.key] = text
        else:
            key, label = convert((values["along"], values["by"]), tuple[Key, str])
            kind: type[Any] = Proposed if "hits" in values else SampledDraft
            along: Along = unpack_record(values, kind)
            length = len(along.of(1)[0] if isinstance(along, Proposed) else along.p)
            if length != len(self.texts[key].q) * (getattr(along, "depth", 0) or 1):
                raise ValueError("columns of unlike length")
            self.along[key, Drafting.parse(label)] = along


def read_traces(paths: Sequence[Path]) -> Traces:
    """Read files or folders of runs as one; of a text or draft traced twice the last path counts.

    Texts are sorted by key, and files without a head left out. MismatchError: unlike sources or
    drafts. MissingError: no texts. DataError: no trace, or damage.
    """
    merged = Traces()
    for path in trace_files(paths):
        traces = Traces()
        for values in iterate(path):
            traces.take(values, path)
        if traces.head is None:
            continue
        if merged.head is not None:
            refuse(traces.head, merged.head, path)
        for name, draft in traces.drafts.items():
            refuse(draft, merged.drafts.get(name, draft), path)
        merged.head = traces.head
        merged.drafts |= traces.drafts
        merged.texts |= traces.texts
        merged.along |= traces.along
    if merged.head is None or not merged.texts:
        raise MissingError(
            f"no texts in the trace ({', '.join(map(str, paths))}): expected some. Record them "
            "with sps bench TASK --record trace"
        )
    merged.texts = dict(sorted(merged.texts.items()))
    return merged


def trace_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files of the paths: of a folder, all its traces; none is read beyond its begin."""
    return [file for path in paths for file in _trace_files(path)]


def _trace_files(path: Path) -> Iterator[Path]:
    """Yield the file `path`, or a folder's sorted `traces-*.jsonl`, of `texts/` if it has none.

    MissingError: there are none. DataError: a file does not begin as a trace; an empty one may.
    """
    inside = sorted(path.glob("traces-*.jsonl")) or sorted(path.glob("texts/traces-*.jsonl"))
    if path.is_dir() and not inside:
        raise MissingError(
            f"no traces in {path}: expected traces-*.jsonl. Record them with "
            "sps bench TASK --record trace"
        )
    for file in inside or [path]:
        with open_untrusted(file, "a trace, or the folder of a run") as (stream, _):
            begin = stream.read(len(BEGIN))
        if begin != BEGIN[: len(begin)]:
            raise DataError(
                f"foreign trace ({file}, line 1: no head): expected what sps wrote. Record it anew"
            )
        yield file


def refuse(mine: TraceSource | DraftOf, theirs: TraceSource | DraftOf, path: Path) -> None:
    """Raise MismatchError where two traces have unlike texts, or two drafts of one name."""
    what = f"draft called {mine.name}" if isinstance(mine, DraftOf) else "target or sampling"
    if lines := differences(mine.fingerprint, theirs.fingerprint):
        raise MismatchError.of(
            f"another {what} ({path}): expected those of one trace. Record it anew", lines
        )


class TraceWriter(HeadedLog):
    """Traces with append access for this process. Use `TraceWriter` as a context manager."""

    def __init__(self, path: Path, head: TraceSource) -> None:
        """Open or create the log; MismatchError: its texts are of another target or sampling."""
        self.known = Traces()

        def take(values: dict[str, Any]) -> None:
            self.known.take(values, path)
            if "head" in values and self.known.head is not None:
                refuse(head, self.known.head, path)

        super().__init__(path, {"head": head.identity, **pack(head, "identity")}, take, take)

    def append(self, values: Mapping[str, Any]) -> None:
        """Write a line, durable on return, and take it into `known`."""
        super().append(values)
        self.known.take(values, self.path)

    def declare(self, draft: DraftOf) -> None:
        """Write a draft once, again when first inexact; MismatchError: its identity differs."""
        if (declared := self.known.drafts.get(draft.name)) is not None:
            refuse(draft, declared, self.path)
            draft = replace(draft, exact=draft.exact and declared.exact)
        if declared != draft:
            self.append({"draft": str(draft.name), **pack(draft, "name")})

    def has(self, key: Key, name: Drafting, schedules: Iterable[str] = ()) -> bool:
        """Return whether a draft was traced along a text, with the stops of these schedules."""
        along = self.known.along.get((key, name))
        return along is not None and set(schedules) <= along.stops.keys()

    def add_text(self, text: Written) -> None:
        """Write a text, once."""
        if text.key not in self.known.texts:
            self.append({"text": text.key, **pack(text, "key")})

    def add(self, key: Key, name: Drafting, along: Along) -> None:
        """Write a draft along a text, once; or again, with the stops of more schedules."""
        if not self.has(key, name, along.stops):
            self.append({"along": key, "by": str(name), **pack(along)})
