"""Records of runs: reading each generation once over shards and attempts, and checks."""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import isfinite
from operator import lt
from pathlib import Path
from typing import Any, NamedTuple

from spsbench.errors import DataError, MissingError
from spsbench.settings.records import (
    MEASURES,
    ROUND,
    DraftLaws,
    Key,
    Record,
    RoundRecord,
    TreeRound,
    columns,
)
from spsbench.store.log import iterate
from spsbench.store.manifest import Manifest
from spsbench.store.run_folder import record_logs

FINISHES = ("eos", "stop", "length", "context")
NUMBERS = {int, float}
ROUNDING = 1e-4  # of float32 sums of probabilities
MAX_NUMBER = 2**63  # least number too large for an array
MAX_TOKEN = 2**31  # least number too large for a token id


def impossible(record: Record, samples: Collection[str] = ()) -> str | None:
    """Return the first invalid field, as `field: VALUE, expected ...`; None: all fields are valid.

    Readers and writers of a run apply it, so that no run is written that cannot be read.

    Args:
        record: with fields of any type.
        samples: known ids; empty where unknown.
    """
    for name, value, holds, expected in _fields(record, samples):
        if not holds:
            return f"{name}: {_shortened(value)}, expected {expected}"
    return _of_rounds(record) or _of_laws(record)


def _fields(record: Record, samples: Collection[str]) -> Iterable[tuple[str, object, bool, str]]:
    """Yield name, value, whether the value is valid, and the expected values."""
    yield "cell", record.cell, isinstance(record.cell, str), "text"
    yield "sample", record.sample, isinstance(record.sample, str), "text"
    in_run = not samples or record.sample in samples
    yield "sample", record.sample, in_run, f"one of the {len(samples)} of this run"
    for name in ("repeat", "prompt_tokens"):
        number = getattr(record, name)
        yield name, number, _counts((number,)), "a number from 0"
    yield "text", record.text, isinstance(record.text, str), "text"
    tokens = isinstance(record.tokens, list) and _counts(record.tokens, most=MAX_TOKEN)
    yield "tokens", record.tokens, tokens, "token ids"
    spent = record.prefill_seconds
    yield "prefill_seconds", spent, _numbers((spent,)), "seconds from 0"
    for measure in MEASURES:
        measured = getattr(record, measure.field)
        right = isinstance(measured, list) == measure.listed and _numbers(
            measured if measure.listed else (measured,)
        )
        yield measure.field, measured, measured is None or right, measure.expected
    yield "error", record.error, record.error is None or isinstance(record.error, str), "text, null"
    if record.error is None:
        finish = record.finish
        yield "finish", finish, finish in FINISHES, f"one of {', '.join(FINISHES)}"
    else:
        yield "tokens", record.tokens, not record.tokens, "none, since it failed"


def _of_rounds(record: Record) -> str | None:
    """Return the first invalid field of the rounds, by columns: reports read millions of rounds."""
    rounds = record.rounds
    of = columns(rounds)
    for name, kind in ROUND.items():
        holds = partial(_counts, least=kind.least) if kind.whole else _numbers
        column = of[name]
        if kind.optional and None in column:
            column = [value for value in column if value is not None]
        if not holds(column):
            value = next(value for value in column if not holds((value,)))
            return f"rounds: {name} {_shortened(value)}, expected {kind.expected}"
    for r in rounds if any(of["tree"]) else ():
        if r.tree is not None and not _is_walk(r):
            return (
                f"rounds: tree {_shortened(tuple(r.tree))}, expected a path of {r.accepted} nodes"
            )
    if not _counts(of["passes"]):
        return f"rounds: passes {_shortened(of['passes'])}, expected numbers from 0"
    for drafted, tested, accepted, emitted, overlap, *_, passes in rounds:
        over = accepted > drafted or tested > drafted
        if (over and drafted >= 0) or -1 < tested < accepted:
            return (
                f"rounds: {drafted} drafted, {tested} tested, {accepted} accepted, expected no rise"
            )
        if passes and emitted > accepted + passes:
            return f"rounds: {accepted} accepted, {emitted} emitted, expected at most one more"
        if overlap is not None and overlap > drafted + ROUNDING:
            return f"rounds: overlap {overlap:g} of {drafted} drafted, expected at most as much"
    for measure in MEASURES:
        n = len(getattr(record, measure.field) or ()) if measure.listed else 0
        if n > len(rounds):
            return f"{measure.field}: {n}, expected at most one for each of {len(rounds)} rounds"
    emitted_tokens = sum(of["emitted"])
    if emitted_tokens != len(record.tokens) and record.tokens:
        return f"rounds: {emitted_tokens} emitted, expected as many as tokens, {len(record.tokens)}"
    return None


