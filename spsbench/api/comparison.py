"""Two generations of one prompt: what the speculation gained, and that it lost nothing."""

from collections.abc import Sequence
from typing import NamedTuple

from spsbench.audit.statistical.greedy import Divergence, first_divergence
from spsbench.benchmark.arms import Arm
from spsbench.metrics.intervals import FEWEST, Estimate
from spsbench.metrics.rates import segments, speedup
from spsbench.models.cache import Loaded

SEGMENT = 8  # tokens that are timed together: the unit of the interval
SHORTEST = 32  # tokens of a text below which a speed-up says nothing

Segments = list[tuple[float, int]]
"""(seconds, tokens) of each."""

BUSY = (
    "warning: other work kept this machine busy meanwhile: times are too long, and the speed-up is "
    "of a machine that is shared. End the other work (top shows it) and try again"
)


class Comparison(NamedTuple):
    """Two generations of one prompt."""

    ars: Arm
    sps: Arm
    speedup: Estimate | None  # None: too short to tell
    identical: bool | None  # None: sampled, so they differ by design
    divergence: Divergence | None
    loaded: bool = False  # other work kept the machine busy meanwhile

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """What a person is told."""
        gained = self.speedup
        if gained is None:
            short, other = written(self.ars), written(self.sps)
            told = (
                f"speed-up: n/a (needs {SHORTEST} tokens in both texts; ArS wrote {short}, SpS "
                f"{other})"
            )
        else:
            told = f"speed-up over ArS: {gained.mean:.2f}x ({self._interval(gained)}, this prompt)"
        return [told, *[BUSY] * self.loaded, sameness(self)]

    def _interval(self, gained: Estimate) -> str:
        if gained.low is not None and gained.high is not None:
            return f"95% interval {gained.low:.2f} to {gained.high:.2f}"
        there = len(paired(self.ars, self.sps)[0])
        return (
            f"no interval: needs {FEWEST} segments of {SEGMENT} tokens or more in both texts, "
            f"which have {there}"
        )


def compare(
    loaded: Loaded, prompt: Sequence[int], ars: Arm, sps: Arm, *, busy: bool = False
) -> Comparison:
    """The speed-up of `sps` over `ars`; at temperature 0 whether they wrote the same."""
    identical, divergence = None, None
    if sps.cell.sampling.temperature == 0:
        identical = ars.record.tokens == sps.record.tokens
    if identical is False:
        drafted = max(r.drafted for r in sps.record.rounds)
        texts = ars.record.tokens, sps.record.tokens
        divergence = first_divergence(loaded.target, prompt, *texts, drafted)
    return Comparison(ars, sps, gain(ars, sps), identical, divergence, busy)


def gain(ars: Arm, sps: Arm) -> Estimate | None:
    """The speed-up; None where a text is too short to tell.

    Over segments in the order of time, so that both arms saw the same machine. Where there are too
    few for an interval, over the whole texts: how rounds fall into segments changes nothing then.
    """
    if min(written(ars), written(sps)) < SHORTEST:
        return None
    ours, theirs = paired(ars, sps)
    if len(ours) < FEWEST:
        ours, theirs = whole(ars), whole(sps)
    return speedup(ours, theirs)


def whole(arm: Arm) -> Segments:
    """The text as one segment."""
    return [(sum(r.seconds for r in arm.record.rounds), written(arm))]


def paired(ars: Arm, sps: Arm) -> tuple[Segments, Segments]:
    """The segments of both arms, as many of each."""
    ours, theirs = (segments(arm.record.rounds, SEGMENT) for arm in (ars, sps))
    both = min(len(ours), len(theirs))
    return ours[:both], theirs[:both]


def written(arm: Arm) -> int:
    """Tokens of its text."""
    return sum(r.emitted for r in arm.record.rounds)


def sameness(comparison: Comparison) -> str:
    """Whether the two texts are the same, and what it means if not."""
    if comparison.identical is None:
        return "tokens: texts differ by design (same law)"
    if comparison.identical:
        return "tokens: identical to ArS"
    found = comparison.divergence
    if found is None:
        return "tokens: one text is the beginning of the other"
    meaning = {"tie": "a rounding tie", "bug": "a BUG: please report it"}[found.kind]
    return (
        f"tokens: first difference at token {found.position + 1}: {meaning} "
        f"(logits {found.gap:.3g} apart, rounding {found.tolerance:.3g})"
    )
