"""From turns to figures. Nothing here runs an engine.

A turn's first block is left out, for some engines have the prefill in it, and so is its last, which
the token budget cuts. What is left is decoding alone: seconds, tokens and target passes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

MS = 1e3


class Spread(NamedTuple):
    """Repeats in three numbers."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Decoding:
    """One turn without its first and last block."""

    tokens: float
    passes: int
    seconds: float

    @property
    def ms_per_token(self) -> float:
        """Mean token time."""
        return MS * self.seconds / self.tokens

    @property
    def ms_per_pass(self) -> float:
        """Mean time of a round."""
        return MS * self.seconds / self.passes

    @property
    def tau(self) -> float:
        """Tokens a target pass."""
        return self.tokens / self.passes


def decoding(turn: Mapping[str, Any]) -> Decoding | None:
    """The part of a turn that counts; None where nothing is left."""
    blocks = turn["blocks"] if turn["whole"] else turn["blocks"][1:-1]
    if not blocks:
        return None
    return Decoding(sum(b[0] for b in blocks), len(blocks), sum(b[1] for b in blocks))


def spread(values: Sequence[float]) -> Spread:
    """Median, least and most."""
    return Spread(median(values), min(values), max(values))


def over_turns(
    facts: Mapping[str, Any], arm: str, of: Callable[[Decoding], float]
) -> Spread | None:
    """A figure of an arm over its repeats; None where all were too short."""
    values = [of(found) for turn in facts["turns"][arm] if (found := decoding(turn))]
    return spread(values) if values else None


def step(facts: Mapping[str, Any], kind: str) -> Spread | None:
    """Milliseconds of a single pass: the median of each repeat, over repeats."""
    times = [median(found[kind]) for found in facts["steps"] if found.get(kind)]
    return spread([MS * seconds for seconds in times]) if times else None


def over_limit(facts: Mapping[str, Any], bytes_: int) -> Spread | None:
    """Single-token passes over what memory allowed beside them.

    A machine whose memory others use as well reads at twice the speed from one second to the next:
    our own engines read between two passes, of the others' the bandwidth just before is taken.
    """
    ratios = []
    for found in facts["steps"]:
        one = found.get("one") or []
        beside = found.get("beside") or [max(found["bandwidth"])] * len(one)
        pairs = zip(one, beside, strict=True)
        ratios += [median([seconds * speed / bytes_ for seconds, speed in pairs])] if one else []
    return spread(ratios) if ratios else None


def block_cost(facts: Mapping[str, Any]) -> Spread | None:
    """v(K): a pass over K+1 tokens over a pass over one, both of the same repeat."""
    pairs = [f for f in facts["steps"] if f.get("one") and f.get("block")]
    ratios = [median(found["block"]) / median(found["one"]) for found in pairs]
    return spread(ratios) if ratios else None


class Ratio(NamedTuple):
    """Ours over theirs, each pair from one repeat; by token, and by target pass.

    By pass is what "at equal tau" means: texts part at near-ties in low precision, and then one
    engine's draft is luckier than the other's.
    """

    by_token: Spread
    by_pass: Spread


def ratio(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]) -> Ratio | None:
    """Over the repeats that both have, long enough; None when there is none."""
    pairs = [
        (mine, other)
        for a, b in zip(ours, theirs, strict=False)
        if (mine := decoding(a)) and (other := decoding(b))
    ]
    if not pairs:
        return None
    return Ratio(
        spread([mine.ms_per_token / other.ms_per_token for mine, other in pairs]),
        spread([mine.ms_per_pass / other.ms_per_pass for mine, other in pairs]),
    )


def outside_models(turns: Sequence[Mapping[str, Any]]) -> Spread | None:
    """Share of the rounds' time that is in neither the drafter nor the target."""
    parts = [turn["parts"] for turn in turns if turn["parts"].get("rounds")]
    shares = [1 - (p["drafting"] + p["target"]) / p["rounds"] for p in parts]
    return spread(shares) if shares else None


def agreement(turn: Mapping[str, Any], reference: Mapping[str, Any]) -> int | None:
    """Index of the first token that differs from the reference's; None: none of those both made."""
    pairs = zip(turn["tokens"], reference["tokens"], strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), None)


def best_bandwidth(readings: Sequence[Mapping[str, float]]) -> float:
    """Bytes per second: the best of all readings of the run."""
    return max(value for reading in readings for value in reading.values())


def steady_bytes(facts: Mapping[str, Any]) -> int:
    """What the process holds after its last turn, over what it held before it loaded a model."""
    last = [turns[-1]["rss"] for turns in facts["turns"].values() if turns]
    return int(max(last) - facts["loads"][-1]["before"])


def peak_bytes(facts: Mapping[str, Any]) -> int:
    """The most that it held, loading included, over what it held before."""
    peaks = [turn["peak"] for turns in facts["turns"].values() for turn in turns]
    return int(max([*peaks, facts["loads"][-1]["peak"]]) - facts["loads"][-1]["before"])
