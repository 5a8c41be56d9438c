"""Logits processors as options: penalties, biases and bans, which depend on the text so far.

What a user gives becomes the text that a cell records; `methods.processors` turns words into token
ids once a tokenizer is there.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

from spsbench.errors import UsageError
from spsbench.settings.options import SAMPLING, Check, Option

OF_ANSWER = "answer"
"""Scope of a repetition penalty that counts no token of the prompt."""
FINITE = Check(math.isfinite, "a finite number")
COUNT = Check(lambda n: n >= 0, "1 or more, or 0 for off")


def read_penalty(value: Any, where: str) -> str:
    """Return a repetition penalty as a cell records it: `1.1`, or `1.1:answer`; 1 is off.

    `value` is a number above 0, perhaps as text with the scope `:answer`. UsageError, which names
    the option `where`: any other.
    """
    number, colon, scope = str(value).partition(":")
    penalty = _number(number)
    if isinstance(value, bool) or not 0 < penalty < math.inf or scope != OF_ANSWER * bool(colon):
        raise UsageError(
            f"{where} is {value}: expected a number above 0 (1 is off), or with :{OF_ANSWER} one "
            "that counts no token of the prompt"
        )
    return f"{penalty:.12g}{colon}{scope}" if penalty != 1 else "1"


def read_biases(value: Any, where: str) -> tuple[str, ...]:
    """Return biases in their order as a cell records them: `TOKEN=VALUE` with 12 digits.

    `value` is one such text or several, or a mapping from token ids or texts to numbers.
    UsageError, with the option `where`: no token before the last `=`, or no finite number behind.
    """
    if isinstance(value, Mapping):
        value = [f"{token}={bias}" for token, bias in value.items()]
    biases = []
    for text in value if isinstance(value, Sequence) and not isinstance(value, str) else [value]:
        token, _, number = str(text).rpartition("=")
        bias = _number(number)
        if not token or not math.isfinite(bias):
            raise UsageError(
                f"{where} is {text!r}: expected TOKEN=VALUE with the id or the text of a token and "
                "a finite number, such as 11=-2.5"
            )
        biases.append(f"{token}={bias:.12g}")
    return tuple(biases)


def _number(text: str) -> float:
    """Return the number that a text is; NaN for any other text."""
    try:
        return float(text)
    except ValueError:
        return math.nan


@dataclass(frozen=True)
class ProcessorSettings:
    """Options of logits processors, in the order in which they apply, before those of the warp.

    `loop.processors` says what they do, and `audit.statistical.processed` says it once more.

    Args:
        logit_bias: Add VALUE to the logit of a token, named by its id or its text; repeatable.
        repetition_penalty: Divide positive logits of tokens in prompt and answer by this number,
            and multiply others; with :answer, of tokens in the answer alone.
        frequency_penalty: Subtract this from a token's logit for each time that the answer has it.
        presence_penalty: Subtract this from the logits of tokens that the answer has.
        no_repeat_ngram: Never repeat N tokens of prompt and answer in a row; 0 is off.
        bad_words: Never write this text, alone or after a space; repeatable.
        min_new_tokens: Minimum number of tokens before the answer may end.
    """

    logit_bias: Annotated[
        tuple[str, ...], Option(SAMPLING, metavar="TOKEN=VALUE", parse=read_biases)
    ] = ()
    repetition_penalty: Annotated[
        str, Option(SAMPLING, metavar="R[:answer]", parse=read_penalty)
    ] = "1"
    frequency_penalty: Annotated[float, Option(SAMPLING, FINITE)] = 0.0
    presence_penalty: Annotated[float, Option(SAMPLING, FINITE)] = 0.0
    no_repeat_ngram: Annotated[int, Option(SAMPLING, COUNT, metavar="N")] = 0
    bad_words: Annotated[
        tuple[str, ...], Option(SAMPLING, Check(bool, "a text of at least one character"))
    ] = ()
    min_new_tokens: Annotated[int, Option(SAMPLING, COUNT)] = 0

    @property
    def changed(self) -> dict[str, Any]:
        """Return the options that are not off, by name."""
        options = fields(ProcessorSettings)
        return {f.name: v for f in options if (v := getattr(self, f.name)) != f.default}


PROCESSORS = tuple(one.name for one in fields(ProcessorSettings))
IN_CONFIGS = {
    "repetition_penalty": "repetition_penalty",
    "no_repeat_ngram_size": "no_repeat_ngram",
    "min_new_tokens": "min_new_tokens",
}
"""Key of a generation_config.json -> the option, of those that a chat takes from there."""


@dataclass(frozen=True)
class Processors:
    """The processors of a text, in token ids; each is off by default."""

    biases: tuple[tuple[int, float], ...] = ()  # (token, what its logit gains), each token once
    repetition: float = 1.0  # divides positive logits of tokens in the text, multiplies others
    of_answer: bool = False  # the repetition penalty counts tokens of the answer alone
    frequency: float = 0.0  # subtracted from a token's logit for each time that the answer has it
    presence: float = 0.0  # subtracted from the logits of tokens that the answer has
    ngram: int = 0  # so many tokens in a row occur once in prompt and answer; 0 is off
    words: tuple[tuple[int, ...], ...] = ()  # rows that no answer completes, wherever begun
    least: int = 0  # tokens of the answer before one of `eos`
    eos: frozenset[int] = field(default_factory=frozenset)  # ids that end a text
    further: Callable[[Any, Any], Any] | None = None  # (ids so far, [V] logits) -> [V], the last
