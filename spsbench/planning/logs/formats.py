"""Formats of logs of served requests, told from each other by the fields of a line.

A format is a function from the object of a line to requests; what holds no usable one raises
`LeftOutError`, and is counted by its reason.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from spsbench.metrics.intervals import Floats

TOKEN_ID_END = 1 << 24  # no vocabulary has as many tokens
ROUNDING = 1e-3  # above 0, which servers' float16 and bfloat16 log-probabilities reach


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A served request: ids, or texts that a tokenizer turns into ids."""

    id: str
    prompt: str | Sequence[int] | None  # None: only its length or nothing is known
    answer: str | Sequence[int]
    text: str | None = None  # of an answer whose ids are logged
    logprobs: Sequence[float] | None = None  # of each token of the answer, in nats
    top_logprobs: Sequence[Sequence[float]] | None = None  # of each place, the likeliest tokens
    probabilities: Floats | None = None  # of each token under the law that it was drawn from
    temperature: float | None = None
    group: str | None = None
    created: float | None = None
    recorded: Mapping[str, Sequence[int]] = field(default_factory=dict)  # tokens that another
    # engine's drafter had right at each position, by its name

    @property
    def has_ids(self) -> bool:
        """Return whether prompt and answer are token ids."""
        return not isinstance(self.answer, str) and not isinstance(self.prompt, str)


class LeftOutError(ValueError):
    """A line that holds no usable request; its text is the reason, equal for lines alike."""


class Format(NamedTuple):
    """A format of logs."""

    name: str
    keys: frozenset[str]  # that an object of it has
    requests: Any  # (object, its number) -> iterable of requests


def of_type(entry: Mapping[str, Any], key: str, kind: type | tuple[type, ...]) -> Any:
    """Return a field.

    Raises:
        LeftOutError: it is missing, or of another type.
    """
    value = entry.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise LeftOutError(f"no usable {key}")
    return value


def token_ids(entry: Mapping[str, Any], key: str) -> list[int] | None:
    """Return a field of token ids, None without one.

    Raises:
        LeftOutError: anything but a list of ids.
    """
    ids = entry.get(key)
    if ids is None:
        return None
    if not isinstance(ids, list) or not all(
        type(token) is int and 0 <= token < TOKEN_ID_END for token in ids
    ):
        raise LeftOutError(f"{key} that are no token ids")
    return ids


def number(entry: Mapping[str, Any], key: str) -> float | None:
    """Return a finite number, None where there is none."""
    value = entry.get(key)
    usable = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if usable and math.isfinite(value) else None  # type: ignore[arg-type]


def name(entry: Mapping[str, Any], index: int, *keys: str) -> str:
    """Return the first of some fields that names the request, else its number."""
    for key in keys:
        value = entry.get(key)
        if isinstance(value, str | int) and not isinstance(value, bool):
            return str(value)
    return str(index)


def conversation(messages: object) -> str:
    """Return messages as one text, a line `role: content` each; templates belong to models."""
    if not isinstance(messages, list):
        raise LeftOutError("no usable messages")
    parts = []
    for message in messages:
        if not isinstance(message, dict):
            raise LeftOutError("no usable messages")
        content = message.get("content", message.get("value"))
        if isinstance(content, list):  # parts, of which texts are read
            content = "".join(str(part.get("text", "")) for part in content if type(part) is dict)
        role = message.get("role", message.get("from", ""))
        parts.append(f"{role}: {content if isinstance(content, str) else ''}")
    return "\n".join([*parts, "assistant: "])


def of_line(entry: dict[str, Any], index: int) -> Iterator[Request]:
    """Yield the request of a plain line: `prompt` or `messages`, and an answer."""
    answer = next((entry[key] for key in ANSWERS if isinstance(entry.get(key), str)), None)
    ids = next((ids for key in ANSWER_IDS if (ids := token_ids(entry, key)) is not None), None)
    if answer is None and ids is None:
        raise LeftOutError("no answer in a known field")
    prompt: str | Sequence[int] | None = token_ids(entry, "prompt_token_ids")
    if prompt is None or ids is None:  # texts are tokenized together
        plain = entry.get("prompt")
        if isinstance(plain, str):
            prompt = plain if ids is None else prompt
        elif "messages" in entry and ids is None:
            prompt = conversation(entry["messages"])
    logprobs, top = logged(entry.get("logprobs"))
    yield Request(
        id=name(entry, index, "id", "request_id", "custom_id"),
        prompt=prompt,
        answer=ids if ids is not None else answer or "",
        text=answer if ids is not None else None,
        logprobs=logprobs,
        top_logprobs=top,
        temperature=number(entry, "temperature"),
        group=entry["group"] if isinstance(entry.get("group"), str) else None,
        created=number(entry, "created"),
        recorded=dict(recorded(entry)),
    )


