"""Answers of engines, read from OpenAI's schema and SGLang's, with every field checked.

Time and number of tokens are of one span: the first delta with any generated text, be it an answer,
reasoning or a call of a tool, opens the clock, and tokens that the server counts and does not send
are left out of the count.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from spsbench.foreign import FieldError, cut, logprob, mapping
from spsbench.serving.http import AbortedAnswerError, Reply
from spsbench.serving.wire import (
    COUNTS,
    Choice,
    Chunk,
    Count,
    Generated,
    Row,
    key_of,
    read,
    read_count,
)

ID_KEY = re.compile(r"#[0-9]{1,10}")
ENDS = {
    "length": frozenset(("length", "max_tokens", "max_new_tokens", "max_length")),
    "context": frozenset(("context", "context_length", "model_length")),
    "stop": frozenset(
        ("stop", "eos", "eos_token", "end_turn", "stop_sequence", "tool_calls", "function_call")
    ),
}
"""End of a text -> the engines' words for it; after any other the text is not whole."""
Stated = list[tuple[str, float]]
"""Tokens and the logarithms of their stated probabilities, likeliest first."""


@dataclass(slots=True)
class Answer:
    """One continuation."""

    text: str
    keys: list[str]  # keys of the tokens that the engine lists
    own: list[float]  # log probability of each token
    stated: list[Stated]  # likeliest tokens at each token
    finish: str | None
    ids: list[int] | None = None
    prompt_ids: list[int] | None = None
    prompt_tokens: int | None = None
    count: int | None = None  # tokens that came, by the engine's count
    counts: dict[str, Any] = field(default_factory=dict)  # of drafting, in the engine's terms
    stamps: list[float] = field(default_factory=list)  # arrival times of text in seconds
    sizes: list[int] = field(default_factory=list)  # tokens that came at each; 0 = not said
    stopped_by: str | None = None  # the stop string, where the engine says so
    seconds: float = 0.0
    attempts: int = 1
    reasoning: str = ""  # generated text that is no part of the answer
    unsent: int = 0  # tokens that the engine counts beside `count`, and does not send

    @property
    def tokens(self) -> int:
        """Return the number of tokens by the engine's count, else as listed, else as arrived."""
        listed = len(self.ids if self.ids is not None else self.keys)
        return self.count or listed or len(self.stamps)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for a line of a file."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Answer":
        """Read the values written by `to_json`."""
        stated = [[(str(key), float(lp)) for key, lp in row] for row in values["stated"]]
        return cls(**{**values, "stated": stated})


def read_openai(reply: Reply, *, chat: bool = False) -> Answer:
    """Read completions or chat, whole or in chunks.

    Raises:
        FieldError: another schema. AbortedAnswerError: the text is not whole.
    """
    answer = Answer("", [], [], [], None)
    ids: list[int] = []
    unsent = 0
    for at, event in reply.events:
        chunk = read(event, Chunk)
        if usage := chunk.usage:
            answer.prompt_tokens = _later(answer.prompt_tokens, usage.prompt_tokens)
            answer.count = _later(answer.count, usage.completion_tokens)
            details = usage.completion_tokens_details or {}
            unsent = read(details.get("reasoning_tokens"), Count | None) or unsent  # type: ignore[arg-type]
        for choice in chunk.choices or ():
            part = choice.delta or choice.message
            written = (part and part.content) or (None if chat else choice.text)
            thought = (part and part.thought) or ""
            size = _read_logprobs(answer, choice)
            if new := choice.token_ids or choice.tokens:
                ids += new
                size = len(new)
            answer.prompt_ids = (
                choice.prompt_token_ids or chunk.prompt_token_ids or answer.prompt_ids
            )
            answer.finish = choice.finish_reason or answer.finish
            reason = choice.stop_reason
            answer.stopped_by = reason if isinstance(reason, str) else answer.stopped_by
            if written or thought or new or (part and (part.tool_calls or part.function_call)):
                answer.text += written or ""
                answer.reasoning += thought
                answer.stamps.append(at)
                answer.sizes.append(size)
        for counted in (chunk, *(chunk.choices or ())):
            _keep(answer, "vllm", (counted.metrics or {}).get("speculative_decoding"))
            timings = counted.timings or {}
            _keep(answer, "llama", timings if timings.get("draft_n") else None)
    check_whole(answer.finish)
    answer.ids = ids or None
    if answer.ids is None and answer.keys and all(map(ID_KEY.fullmatch, answer.keys)):
        answer.ids = [int(key[1:]) for key in answer.keys]
    if answer.count and answer.ids is None and not answer.keys and not answer.reasoning:
        answer.unsent = min(unsent, answer.count)
        answer.count -= answer.unsent
    check_keys(answer)
    return answer


