"""Options of a plan from logs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from spsbench.settings.options import MACHINE, RUN, WORK, Option, Setting, between, options_of

RATIO = between(0, 1e6, "a number from 0")
LOG_GROUP = "Logs"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Options of `sps plan --log` that no other plan has."""

    log: Annotated[
        tuple[str, ...],
        Option(
            "Answer from this log of served requests alone: a file, -, or a run; repeatable.",
            RUN,
            metavar="PATH",
        ),
    ] = ()
    tokenizer: Annotated[
        str | None,
        Option(
            "Tokenizer of the target, for logs of texts: a tokenizer.json, a folder, or a model.",
            WORK,
        ),
    ] = None
    alpha: Annotated[
        str | None,
        Option("Only print the formulas for these acceptance rates: 0.5,0.7,0.9.", MACHINE),
    ] = None
    draft_ratio: Annotated[
        float | None,
        Option("Cost of a drafted token of a model, in plain passes.", MACHINE, RATIO),
    ] = None
    row_ratio: Annotated[
        float | None,
        Option("Cost of a further row of the target's pass, in plain passes.", MACHINE, RATIO),
    ] = None
    roofline: Annotated[
        str | None,
        Option("Price rounds by a roofline: h100,params=8e9,kv_bytes=131072.", MACHINE),
    ] = None
    texts: Annotated[bool, Option("Show texts of the requests that gain most and least.", RUN)] = (
        False
    )


OF_LOGS: Mapping[str, Setting] = options_of(LogOptions)
"""Name -> setting, of `sps plan --log`."""