def _is_walk(r: RoundRecord) -> bool:
    """Return whether a round's tree allows the kept tokens."""
    tree = r.tree or TreeRound(0, (), (), ())
    depth, path, siblings, offered = tree
    lists = all(isinstance(side, tuple) and _counts(side) for side in tree[1:])
    if not lists or not _counts((depth,)) or not len(path) == len(siblings) == len(offered) - 1:
        return False
    falls = all(below > above for above, below in pairwise(path))
    fits = len(path) == r.accepted <= depth <= r.drafted and max(path, default=-1) < r.drafted
    return falls and fits and all(map(lt, siblings, offered)) and sum(offered) <= r.drafted


def _of_laws(record: Record) -> str | None:
    if record.laws is None:
        return None
    if len(record.laws) != len(record.rounds):
        return f"laws: {len(record.laws)}, expected one a round, {len(record.rounds)}"
    for number, law in enumerate(record.laws):
        if not _is_law(law):
            return f"laws: round {number}, expected as many tokens as probabilities from 0 to 1"
    return None


def _is_law(law: DraftLaws) -> bool:
    sides = law.p, law.q
    both = all(_numbers(side) and max(side, default=0) <= 1 + ROUNDING for side in sides)
    n = len(law.tokens)
    if not both or not len(law.p) == len(law.q) == n:
        return False
    if law.parents is not None:
        above = _counts(law.parents, -1) and all(p < i for i, p in enumerate(law.parents))
        if not above or len(law.parents) != n:
            return False
    rows = law.likeliest
    return rows is None or (
        len(rows) == n + 1 and all(_numbers(row) and len(row) % 2 == 0 for row in rows)
    )


def _numbers(values: Sequence[Any]) -> bool:
    """Return whether all values are finite numbers from 0; NaN and infinity spread to the sum."""
    types = set(map(type, values))
    right = types <= NUMBERS and (int not in types or max(values) < MAX_NUMBER)
    return right and min(values, default=0) >= 0 and isfinite(sum(values))


def _counts(values: Sequence[Any], least: int = 0, most: int = MAX_NUMBER) -> bool:
    """Return whether all values are whole numbers from `least` and below `most`."""
    if not set(map(type, values)) <= {int}:
        return False
    return min(values, default=0) >= least and max(values, default=0) < most


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


class Placed(NamedTuple):
    """A record and its start: timings of different hardware are not pooled."""

    segment: int  # index into Manifest.segments
    record: Record


class Starts:
    """The start of each line of a shard's log: the last before the line, of the same machine."""

    def __init__(self, manifest: Manifest, shard: str) -> None:
        self.known: list[int] = []  # number of records at each start and at its end
        self._own: dict[str | None, list[tuple[int, int]]] = {}
        for index, segment in enumerate(manifest.segments):
            if segment["shard"] == shard:
                self.known.append(recorded_count(segment))
                starts = self._own.setdefault(segment.get("machine"), [])
                starts.append((segment["first"], index))

    def of(self, number: int, machine: str | None) -> int | None:
        """Return the index of the segment; None: no segment."""
        starts = self._own.get(machine, [])
        place = bisect_right(starts, number, key=lambda start: start[0]) - 1
        return starts[place][1] if place >= 0 else None


