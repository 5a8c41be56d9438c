"""Schemas of what engines send, as `msgspec` types: OpenAI's with extensions, and SGLang's.

A field that is missing or null is None, since versions of engines differ in what they write.
"""

# ruff: noqa: D101, D102 - the names are the engines'

import math
import re
from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from spsbench.untrusted import FieldError, RangeError, cut

T = TypeVar("T")
MAX_DEPTH = 1024  # tokens of one draft
MAX_COUNT = 2**53  # least count that a float does not hold
UNLISTED = -9000.0  # logarithms up to here state no probability: engines write -9999
NAMED_ID = re.compile(r"token_id:([0-9]{1,10})")
RANGE = re.compile(r"` [<>]= |out of range")  # in what msgspec says of a number
Count = Annotated[int, Meta(ge=0, lt=MAX_COUNT)]
TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
IdText = Annotated[str, Meta(pattern="^[0-9]{1,10}$")]
Logprob = Annotated[float, Meta(le=1e300)]  # no NaN, but -inf
Depth = Annotated[int, Meta(ge=0, le=MAX_DEPTH)]
Histogram = Annotated[list[Count], Meta(max_length=MAX_DEPTH + 1)] | dict[Depth, Count]
Stated = list[tuple[str, float]]
"""Tokens and the logarithms of their stated probabilities, likeliest first."""


class TokenDetails(Struct):
    reasoning_tokens: Count | None = None


class Usage(Struct):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    completion_tokens_details: TokenDetails | None = None


class TokenLogprob(Struct, kw_only=True):
    token: str = ""
    logprob: Logprob
    id: TokenId | IdText | None = None
    top_logprobs: list["TokenLogprob"] | None = None

    @property
    def key(self) -> str:
        named = NAMED_ID.fullmatch(self.token)
        number = named[1] if named and self.id is None else self.id
        return self.token if number is None else f"#{number}"

    @property
    def text(self) -> str | None:
        """Return what the token prints; None where an engine names it by its id."""
        return None if NAMED_ID.fullmatch(self.token) else self.token


class Logprobs(Struct):
    content: list[TokenLogprob] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[Logprob | None] | None = None
    top_logprobs: list[dict[str, Logprob] | None] | None = None

    @property
    def entries(self) -> list[TokenLogprob]:
        """Return tokens, or [], as those of chats, null logarithms as 0; FieldError: uneven."""
        if self.content or not self.tokens:
            return self.content or []
        values, rows = self.token_logprobs or [], self.top_logprobs or [None] * len(self.tokens)
        if not len(self.tokens) == len(values) == len(rows):
            raise FieldError(
                f"{len(self.tokens)} tokens, {len(values)} token_logprobs and {len(rows)} "
                "top_logprobs, expected as many"
            )
        return [
            TokenLogprob(
                token=token,
                logprob=value or 0.0,
                top_logprobs=[TokenLogprob(token=t, logprob=v) for t, v in (row or {}).items()],
            )
            for token, value, row in zip(self.tokens, values, rows, strict=True)
        ]


class ContentPart(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: Any = None
    function_call: Any = None


class Choice(Struct):
    text: str | None = None
    delta: ContentPart | None = None
    message: ContentPart | None = None
    logprobs: Logprobs | None = None
    token_ids: list[TokenId] | None = None
    tokens: list[TokenId] | None = None
    prompt_token_ids: list[TokenId] | None = None
    prompt_logprobs: list[dict[IdText, TokenLogprob] | None] | None = None
    finish_reason: str | None = None
    stop_reason: Any = None
    metrics: dict[str, Any] | None = None
    timings: dict[str, Any] | None = None
    speculative_decoding: dict[str, Any] | None = None  # TensorRT-LLM's counts


class Chunk(Struct):
    """An answer of OpenAI's schema, or an event of its stream."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    prompt_token_ids: list[TokenId] | None = None
    metrics: dict[str, Any] | None = None
    timings: dict[str, Any] | None = None
    sglext: dict[str, Any] | None = None  # SGLang's


class WireRow(Struct, array_like=True):
    logprob: Logprob | None  # None: the first token of a prompt
    id: TokenId
    text: Any = None  # what the token prints, where it is asked for

    @property
    def key(self) -> str:
        return f"#{self.id}"


Entry = TokenLogprob | WireRow


class Finish(Struct):
    type: str | None = None
    matched: Any = None


class MetaInfo(Struct):
    finish_reason: str | Finish | None = None
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    input_token_logprobs: list[WireRow] | None = None
    input_top_logprobs: list[list[WireRow] | None] | None = None
    output_token_logprobs: list[WireRow] | None = None
    output_top_logprobs: list[list[WireRow] | None] | None = None


class Generated(Struct):
    """An answer of SGLang's /generate, or an event of its stream, with the whole text so far."""

    text: str
    output_ids: list[TokenId] | None = None
    meta_info: dict[str, Any] = {}


class Model(Struct):
    id: Annotated[str, Meta(max_length=512)]
    owned_by: Any = None
    permissions: Any = None


class VllmCounts(Struct, omit_defaults=True):
    num_spec_steps: Count | None = None
    num_draft_tokens: Count | None = None
    num_accepted_draft_tokens: Count | None = None
    per_step_accepted: list[Depth] | None = None
    per_step_drafted: list[Depth] | None = None
    acceptance_histogram: Histogram | None = None


class SglangCounts(Struct, omit_defaults=True):
    spec_verify_ct: Count | None = None
    spec_num_correct_drafts: Count | None = None
    spec_accept_token_num: Count | None = None
    spec_num_proposed_drafts: Count | None = None
    spec_draft_token_num: Count | None = None
    spec_correct_drafts_histogram: Histogram | None = None
    spec_accept_histogram: Histogram | None = None


class TrtllmCounts(Struct, omit_defaults=True):
    num_spec_steps: Count | None = None
    total_draft_tokens: Count | None = None
    total_accepted_draft_tokens: Count | None = None
    acceptance_histogram: Histogram | None = None


class LlamaCounts(Struct, omit_defaults=True):
    draft_n: Count | None = None
    draft_n_accepted: Count | None = None
    predicted_n: Count | None = None


class Counts(Struct, omit_defaults=True):
    """Counts of drafting in an answer, in the engine's terms."""

    vllm: VllmCounts | None = None
    sglang: SglangCounts | None = None
    trtllm: TrtllmCounts | None = None
    llama: LlamaCounts | None = None
    wrong: str | None = None  # why the counts of an answer cannot be true


def read_json(value: Any, schema: type[T]) -> T:
    """Return JSON as `schema`; FieldError: it is of another. RangeError: a number out of range."""
    try:
        return msgspec.convert(value, schema, str_keys=True)
    except ValueError as error:  # not of the schema, or half a surrogate pair
        kind = RangeError if RANGE.search(str(error)) else FieldError
        raise kind(cut(str(error).replace("`", ""), 200)) from error


def first_known(*values: T | None) -> T | None:
    """Return the first value that is not None."""
    return next((value for value in values if value is not None), None)


def key_and_logarithm(entry: Entry) -> tuple[str, float]:
    """Return a token's key and logarithm, -inf if that states no probability; FieldError: null."""
    if entry.logprob is None:
        raise FieldError(f"logprob of {cut(entry.key)}: null, expected a number")
    return entry.key, entry.logprob if entry.logprob > UNLISTED else -math.inf


def order_row(row: Iterable[Entry] | None) -> Stated:
    """Return tokens and their logarithms, the likeliest first."""
    return sorted(map(key_and_logarithm, row or ()), key=lambda entry: -entry[1])
