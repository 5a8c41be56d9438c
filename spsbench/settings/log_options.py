"""Options of a plan from logs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from spsbench.settings.options import MACHINE, RUN, WORK, Option, Setting, between, options_of

RATIO = between(0, 1e6, "a number from 0")
LOG_GROUP = "Logs"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Options of `sps plan --log` that no other plan has.

    Args:
        log: Answer from this log of served requests alone: a file, -, or a run; repeatable.
        tokenizer: Tokenizer of the target, for logs of texts: a tokenizer.json, a folder, or a
            model.
        alpha: Only print the formulas for these acceptance rates: 0.5,0.7,0.9.
        draft_ratio: Cost of a drafted token of a model, in plain passes.
        row_ratio: Cost of a further row of the target's pass, in plain passes.
        roofline: Price rounds by a roofline: h100,params=8e9,kv_bytes=131072.
    """

    log: Annotated[tuple[str, ...], Option(RUN, metavar="PATH")] = ()
    tokenizer: Annotated[str | None, Option(WORK)] = None
    alpha: Annotated[str | None, Option(MACHINE)] = None
    draft_ratio: Annotated[float | None, Option(MACHINE, RATIO)] = None
    row_ratio: Annotated[float | None, Option(MACHINE, RATIO)] = None
    roofline: Annotated[str | None, Option(MACHINE)] = None


OF_LOGS: Mapping[str, Setting] = options_of(LogOptions)
"""Name -> setting, of `sps plan --log`."""