class Once:
    """The generations read so far; a repeated generation must be unchanged."""

    def __init__(self) -> None:
        self.good: dict[Key, int] = {}  # key -> hash of the measurements
        self._failed: set[tuple[Key, int]] = set()

    def is_new(self, record: Record, path: Path) -> bool:
        """Return whether the generation is new.

        Raises:
            DataError: the generation is repeated and differs; `path` is for the message.
        """
        mark = hash((tuple(record.tokens), tuple(record.rounds), record.text, record.error))
        if record.error is not None:  # failed attempts may differ
            new = (record.key, mark) not in self._failed
            self._failed.add((record.key, mark))
            return new
        mark_before = self.good.get(record.key)
        if mark_before not in (None, mark):
            raise DataError(
                f"two measurements of {'/'.join(map(str, record.key))} ({path}): expected one, or "
                "copies of one. Leave one of the runs out"
            )
        self.good[record.key] = mark
        return mark_before is None


def records(folder: Path) -> Iterator[Record]:
    """Yield the records of a run, each generation once; generations that always failed come last.

    Raises:
        MissingError: no run in `folder`, or a log listed in the manifest is gone.
        DataError: a damaged log, an invalid record, or a repeated generation that differs.
    """
    return (placed.record for placed in segmented(folder))


def segmented(folder: Path) -> Iterator[Placed]:
    """Yield `records`, each with its segment."""
    manifest = Manifest.load(folder)
    sample_ids = manifest.samples
    once = Once()
    failures: dict[Key, Placed] = {}
    for shard, path in logs_of(folder, manifest).items():
        starts = Starts(manifest, shard)
        number = -1
        for number, values in enumerate(iterate(path)):
            place = starts.of(number, values.get("machine"))
            record = read_record(values, path, number, sample_ids)
            if place is None:
                raise DataError(
                    f"record of no segment ({path}, line {number + 1}): expected its start in the "
                    "manifest. Restore the manifest from a copy, or start anew"
                )
            placed = Placed(place, record)
            if record.error is not None:
                failures[record.key] = placed
            elif once.is_new(record, path):
                yield placed
        refuse_loss(path, number + 1, starts.known)
    yield from (placed for key, placed in failures.items() if key not in once.good)


def check_whole(folder: Path) -> None:
    """Check that all records listed in the manifest of a run exist.

    Raises:
        MissingError: no run, or a log is gone. DataError: a truncated log, or damage.
    """
    manifest = Manifest.load(folder)
    for shard, path in logs_of(folder, manifest).items():
        refuse_loss(path, sum(1 for _ in iterate(path)), Starts(manifest, shard).known)


def logs_of(folder: Path, manifest: Manifest) -> dict[str, Path]:
    """Return shard name -> log of all shards begun according to the manifest.

    Raises:
        MissingError: a log does not exist.
    """
    logs = record_logs(folder)
    for segment in manifest.segments:
        name, begun = segment["shard"], segment.get("started")
        if name not in logs:
            raise MissingError(
                f"no records of shard {name} ({folder}, begun {begun}): "
                f"expected records-{name}.jsonl. Restore it from a copy, or make its "
                "records anew with `resume`"
            )
    return logs


def recorded_count(segment: Mapping[str, Any]) -> int:
    """Return the records in the log of a segment's shard when the start ended, or else began."""
    return max(int(segment["first"]), int(segment.get("records", 0)))


def refuse_loss(path: Path, count: int, counts_noted: Sequence[int]) -> None:
    """Check that a log still has the records known for its shard.

    Raises:
        DataError: the log has fewer records.
    """
    before = max(counts_noted, default=0)
    if count < before:
        raise DataError(
            f"{before - count} records are missing at the end ({path}, line {count + 1}): expected "
            f"{before} or more. Restore the file from a copy, or make them anew with `resume`"
        )


def read_record(
    values: dict[str, Any], path: Path, number: int, samples: Collection[str] = ()
) -> Record:
    """Return the record in line `number` + 1 of a log of a run over `samples`, if known.

    Raises:
        DataError: fields differ from this version's format, or values are invalid.
    """
    values.pop("attempt", None)
    values.pop("machine", None)
    try:
        record = Record.from_json(values)
        wrong = impossible(record, samples)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"foreign record ({path}, line {number + 1}: {error}): expected the fields that this "
            "version writes. Read it with the version that its manifest names"
        ) from error
    if wrong is not None:
        raise DataError(
            f"impossible record ({path}, line {number + 1}, {wrong}): expected what was measured. "
            "Restore the file from a copy, or start anew"
        )
    return record
