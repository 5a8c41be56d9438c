"""The sampling of a cell: the law that must come out, and where the text ends."""

from dataclasses import dataclass
from typing import Annotated

from spsbench.settings.option import SAMPLING, Check, Option, at_least, between

SEED_MAX = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Sampling:
    """The warp, the budget, the stops and the seed."""

    max_new_tokens: Annotated[
        int,
        Option("Tokens to generate at most.", SAMPLING, at_least(0), flags=("n",)),
    ] = 128
    temperature: Annotated[float, Option("0 is greedy.", SAMPLING, at_least(0))] = 1.0
    top_p: Annotated[
        float,
        Option(
            "Nucleus sampling; 1 is off.",
            SAMPLING,
            Check(lambda p: 0 < p <= 1, "above 0 and at most 1"),
        ),
    ] = 1.0
    top_k: Annotated[
        int,
        Option(
            "The likeliest tokens only; 0 is off.",
            SAMPLING,
            Check(lambda k: k >= 0, "1 or more, or 0 for off"),
        ),
    ] = 0
    seed: Annotated[
        int,
        Option("The same seed gives the same text.", SAMPLING, between(0, SEED_MAX, "0..2^64-1")),
    ] = 0
    stop: Annotated[
        tuple[str, ...],
        Option(
            "End before this text; may be given more than once.",
            SAMPLING,
            Check(bool, "a text of at least one character"),
        ),
    ] = ()
    ignore_eos: Annotated[bool, Option("Go on after an end-of-text token.", SAMPLING)] = False
