"""A look at acceptance: what a course was told, and is steered by."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spsbench.training.course.outlook import Gain
from spsbench.training.course.rules import Rules
from spsbench.training.course.watch import Seen, Share

RISE = 0.004  # of tau at the last depth: less is none


@dataclass(slots=True)
class Look:
    """Acceptance after so many steps."""

    step: int
    loss: float
    seen: Seen
    gain: Gain | None
    hoped: Gain | None

    @property
    def tau(self) -> float:
        """Tokens that a round emits, of as many as can be drafted."""
        return self.seen.tau(len(self.seen.reach))

    def to_json(self) -> dict[str, Any]:
        """For the log; no time in it, so that a resumed log is the same."""
        return {
            "step": self.step,
            "loss": self.loss,
            "alpha": [list(share) for share in self.seen.alpha],
            "reach": [list(share) for share in self.seen.reach],
            "texts": self.seen.texts,
            "places": self.seen.places,
            "gain": None if self.gain is None else list(self.gain),
            "hoped": None if self.hoped is None else list(self.hoped),
        }

    @classmethod
    def of(cls, values: dict[str, Any]) -> "Look":
        """From the log."""
        alpha, reach = (tuple(Share(*each) for each in values[n]) for n in ("alpha", "reach"))
        gain, hoped = (Gain(*values[n]) if values[n] else None for n in ("gain", "hoped"))
        seen = Seen(reach, alpha, values["texts"], values["places"])
        return cls(values["step"], values["loss"], seen, gain, hoped)


def why_end(looks: Sequence[Look], rules: Rules) -> str:
    """Why a course is to end after its last look, if it is."""
    now, taus = looks[-1], [look.tau for look in looks]
    if rules.patience and len(taus) > rules.patience:
        before = max(taus[: -rules.patience])
        if max(taus[-rules.patience :]) < before + RISE:
            return (
                f"tau has not risen for {rules.patience} looks: stopping. "
                "Learn on with --resume --patience 0"
            )
    if rules.worth and now.gain is not None and now.hoped is not None:
        best = max(now.gain.speedup, now.hoped.speedup)
        if best < rules.worth:
            return (
                f"{now.gain.speedup:.2f}x now, {best:.2f}x at best by the curve: stopping. "
                "Learn on with --resume --worth 0"
            )
    return ""