def read_sglang(reply: Reply) -> Answer:
    """Read /generate; each event of a stream holds the whole text so far.

    Raises:
        FieldError: another schema. AbortedAnswerError: the text is not whole.
    """
    answer, before = Answer("", [], [], [], None), 0
    last = None
    for at, event in reply.events:
        last = read(event, Generated)
        now = len(last.output_ids or last.text)
        if now > before:
            answer.stamps.append(at)
            answer.sizes.append(now - before if last.output_ids else 0)
        before = max(now, before)
        prompt = [row.id for row in last.meta_info.input_token_logprobs or ()]
        answer.prompt_ids = prompt or answer.prompt_ids
    if last is None:
        raise FieldError("no events, expected one with a text")
    meta, finish = last.meta_info, last.meta_info.finish_reason
    answer.text, answer.ids = last.text, last.output_ids or None
    if isinstance(finish, dict):
        matched, finish = finish.get("matched"), finish.get("type")
        answer.stopped_by = matched if isinstance(matched, str) else None
    answer.finish = read(finish, str | None)  # type: ignore[arg-type]
    check_whole(answer.finish)
    answer.prompt_tokens, answer.count = meta.prompt_tokens, meta.completion_tokens
    for row in meta.output_token_logprobs or ():
        answer.keys.append(f"#{row.id}")
        answer.own.append(logprob(row.logprob, "logprob"))
    answer.stated = list(map(_stated, meta.output_top_logprobs or ()))
    _keep(answer, "sglang", event.get("meta_info"))
    check_keys(answer)
    return answer


def rescored_by_openai(reply: Reply, count: int) -> list[Stated]:
    """Read the last `count` rows of vLLM's `prompt_logprobs`."""
    (*_, (_, event)) = reply.events
    rows = (read(event, Chunk).choices or [Choice()])[0].prompt_logprobs or []
    return [
        ordered(
            (f"#{token}", logprob(entry.logprob, "logprob")) for token, entry in (row or {}).items()
        )
        for row in _last(rows, count, "prompt_logprobs")
    ]


def rescored_by_sglang(reply: Reply, count: int) -> list[Stated]:
    """Read the last `count` rows of SGLang's logprobs of its input."""
    (*_, (_, event)) = reply.events
    rows = read(event, Generated).meta_info.input_top_logprobs or []
    return list(map(_stated, _last(rows, count, "input_top_logprobs")))


def _last(rows: Sequence[Any], count: int, name: str) -> Sequence[Any]:
    if len(rows) < count:
        raise FieldError(f"{name}: {len(rows)} rows, expected {count}")
    return rows[-count:]


def check_whole(finish: str | None) -> None:
    """Refuse an answer whose `finish_reason` is of a text that is not whole.

    Raises:
        AbortedAnswerError: `abort`, `error`, `content_filter`, or any other unknown reason.
    """
    if finish is not None and not any(finish.lower() in words for words in ENDS.values()):
        raise AbortedAnswerError(f"the text is not whole: finish_reason {cut(finish)}")


def check_keys(answer: Answer) -> None:
    """Refuse an answer with the logprobs of other tokens, or of another number, than its ids.

    Raises:
        FieldError: names both.
    """
    rows, listed = len(answer.stated), len(answer.keys)
    if rows not in (0, listed):
        raise FieldError(f"top_logprobs: {rows} rows, expected one for each of {listed} tokens")
    for token, key in zip(answer.ids or (), answer.keys, strict=False):
        if ID_KEY.fullmatch(key) and key != f"#{token}":
            raise FieldError(
                f"token {token} of an answer has the logprobs of token {key[1:]}, expected those "
                "of one token"
            )


def _later(value: int | None, later: int | None) -> int | None:
    return value if later is None else later


def _read_logprobs(answer: Answer, choice: Choice) -> int:
    """Add the tokens and log probabilities of a choice; return the number of tokens."""
    if choice.logprobs is None:
        return 0
    if content := choice.logprobs.content:
        for entry in content:
            answer.keys.append(entry.key)
            answer.own.append(logprob(entry.logprob, "logprob"))
            alternatives = entry.top_logprobs or ()
            answer.stated.append(
                ordered((e.key, logprob(e.logprob, "logprob")) for e in alternatives)
            )
        return len(content)
    tokens = choice.logprobs.tokens or []
    values = choice.logprobs.token_logprobs or []
    rows = choice.logprobs.top_logprobs or [None] * len(tokens)
    for name, listed in (("token_logprobs", values), ("top_logprobs", rows)):
        if tokens and len(listed) != len(tokens):
            raise FieldError(f"{name}: {len(listed)} rows, expected {len(tokens)}")
    answer.keys += map(key_of, tokens)
    answer.own += [logprob(value or 0.0, "token_logprobs") for value in values[: len(tokens)]]
    for row in rows[: len(tokens)]:
        stated = (
            (key_of(token), logprob(value, "top_logprobs")) for token, value in (row or {}).items()
        )
        answer.stated.append(ordered(stated))
    return len(tokens)


def _stated(row: Sequence[Row] | None) -> Stated:
    return ordered((f"#{entry.id}", logprob(entry.logprob, "logprob")) for entry in row or ())


def _keep(answer: Answer, engine: str, said: Any) -> None:
    """Keep an engine's counts of drafts; of counts that cannot be true only the reason."""
    try:
        said = mapping(said, engine)
        counts = {name: read_count(said[name], name) for name in COUNTS[engine] if name in said}
    except FieldError as error:
        answer.counts = {"wrong": str(error)}
        return
    if counts:
        answer.counts = {engine: counts}


def ordered(row: Iterable[tuple[str, float]]) -> Stated:
    """Sort by probability, the likeliest first."""
    return sorted(row, key=lambda entry: -entry[1])
