"""What a task of the harness asks of a generation, and what the rounds of all of them show."""

from collections.abc import Mapping, Sequence
from typing import Any

from spsbench.errors import UsageError
from spsbench.settings.records import RoundRecord

MOST_TOKENS = 256  # of a text whose task gives no limit
LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
SAMPLING = ("temperature", "top_p", "top_k", "min_p")


def generation_options(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a generation from a task's `generation_kwargs`.

    Raises:
        UsageError: one that is not known.
    """
    unknown = [name for name in asked if name not in ("until", "do_sample", *LIMITS, *SAMPLING)]
    if unknown:
        raise UsageError(
            f"generation_kwargs {', '.join(unknown)}: expected until, do_sample, "
            f"{', '.join((*LIMITS, *SAMPLING))}. Leave them out"
        )
    until = asked.get("until") or []
    stop = [until] if isinstance(until, str) else [text for text in until if text]
    tokens = next((asked[name] for name in LIMITS if asked.get(name) is not None), MOST_TOKENS)
    sampling = {name: asked[name] for name in SAMPLING if asked.get(name) is not None}
    if not asked.get("do_sample", sampling.get("temperature", 0) > 0):
        sampling = {"temperature": 0.0}
    more = {"stop": stop} if stop else {}
    return {"max_new_tokens": int(tokens), "truncate": True, **sampling, **more}


def speculation_line(rounds: Sequence[RoundRecord]) -> str:
    """Return tau and alpha of all rounds in a line; empty without rounds."""
    if not rounds:
        return ""
    tau = sum(each.emitted for each in rounds) / len(rounds)
    line = f"speculation: tau {tau:.2f} tokens a round over {len(rounds)} rounds"
    tested = [each for each in rounds if each.tested > 0]
    overlaps = [each.overlap for each in tested if each.overlap is not None]
    if not tested or len(overlaps) < len(tested):
        return line
    return f"{line}, alpha {sum(overlaps) / sum(each.tested for each in tested):.3f}"
