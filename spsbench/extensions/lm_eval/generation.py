"""What a task of the harness asks of a generation, and what the rounds of all of them show."""

from collections.abc import Mapping, Sequence
from typing import Any

from spsbench.errors import UsageError
from spsbench.metrics.rates import metrics
from spsbench.settings.records import RoundRecord

MOST_TOKENS = 256  # of a text whose task gives no limit
LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed")
NEUTRAL = {
    "num_beams": 1,
    "num_return_sequences": 1,
    "repetition_penalty": 1,
    "length_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "no_repeat_ngram_size": 0,
    "use_cache": True,
}
"""Options of other models whose value here changes nothing."""


def generation_options(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a generation from a task's `generation_kwargs`.

    Raises:
        UsageError: one that is not known, with a value that would change a text.
    """
    asked = {
        name: value
        for name, value in asked.items()
        if value is not None and not (name in NEUTRAL and value == NEUTRAL[name])
    }
    if asked.get("top_k") == -1:
        del asked["top_k"]
    unknown = [name for name in asked if name not in ("until", "do_sample", *LIMITS, *SAMPLING)]
    if unknown:
        raise UsageError(
            f"generation_kwargs {', '.join(unknown)}: expected until, do_sample, "
            f"{', '.join((*LIMITS, *SAMPLING))}. Leave them out"
        )
    until = asked.get("until") or []
    stop = [until] if isinstance(until, str) else [text for text in until if text]
    tokens = next((asked[name] for name in LIMITS if name in asked), MOST_TOKENS)
    sampling = {name: asked[name] for name in SAMPLING if name in asked}
    if not asked.get("do_sample", sampling.get("temperature", 0) > 0):
        sampling = {"temperature": 0.0}
    more = {"stop": stop} if stop else {}
    return {"max_new_tokens": int(tokens), "truncate": True, **sampling, **more}


def speculation_line(rounds: Sequence[RoundRecord]) -> str:
    """Return tau and alpha of all rounds in a line; empty without rounds."""
    figures = metrics(rounds, 0.0)
    if figures.block_efficiency is None:
        return ""
    tau = f"tau {figures.block_efficiency:.2f} tokens a round over {figures.rounds} rounds"
    alpha = "" if figures.alpha is None else f", alpha {figures.alpha:.3f}"
    return f"speculation: {tau}{alpha}"
