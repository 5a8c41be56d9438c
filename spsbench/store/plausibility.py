"""What no run can have measured: a record is believed only where its values can be true.

The checksum of a line tells damage; this tells a line that was made by hand or by a fault of ours.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import pairwise
from math import isfinite
from operator import lt
from typing import Any

from spsbench.settings.records import DraftLaws, Record, RoundRecord, TreeRound

FINISHES = ("eos", "stop", "length", "context")
COUNTS = RoundRecord._fields[:4]
TIMES = RoundRecord._fields[5:8]
NUMBERS = {int, float}
ROUNDING = 1e-4  # of probabilities that were added up in float32
MOST = 2**63  # of anything: what is larger does not go into an array


def impossible(record: Record, samples: Collection[str] = ()) -> str | None:
    """The first field that cannot be true, as `field: VALUE, expected ...`; None: all of it can.

    Args:
        record: as it was read, its fields of any type.
        samples: ids that there are; empty where that is not known.
    """
    for name, value, holds, expected in _fields(record, samples):
        if not holds:
            return f"{name}: {_shown(value)}, expected {expected}"
    return _of_rounds(record) or _of_laws(record)


def _fields(record: Record, samples: Collection[str]) -> Iterable[tuple[str, object, bool, str]]:
    """Name, value, whether it can be, and what can be."""
    yield "cell", record.cell, isinstance(record.cell, str), "text"
    yield "sample", record.sample, isinstance(record.sample, str), "text"
    known = not samples or record.sample in samples
    yield "sample", record.sample, known, f"one of the {len(samples)} of this run"
    for name in ("repeat", "prompt_tokens"):
        number = getattr(record, name)
        yield name, number, _counts((number,)), "a number from 0"
    yield "text", record.text, isinstance(record.text, str), "text"
    tokens = isinstance(record.tokens, list) and _counts(record.tokens)
    yield "tokens", record.tokens, tokens, "token ids"
    spent = record.prefill_seconds
    yield "prefill_seconds", spent, _numbers((spent,)), "seconds from 0"
    experts = record.experts
    numbers = experts is None or (isinstance(experts, list) and _numbers(experts))
    yield "experts", experts, numbers, "a number from 0 for each round"
    yield "error", record.error, record.error is None or isinstance(record.error, str), "text, null"
    if record.error is None:
        finish = record.finish
        yield "finish", finish, finish in FINISHES, f"one of {', '.join(FINISHES)}"
    else:
        yield "tokens", record.tokens, not record.tokens, "none, since it failed"


def _of_rounds(record: Record) -> str | None:
    """As `impossible`; column by column where it can be: a report reads millions of rounds."""
    rounds = record.rounds
    columns: Sequence[Sequence[Any]] = tuple(zip(*rounds, strict=True)) or ((),) * 10
    for name, column in zip(COUNTS, columns, strict=False):
        least = -1 if name == "tested" else 0
        if not _counts(column, least):
            holds = partial(_counts, least=least)
            return _in_round(rounds, name, holds, f"a number from {least}")
    for name, column in zip(TIMES, columns[5:8], strict=True):
        if not _numbers(column):
            return _in_round(rounds, name, _numbers, "seconds from 0")
    worked = rounds if None not in columns[8] else [r for r in rounds if r[8] is not None]
    if not _numbers([r[8] for r in worked]):
        return _in_round(worked, "processor_seconds", _numbers, "seconds from 0")
    overlaps = columns[4]
    known = rounds if None not in overlaps else [r for r in rounds if r.overlap is not None]
    if not _numbers(overlaps if known is rounds else [r.overlap for r in known]):
        return _in_round(known, "overlap", _numbers, "a sum of probabilities")
    for r in rounds if any(columns[9]) else ():
        if r.tree is not None and not _is_walk(r):
            return f"rounds: tree {_shown(tuple(r.tree))}, expected a path of {r.accepted} nodes"
    for drafted, tested, accepted, emitted, overlap, *_ in rounds:
        if accepted > drafted or tested > drafted or -1 < tested < accepted:
            return (
                f"rounds: {drafted} drafted, {tested} tested, {accepted} accepted, expected no rise"
            )
        if emitted > accepted + 1:
            return f"rounds: {accepted} accepted, {emitted} emitted, expected at most one more"
        if overlap is not None and overlap > drafted + ROUNDING:
            return f"rounds: overlap {overlap:g} of {drafted} drafted, expected at most as much"
    if record.experts is not None and len(record.experts) > len(rounds):
        return (
            f"experts: {len(record.experts)}, expected at most one for each of {len(rounds)} rounds"
        )
    if max(columns[0], default=0) > MOST:
        return f"rounds: {_shown(max(columns[0]))} drafted, expected fewer"
    made = sum(columns[3])
    if made != len(record.tokens):
        return f"rounds: {made} emitted, expected as many as tokens, {len(record.tokens)}"
    return None


def _in_round(
    rounds: Sequence[RoundRecord],
    name: str,
    holds: Callable[[Sequence[Any]], bool],
    expected: str,
) -> str:
    """The line for the first round whose field `name` does not hold."""
    at = RoundRecord._fields.index(name)
    value = next(r[at] for r in rounds if not holds((r[at],)))
    return f"rounds: {name} {_shown(value)}, expected {expected}"


def _is_walk(r: RoundRecord) -> bool:
    """Whether a round's tree can have had what was kept of it."""
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
    """Whether all are finite numbers from 0; of NaN or infinity the sum is no such number."""
    types = set(map(type, values))
    right = types <= NUMBERS and (int not in types or max(values) < MOST)
    return right and min(values, default=0) >= 0 and isfinite(sum(values))


def _counts(values: Sequence[Any], least: int = 0) -> bool:
    """Whether all are whole numbers from `least`."""
    return set(map(type, values)) <= {int} and min(values, default=0) >= least


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
