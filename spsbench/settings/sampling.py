"""The sampling of a cell: the law that must come out, and where the text ends."""

from dataclasses import dataclass, fields
from typing import Annotated

from spsbench.settings.option import SAMPLING, Check, Option, at_least, between

SEED_MAX = 2**64 - 1


@dataclass(frozen=True, slots=True)
class WarpSettings:
    """The options of the warp from logits to laws, in the order in which they apply.

    `loop.sampling.Warp` says what they do, and `audit.warping` says it once more. Command line,
    records, labels, traces and peers derive from these fields, whose names transformers uses too.
    """

    temperature: Annotated[float, Option("0 is greedy.", SAMPLING, at_least(0))] = 1.0
    top_k: Annotated[
        int,
        Option(
            "The likeliest tokens only; 0 is off.",
            SAMPLING,
            Check(lambda k: k >= 0, "1 or more, or 0 for off"),
        ),
    ] = 0
    top_p: Annotated[
        float,
        Option(
            "Nucleus sampling; 1 is off.",
            SAMPLING,
            Check(lambda p: 0 < p <= 1, "above 0 and at most 1"),
        ),
    ] = 1.0
    min_p: Annotated[
        float,
        Option(
            "No token below this share of the likeliest one's probability; 0 is off.",
            SAMPLING,
            between(0, 1, "0 (off) to 1"),
        ),
    ] = 0.0


WARP = tuple(each.name for each in fields(WarpSettings))
ALWAYS_RECORDED = ("temperature", "top_k", "top_p")
"""Options of the warp that every record names; another one only where it is not at its default."""


@dataclass(frozen=True, slots=True)
class Sampling(WarpSettings):
    """The warp, the budget, the stops and the seed."""

    max_new_tokens: Annotated[
        int,
        Option("Tokens to generate at most.", SAMPLING, at_least(0), flags=("n",)),
    ] = 128
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

    @property
    def warp(self) -> WarpSettings:
        """The options of the warp alone."""
        return WarpSettings(**{name: getattr(self, name) for name in WARP})

    @property
    def recorded_warp(self) -> dict[str, float]:
        """The options of the warp as traces, tables of costs and golden files record them."""
        usual = WarpSettings()
        values = {name: getattr(self, name) for name in WARP}
        return {n: v for n, v in values.items() if n in ALWAYS_RECORDED or v != getattr(usual, n)}
