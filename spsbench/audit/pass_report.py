"""Results of comparing passes over several tokens with tokens that are fed alone.

One form for models that run here (`audit.passes`) and for servers (`audit.served_rows`).
"""

from dataclasses import dataclass
from enum import StrEnum

ENGINE, STOCK = "engine ", "transformers"
SERVER, BASELINE = "server", "baseline"
COUNTS = 1e-2  # of the deviation of logits: what states that matter move


class Difference(StrEnum):
    """The kinds of difference between a way to feed tokens and feeding them alone."""

    NONE = "same bits"
    ROUNDING = "rounding"
    TWO_LAWS = "two laws"
    PAST_IGNORED = "past ignored"


SMALL = (Difference.NONE, Difference.ROUNDING)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Logits of passes over several tokens against those of the same tokens alone.

    Attributes:
        way: how the tokens are fed.
        dtype: of the model; empty: a server, which does not say.
        size: tokens of a pass; 0: not known.
        gap: largest difference of logits; of a server, of stated log-probabilities in nats.
        spread: standard deviation of those of tokens fed alone.
        flips: tokens after which another one is the likeliest, of `tokens`.
        module: the first that makes another output of equal inputs; empty: none was found.
        operation: its class.
        by: largest difference of its outputs.
    """

    way: str
    dtype: str
    size: int
    gap: float
    spread: float
    flips: int
    tokens: int
    kind: Difference
    module: str = ""
    operation: str = ""
    by: float = 0.0

    @property
    def owner(self) -> str:
        """Return who fed the tokens: `engines`, `transformers` or `servers`."""
        if self.way.startswith(ENGINE):
            return "engines"
        return STOCK if self.way.startswith(STOCK) else "servers"

    @property
    def judged(self) -> bool:
        """Return whether the verdict depends on it: transformers is only reported."""
        return self.owner != STOCK


@dataclass(frozen=True, slots=True)
class PassReport:
    """Comparisons of one model.

    Attributes:
        states: whether it keeps states, which the control zeroed.
        moved: by how much that moved logits, in their deviations; of a server, by how many nats
            the rows of neighbouring tokens are apart.
        rounding: nats by which a server's rows of one text are apart, alone and among others; None
            where the model runs here.
        explained: nats between rows of a server that count as rounding.
    """

    model: str
    comparisons: tuple[Comparison, ...]
    states: bool = False
    moved: float = 0.0
    rounding: float | None = None
    explained: float = 0.0

    @property
    def valid(self) -> bool:
        """Return whether lost states, or a row of another token, would be seen."""
        if self.rounding is not None:
            return self.moved > self.explained
        return not self.states or self.moved > COUNTS

    @property
    def held(self) -> bool:
        """Return whether engines of this package, or servers, differ by no more than rounding."""
        return all(one.kind in SMALL for one in self.comparisons if one.judged)

    @property
    def line(self) -> str:
        """Return the result in a sentence."""
        if not self.valid and self.rounding is not None:
            return f"not valid: rows of neighbouring tokens are only {self.moved:.2g} nats apart"
        if not self.valid:
            return f"not valid: lost states would move logits by {self.moved:.2g} deviations only"
        kinds: dict[str, list[Difference]] = {"engines": []}
        for one in self.comparisons:
            kinds.setdefault(one.owner, []).append(one.kind)
        worst = {
            owner: max(of_owner, key=list(Difference).index).value
            for owner, of_owner in kinds.items()
            if of_owner
        }
        verdict = "held" if self.held else "bias"
        return f"{verdict}: " + ", ".join(f"{owner}: {kind}" for owner, kind in worst.items())
