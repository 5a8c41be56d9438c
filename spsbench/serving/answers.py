"""Answers of engines, read from OpenAI's schema and SGLang's, with every field checked.

Time and number of tokens are of one span: the first delta with any generated text, be it an answer,
reasoning or a call of a tool, opens the clock, and tokens that the server counts and does not send
are left out of the count.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from spsbench.foreign import (
    FieldError,
    RangeError,
    cut,
    logprob,
    mapping,
    optional,
    sequence,
    text,
    token_ids,
    whole,
)
from spsbench.serving.http import AbortedAnswerError, Reply

ID_KEY = re.compile(r"#[0-9]{1,10}")
NAMED_ID = re.compile(r"token_id:([0-9]{1,10})")
ENDS = {
    "length": frozenset(("length", "max_tokens", "max_new_tokens", "max_length")),
    "context": frozenset(("context", "context_length", "model_length")),
    "stop": frozenset(
        ("stop", "eos", "eos_token", "end_turn", "stop_sequence", "tool_calls", "function_call")
    ),
}
"""End of a text -> the engines' words for it; after any other the text is not whole."""
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
"""Engine -> its fields that count drafts."""
LISTS = frozenset(
    name for names in COUNTS.values() for name in names if "histogram" in name or "step_" in name
)
"""Fields with a count for each round, or for each number of tokens."""
MAX_DEPTH = 1024  # tokens of one draft
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
    texts: list[str] = []
    reasoning: list[str] = []
    ids: list[int] = []
    unsent = 0
    for at, event in reply.events:
        usage = mapping(event.get("usage"), "usage")
        answer.prompt_tokens = _later(answer.prompt_tokens, usage, "prompt_tokens")
        answer.count = _later(answer.count, usage, "completion_tokens")
        details = mapping(usage.get("completion_tokens_details"), "completion_tokens_details")
        unsent = optional(whole, details, "reasoning_tokens") or unsent
        _keep_counts(answer, event)
        for entry in sequence(event.get("choices"), "choices"):
            choice = mapping(entry, "choices")
            part = mapping(choice.get("delta"), "delta")
            part = part or mapping(choice.get("message"), "message")
            written = optional(
                text, part if chat or part else choice, "content" if part else "text"
            )
            thought = _reasoning(part)
            listed = len(answer.keys)
            _read_logprobs(answer, choice)
            size = len(answer.keys) - listed
            if new := token_ids(choice.get("token_ids") or choice.get("tokens"), "token_ids"):
                ids += new
                size = len(new)
            prompt = choice.get("prompt_token_ids") or event.get("prompt_token_ids")
            answer.prompt_ids = token_ids(prompt, "prompt_token_ids") or answer.prompt_ids
            answer.finish = optional(text, choice, "finish_reason") or answer.finish
            reason = choice.get("stop_reason")
            answer.stopped_by = reason if isinstance(reason, str) else answer.stopped_by
            _keep_counts(answer, choice)
            if written or thought or new or _calls(part):
                texts.append(written or "")
                reasoning.append(thought)
                answer.stamps.append(at)
                answer.sizes.append(size)
    check_whole(answer.finish)
    answer.text, answer.reasoning = "".join(texts), "".join(reasoning)
    answer.ids = ids or None
    if answer.ids is None and answer.keys and all(map(ID_KEY.fullmatch, answer.keys)):
        answer.ids = token_ids([int(key[1:]) for key in answer.keys], "logprobs.tokens")
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
    last: Mapping[str, Any] = {}
    for at, event in reply.events:
        last = event
        listed = sequence(event.get("output_ids"), "output_ids")
        now = len(listed or text(event.get("text"), "text"))
        if now > before:
            answer.stamps.append(at)
            answer.sizes.append(now - before if listed else 0)
        before = max(now, before)
        rows = mapping(event.get("meta_info"), "meta_info").get("input_token_logprobs")
        prompt = [
            _id_in(row, "input_token_logprobs") for row in sequence(rows, "input_token_logprobs")
        ]
        answer.prompt_ids = prompt or answer.prompt_ids
    meta = mapping(last.get("meta_info"), "meta_info")
    answer.text = text(last.get("text"), "text")
    answer.ids = token_ids(last.get("output_ids"), "output_ids") or None
    finish = meta.get("finish_reason")
    reason = mapping(finish, "finish_reason") if isinstance(finish, dict) else {"type": finish}
    answer.finish = optional(text, reason, "type")
    matched = reason.get("matched")
    answer.stopped_by = matched if isinstance(matched, str) else None
    check_whole(answer.finish)
    answer.prompt_tokens = optional(whole, meta, "prompt_tokens")
    answer.count = optional(whole, meta, "completion_tokens")
    for row in sequence(meta.get("output_token_logprobs"), "output_token_logprobs"):
        key, value = _pair(row, "output_token_logprobs")
        answer.keys.append(key)
        answer.own.append(value)
    answer.stated = list(_rows(meta.get("output_top_logprobs"), "output_top_logprobs"))
    _keep(answer, "sglang", meta)
    check_keys(answer)
    return answer


