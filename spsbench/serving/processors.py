"""Fields of requests for logits processors: what engines call those that they have."""

from collections.abc import Mapping
from typing import Any

from spsbench.errors import DataError

PENALTY, OF_ANSWER, BIASES = "repetition_penalty", "repetition_penalty of the answer", "logit_bias"
MAX_BIAS = 100.0  # the bound of the schema; vLLM cuts what is beyond
COUNTS = {name: name for name in ("presence_penalty", "frequency_penalty", BIASES)}
FIELDS: Mapping[str, Mapping[str, str]] = {  # by `Kind`
    "vllm": COUNTS | {PENALTY: PENALTY, "min_new_tokens": "min_tokens", "bad_words": "bad_words"},
    "sglang": COUNTS | {OF_ANSWER: PENALTY, "min_new_tokens": "min_new_tokens"},
    # engines on llama.cpp count the prompt for frequency and presence too
    "llama-server": {PENALTY: "repeat_penalty", BIASES: BIASES},
    "llama-cpp-python": {BIASES: BIASES},
    "openai": COUNTS,
}
BESIDE = {"repeat_penalty": {"repeat_last_n": -1}}
"""Field -> what makes it count the whole text."""


def processor_fields(kind: str, options: Mapping[str, Any], server: str) -> dict[str, Any]:
    """Return the fields of a request for the processors that are on.

    Args:
        kind: the engine.
        options: the options on, by name, with `logit_bias` as pairs of a token id and a bias.
        server: its address and name, for the message.

    Raises:
        DataError: the engine lacks one, or means another.
    """
    values, names = dict(options), FIELDS[kind]
    number, colon, _ = str(values.pop(PENALTY, "")).partition(":")
    if number:
        values[OF_ANSWER if colon else PENALTY] = float(number)
    if any(abs(bias) > MAX_BIAS for _, bias in values.get(BIASES, ())):
        raise DataError(f"a bias beyond {MAX_BIAS:g} ({server}): expected less. Ban with bad_words")
    if lacking := [name for name in values if name not in names]:
        raise DataError(
            f"no {', '.join(lacking)} ({server}): expected an engine with that parameter and of "
            "that meaning. Leave the option out"
        )
    if BIASES in values:
        values[BIASES] = {str(token): bias for token, bias in values[BIASES]}
    fields = {names[name]: value for name, value in values.items()}
    return fields | {n: v for name in fields for n, v in BESIDE.get(name, {}).items()}
