"""Schemas of what engines send, as `msgspec` types: OpenAI's with extensions, and SGLang's.

A field that is missing or null is None, since versions of engines differ in what they write.
"""

# ruff: noqa: D101, D102 - the names are the engines'

import re
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from spsbench.foreign import MAX_COUNT, MAX_ID, MAX_NAME, FieldError, RangeError, cut

T = TypeVar("T")
MAX_DEPTH = 1024  # tokens of one draft
NAMED_ID = re.compile(r"token_id:([0-9]{1,10})")
RANGE = re.compile(r"` [<>]= |out of range")  # in what msgspec says of a number
Count = Annotated[int, Meta(ge=0, lt=MAX_COUNT)]
TokenId = Annotated[int, Meta(ge=0, lt=MAX_ID)]
TokenIds = list[TokenId]
IdText = Annotated[str, Meta(pattern="^[0-9]{1,10}$")]  # a key of JSON
Depth = Annotated[int, Meta(ge=0, lt=2**31)] | Annotated[str, Meta(pattern="^[0-9]{1,9}$")]
COUNTS = {
    "vllm": (
        *("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens"),
        *("per_step_accepted", "per_step_drafted", "acceptance_histogram"),
    ),
    "sglang": (
        *("spec_verify_ct", "spec_num_correct_drafts", "spec_accept_token_num"),
        *("spec_num_proposed_drafts", "spec_draft_token_num"),
        *("spec_correct_drafts_histogram", "spec_accept_histogram"),
    ),
    "llama": ("draft_n", "draft_n_accepted", "predicted_n"),
}
"""Engine -> its fields that count drafts; `per_step` and histograms are lists."""


class Usage(Struct):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    completion_tokens_details: dict[str, Any] | None = None


class TokenLogprob(Struct, kw_only=True):
    token: str = ""
    logprob: float
    id: TokenId | IdText | None = None
    top_logprobs: list["TokenLogprob"] | None = None

    @property
    def key(self) -> str:
        return key_of(self.token) if self.id is None else f"#{self.id}"


class Logprobs(Struct):
    content: list[TokenLogprob] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None


class Part(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: Any = None
    function_call: Any = None

    @property
    def thought(self) -> str:
        return self.reasoning_content or self.reasoning or self.refusal or ""


class Choice(Struct):
    text: str | None = None
    delta: Part | None = None
    message: Part | None = None
    logprobs: Logprobs | None = None
    token_ids: TokenIds | None = None
    tokens: TokenIds | None = None
    prompt_token_ids: TokenIds | None = None
    prompt_logprobs: list[dict[IdText, TokenLogprob] | None] | None = None
    finish_reason: str | None = None
    stop_reason: Any = None
    metrics: dict[str, Any] | None = None
    timings: dict[str, Any] | None = None


class Chunk(Struct):
    choices: list[Choice] | None = None
    usage: Usage | None = None
    prompt_token_ids: TokenIds | None = None
    metrics: dict[str, Any] | None = None
    timings: dict[str, Any] | None = None


class Row(Struct, array_like=True):
    logprob: float | None  # None: the first token of a prompt
    id: TokenId


class MetaInfo(Struct):
    finish_reason: str | dict[str, Any] | None = None
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    input_token_logprobs: list[Row] | None = None
    input_top_logprobs: list[list[Row] | None] | None = None
    output_token_logprobs: list[Row] | None = None
    output_top_logprobs: list[list[Row] | None] | None = None


class Generated(Struct):
    text: str
    output_ids: TokenIds | None = None
    meta_info: MetaInfo = msgspec.field(default_factory=MetaInfo)


class Model(Struct):
    id: Annotated[str, Meta(max_length=MAX_NAME)]
    owned_by: Any = None
    permissions: Any = None


def read(value: Any, schema: type[T]) -> T:
    """Return JSON as a value of the schema.

    Raises:
        FieldError: another schema. RangeError: a number that cannot be true.
    """
    try:
        return msgspec.convert(value, schema)
    except msgspec.ValidationError as error:
        kind = RangeError if RANGE.search(str(error)) else FieldError
        raise kind(cut(str(error).replace("`", ""), 200)) from error


def read_count(value: Any, name: str) -> Any:
    """Return a count, the counts of a list, or of a histogram as a list; None for null.

    Raises:
        FieldError: another value, or one out of range.
    """
    if value is None or not ("histogram" in name or "step_" in name):
        return read(value, Count | None)  # type: ignore[arg-type]
    return dense(value, name) if isinstance(value, dict) else read(value, list[Count])


def dense(counts: Any, name: str = "histogram") -> list[int]:
    """Return counts by number of tokens as a list.

    Raises:
        FieldError: a number that is none, or above `MAX_DEPTH`.
    """
    if isinstance(counts, dict):
        by_depth = {int(depth): n for depth, n in read(counts, dict[Depth, Count]).items()}
    else:
        by_depth = dict(enumerate(read(counts, list[Count])))
    deepest = max(by_depth, default=-1)
    if deepest > MAX_DEPTH:
        raise RangeError(f"{name}: {deepest} tokens, expected at most {MAX_DEPTH}")
    return [by_depth.get(depth, 0) for depth in range(deepest + 1)]


def key_of(token: str) -> str:
    """Return `#id` of a token whose text names its id, else its text."""
    named = NAMED_ID.fullmatch(token)
    return f"#{named[1]}" if named else token
