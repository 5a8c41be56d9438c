"""Two generations of one prompt: what the speculation gained, and that it lost nothing."""

from collections.abc import Sequence
from typing import NamedTuple

from spsbench.audit.text.ties import Divergence, first_divergence
from spsbench.figures.rates import Estimate, segments, speedup
from spsbench.models.shelf import Loaded
from spsbench.runs.arms import Arm

SEGMENT = 8  # tokens that are timed together: the unit of the interval
FEWEST = 4  # segments below which a speed-up says nothing


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
            told = f"speed-up: n/a (needs {FEWEST} segments of {SEGMENT} tokens in both arms)"
        else:
            told = f"speed-up over ArS: {gained.mean:.2f}x ({_interval(gained)}, this prompt)"
        return [told, *[BUSY] * self.loaded, sameness(self)]


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
    """Over segments in the order of time, so that both arms saw the same machine."""
    baseline, other = (segments(arm.record.rounds, SEGMENT) for arm in (ars, sps))
    paired = min(len(baseline), len(other))
    return speedup(baseline[:paired], other[:paired]) if paired >= FEWEST else None


def _interval(gained: Estimate) -> str:
    if gained.low is None or gained.high is None:
        return f"no interval: {gained.n} segments of {SEGMENT} tokens"
    return f"95% interval {gained.low:.2f} to {gained.high:.2f}"


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