def rescored_by_openai(reply: Reply, count: int) -> list[Stated]:
    """Read the last `count` rows of vLLM's `prompt_logprobs`."""
    (*_, (_, event)) = reply.events
    choice = mapping(sequence(event.get("choices"), "choices")[0], "choices")
    rows = sequence(choice.get("prompt_logprobs"), "prompt_logprobs")[-count:]
    _check_length(rows, count, "prompt_logprobs")
    return [
        ordered(
            [
                (
                    f"#{_id(token)}",
                    logprob(mapping(of, "prompt_logprobs").get("logprob"), "logprob"),
                )
                for token, of in mapping(row, "prompt_logprobs").items()
            ]
        )
        for row in rows
    ]


def rescored_by_sglang(reply: Reply, count: int) -> list[Stated]:
    """Read the last `count` rows of SGLang's logprobs of its input."""
    (*_, (_, event)) = reply.events
    meta = mapping(event.get("meta_info"), "meta_info")
    rows = sequence(meta.get("input_top_logprobs"), "input_top_logprobs")[-count:]
    _check_length(rows, count, "input_top_logprobs")
    return list(_rows(rows, "input_top_logprobs"))


def _check_length(rows: Sequence[Any], count: int, name: str) -> None:
    if len(rows) != count:
        raise FieldError(f"{name}: {len(rows)} rows, expected {count}")


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


def _later(value: int | None, usage: Mapping[str, Any], name: str) -> int | None:
    later = optional(whole, usage, name)
    return value if later is None else later


def _reasoning(part: Mapping[str, Any]) -> str:
    names = ("reasoning_content", "reasoning", "refusal")
    return next((words for name in names if (words := optional(text, part, name))), "")


def _calls(part: Mapping[str, Any]) -> bool:
    """Return whether a delta holds a part of a call of a tool."""
    return bool(part.get("tool_calls") or part.get("function_call"))


def _read_logprobs(answer: Answer, choice: Mapping[str, Any]) -> None:
    logprobs = mapping(choice.get("logprobs"), "logprobs")
    if content := sequence(logprobs.get("content"), "logprobs.content"):
        for entry in content:
            of = mapping(entry, "logprobs.content")
            answer.keys.append(_key_in(of))
            answer.own.append(logprob(of.get("logprob"), "logprob"))
            row = sequence(of.get("top_logprobs"), "top_logprobs")
            beside = [mapping(alternative, "top_logprobs") for alternative in row]
            stated = [
                (_key_in(alternative), logprob(alternative.get("logprob"), "logprob"))
                for alternative in beside
            ]
            answer.stated.append(ordered(stated))
    elif tokens := sequence(logprobs.get("tokens"), "logprobs.tokens"):
        answer.keys += [key_of(text(token, "logprobs.tokens")) for token in tokens]
        values = sequence(logprobs.get("token_logprobs"), "token_logprobs")
        _check_length(values, len(tokens), "token_logprobs")
        answer.own += [logprob(value or 0.0, "token_logprobs") for value in values]
        rows = sequence(logprobs.get("top_logprobs"), "top_logprobs") or [None] * len(tokens)
        _check_length(rows, len(tokens), "top_logprobs")
        for row in rows:
            stated = [
                (key_of(token), logprob(value, "top_logprobs"))
                for token, value in mapping(row, "top_logprobs").items()
            ]
            answer.stated.append(ordered(stated))