def recorded(entry: Mapping[str, Any]) -> Iterator[tuple[str, list[int]]]:
    """Yield drafters whose rounds were recorded at every position, as SpecDecode-Bench does.

    `NAME: {"acc_len": [...]}` holds the tokens of a round begun at each, bonus included.
    """
    for key, value in entry.items():
        lengths = value.get("acc_len") if isinstance(value, dict) else None
        if isinstance(lengths, list) and all(type(n) is int and 0 < n < 1024 for n in lengths):
            yield key, [n - 1 for n in lengths]


def logged(values: object) -> tuple[list[float] | None, list[list[float]] | None]:
    """Return the log-probabilities of tokens and of the likeliest ones, from any form of them.

    Numbers, OpenAI's `content` of objects, or its older `token_logprobs` and `top_logprobs`. What
    is missing for some token is missing for all: None.
    """
    if isinstance(values, dict):
        content = values.get("content")
        if isinstance(content, list):
            items = [item if isinstance(item, dict) else {} for item in content]
            tops = [item.get("top_logprobs") for item in items]
            return _numbers([item.get("logprob") for item in items]), _tops(tops)
        return _numbers(values.get("token_logprobs")), _tops(values.get("top_logprobs"))
    return _numbers(values), None


def _numbers(values: object) -> list[float] | None:
    if not isinstance(values, list):
        return None
    for value in values:
        if type(value) not in (int, float) or not -math.inf < value <= ROUNDING:
            return None
    return [min(float(value), 0.0) for value in values]


def _tops(places: object) -> list[list[float]] | None:
    if not isinstance(places, list):
        return None
    tops = []
    for place in places:
        if isinstance(place, dict):
            values: object = list(place.values())
        elif isinstance(place, list):
            values = [item.get("logprob") if isinstance(item, dict) else None for item in place]
        else:
            return None
        numbers = _numbers(values)
        if not numbers:
            return None
        tops.append(numbers)
    return tops


def of_batch(entry: dict[str, Any], index: int) -> Iterator[Request]:
    """Yield the request of a line of OpenAI batch output, with the body of its request."""
    response = of_type(entry, "response", dict)
    body = response.get("body")
    if not isinstance(body, dict) or not isinstance(body.get("choices"), list):
        raise LeftOutError("a response without choices")
    question = entry["request"]
    prompt: str | None = None
    if "messages" in question:
        prompt = conversation(question["messages"])
    elif isinstance(question.get("prompt"), str):
        prompt = question["prompt"]
    for number_, choice in enumerate(body["choices"]):
        if not isinstance(choice, dict):
            raise LeftOutError("a response without choices")
        message = choice.get("message")
        text = message.get("content") if isinstance(message, dict) else choice.get("text")
        if not isinstance(text, str):
            raise LeftOutError("a choice without text")
        ids = token_ids(choice, "token_ids")
        logprobs, top = logged(choice.get("logprobs"))
        yield Request(
            id=f"{entry['custom_id']}" + (f"/{number_}" if number_ else ""),
            prompt=token_ids(body, "prompt_token_ids") if ids is not None else prompt,
            answer=ids if ids is not None else text,
            text=text if ids is not None else None,
            logprobs=logprobs,
            top_logprobs=top,
            temperature=number(question, "temperature"),
            created=number(body, "created"),
        )


def of_conversation(entry: dict[str, Any], index: int) -> Iterator[Request]:
    """Yield each answer of a conversation of ShareGPT, after the turns before it."""
    turns = of_type(entry, "conversations", list)
    for place, turn in enumerate(turns):
        speaker = turn.get("from", turn.get("role")) if isinstance(turn, dict) else None
        if speaker in ("gpt", "assistant", "model", "chatgpt") and place:
            answer = turn.get("value", turn.get("content"))
            if isinstance(answer, str) and answer:
                yield Request(
                    id=f"{name(entry, index, 'id')}/{place}",
                    prompt=conversation(turns[:place]),
                    answer=answer,
                )


def of_bench(entry: dict[str, Any], index: int) -> Iterator[Request]:
    """Yield the requests of `vllm bench serve --save-detailed`, which holds no prompts."""
    for place, answer in enumerate(of_type(entry, "generated_texts", list)):
        if isinstance(answer, str) and answer:
            yield Request(id=str(place), prompt=None, answer=answer)


ANSWERS = ("completion", "response", "output", "generated_text", "answer")
ANSWER_IDS = ("token_ids", "generated_token_ids", "output_token_ids", "completion_token_ids")
BATCH = "OpenAI batch output"
FORMATS = (
    Format(BATCH, frozenset({"custom_id", "response"}), of_batch),
    Format("ShareGPT conversations", frozenset({"conversations"}), of_conversation),
    Format("vllm bench serve", frozenset({"generated_texts"}), of_bench),
    *(Format("lines", frozenset({key}), of_line) for key in (*ANSWERS, *ANSWER_IDS)),
)
