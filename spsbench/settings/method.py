"""The method of a cell: how tokens are drafted and verified."""

from dataclasses import dataclass
from typing import Annotated

from spsbench.settings.option import METHOD, Option
from spsbench.spec import Spec

AUTO = Spec("auto")
OWN_LOOP = "native"
CONSTANT = "constant"  # the schedule that `k` stands for


def constant(k: int) -> Spec:
    """The schedule that drafts `k` tokens in every round."""
    return Spec(CONSTANT, (("lookahead", k),))


@dataclass(frozen=True, slots=True)
class Method:
    """Who drafts, who verifies, how much, and in whose loop."""

    drafter: Annotated[
        Spec,
        Option(
            "NAME[:key=value,...]; see sps list.",
            METHOD,
            shown="model with a draft model, else ngram",
        ),
    ] = Spec("model")
    verifier: Annotated[
        Spec,
        Option(
            "The acceptance rule.",
            METHOD,
            shown="sps for sampled chains, traversal for sampled trees, else match",
        ),
    ] = AUTO
    schedule: Annotated[Spec, Option("Chooses K anew each round.", METHOD, shown="constant")] = (
        constant(4)
    )
    decoder: Annotated[Spec, Option("native, or hf: transformers' own generate.", METHOD)] = Spec(
        "native"
    )

    def __str__(self) -> str:
        """What keys the noise.

        So methods draw independently of each other from one seed, while a longer budget only
        continues the text (but for the last token, before which there was less room to draft).
        """
        return f"{self.drafter}/{self.verifier}/{self.schedule}"

    @property
    def own_loop(self) -> bool:
        """Whether it is this package's loop, not another library's."""
        return self.decoder.name == OWN_LOOP

    @property
    def k(self) -> int | None:
        """Tokens drafted a round: 0 for ArS, None under a schedule that is not constant."""
        if self.drafter.name == "none":
            return 0
        lookahead = dict(self.schedule.args).get("lookahead")
        return int(lookahead) if self.schedule.name == CONSTANT and lookahead is not None else None