def _key_in(entry: Mapping[str, Any]) -> str:
    token, stated_id = text(entry.get("token"), "token"), entry.get("id")
    return key_of(token, None if stated_id is None else _id(stated_id))


def _rows(value: Any, name: str) -> Iterator[Stated]:
    """Yield SGLang's rows of (logprob, id, text)."""
    for row in sequence(value, name):
        yield ordered([_pair(entry, name) for entry in sequence(row, name)])


def _pair(entry: Any, name: str) -> tuple[str, float]:
    return f"#{_id_in(entry, name)}", logprob(entry[0], name)


def _id_in(entry: Any, name: str) -> int:
    """Return the id of SGLang's (logprob, id, text); the first of a prompt has no logprob."""
    values = sequence(entry, name)
    if len(values) < 2:
        raise FieldError(f"{name}: {cut(entry)}, expected a logprob and an id")
    return _id(values[1])


def _id(value: Any) -> int:
    if isinstance(value, str) and ID_KEY.fullmatch(f"#{value}"):
        value = int(value)
    return token_ids([value], "a token's id")[0]


def _keep_counts(answer: Answer, event: Mapping[str, Any]) -> None:
    """Keep the speculation statistics of vLLM and llama-server."""
    metrics = mapping(event.get("metrics"), "metrics")
    _keep(answer, "vllm", mapping(metrics.get("speculative_decoding"), "speculative_decoding"))
    timings = mapping(event.get("timings"), "timings")
    if timings.get("draft_n"):
        _keep(answer, "llama", timings)


def _keep(answer: Answer, engine: str, said: Mapping[str, Any]) -> None:
    """Keep an engine's counts of drafts; of counts that cannot be true only the reason."""
    try:
        counts = {name: _count(said[name], name) for name in COUNTS[engine] if name in said}
    except RangeError as error:
        answer.counts = {"wrong": str(error)}
        return
    if counts:
        answer.counts = {engine: counts}


def _count(value: Any, name: str) -> Any:
    """Return a count, or the counts of a list, or of a histogram as a list; None for null."""
    if value is None:
        return None
    if name not in LISTS:
        return whole(value, name)
    if isinstance(value, dict):
        return dense(value, name)
    return [whole(item, name) for item in sequence(value, name)]


def dense(counts: Mapping[Any, Any], name: str) -> list[int]:
    """Return a histogram by number of tokens as a list.

    Raises:
        FieldError: a number that is none, or above `MAX_DEPTH`.
    """
    histogram: dict[int, int] = {}
    for key, count in counts.items():
        number = int(key) if isinstance(key, str) and re.fullmatch("[0-9]{1,9}", key) else key
        depth = whole(number, f"{name}: the number of tokens", most=MAX_DEPTH + 1)
        histogram[depth] = whole(count, name)
    return [histogram.get(depth, 0) for depth in range(max(histogram, default=-1) + 1)]


def key_of(token: str, token_id: int | None = None) -> str:
    """Return `#id` of a token where its id is known, else its text."""
    if token_id is not None:
        return f"#{token_id}"
    named = NAMED_ID.fullmatch(token)
    return f"#{named[1]}" if named else token


def ordered(row: Stated) -> Stated:
    """Sort by probability, the likeliest first."""
    return sorted(row, key=lambda entry: -entry[1])
