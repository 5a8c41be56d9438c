"""Formats of logs of served requests, recognised by the fields of a line.

What stands for a prompt or an answer is read by its form, wherever it stands: a text, a message, a
list of either or of content parts, or an object of an API that holds them, also as JSON text. What
holds no usable request raises `LeftOutError`, and is counted by its reason.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spsbench.metrics.intervals import Floats
from spsbench.untrusted import FieldError, cut, parse_json

TOKEN_ID_END = 1 << 24  # no vocabulary has as many tokens
ROUNDING = 1e-3  # above 0, which servers' float16 and bfloat16 log-probabilities reach
NOT_LISTED = -9999.0  # stands for an unknown log-probability in OpenAI's API and vLLM's
MAX_TEMPERATURE = 100.0
MAX_FIELDS = 12  # names of fields in a reason
KINDS = {list: "a list", type(None): "null", str: "a text"}

REQUESTS = ("request", "request_body", "body", "kwargs")
PROMPTS = ("messages", "prompt", "input", "inputs", "question", "query")
LEADS = ("system", "system_prompt", "instructions", "instruction")  # stand before a prompt
ANSWERS = (
    *("completion", "response", "response_body", "output", "outputs"),
    *("generated_text", "answer", "choices"),
)
ANSWER_IDS = ("token_ids", "generated_token_ids", "output_token_ids", "completion_token_ids")
SAMPLING = ("sampling_params", "model_parameters", "modelParameters", "parameters")
TEXTS = ("content", "text", "value", "output_text", "message", "output", "generated_text")
SPEAKERS = frozenset({"assistant", "model", "gpt", "chatgpt", "bing", "ai"})
ROLES = SPEAKERS | {"user", "system", "developer", "tool", "function", "human"}
BATCH, LINES = "OpenAI batch output", "lines"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A served request: ids, or texts that a tokenizer turns into ids."""

    id: str
    prompt: str | Sequence[int] | None  # None: only its length or nothing is known
    answer: str | Sequence[int]
    logprobs: Sequence[float] | None = None  # of each token of the answer, in nats
    probabilities: Floats | None = None  # of each token in the distribution it was sampled from
    temperature: float | None = None
    group: str | None = None
    budget: int | None = None  # most tokens of the answer; None: unknown
    ended_by_limit: bool = False  # so that the budget is the answer's length
    first: int = 1  # token that the first round begins at; a server's prompt pass gives token 0
    fields: str = ""  # of the line


class LeftOutError(ValueError):
    """A line that holds no usable request; its text is the reason, equal for lines alike."""


def fields_of(entry: object) -> str:
    """Return the names of a line's fields."""
    if not isinstance(entry, dict):
        return f"it is {KINDS.get(type(entry), 'a number')}"
    names = [cut(name) for name in list(entry)[:MAX_FIELDS]]
    more = [f"{len(entry) - MAX_FIELDS:,} more"] if len(entry) > MAX_FIELDS else []
    return f"the line has: {', '.join(names + more) or 'no fields'}"


def unpacked(value: object) -> object:
    """Return the object of an API, or the messages, that a text holds as JSON; else the value."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    if not any(f'"{name}"' in value for name in ("choices", "role", "messages")):
        return value
    try:
        parsed = parse_json(value.encode(errors="surrogatepass"), strict=False)
    except FieldError:
        return value
    if isinstance(parsed, list):
        return parsed if is_messages(parsed) else value
    return parsed if is_message(parsed) or {"choices", "messages"} & parsed.keys() else value


def is_message(value: object) -> bool:
    """Return whether a value is a message of a conversation."""
    return isinstance(value, dict) and value.get("role", value.get("from")) in ROLES


def is_messages(value: object) -> bool:
    """Return whether a value is a conversation: a list of messages."""
    return isinstance(value, list) and bool(value) and all(map(is_message, value))


def text_of(value: object) -> str | None:
    """Return the text of a text, a message, parts or an object of an API; None without one."""
    value = unpacked(value)
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        if value and is_message(value[-1]):
            return text_of(value[-1])
        texts = [text for part in value if (text := text_of(part)) is not None]
        return "".join(texts) if texts else None
    if isinstance(value, dict):
        return next((text for k in TEXTS if (text := text_of(value.get(k))) is not None), None)
    return None


def choices_of(value: object) -> list[Any]:
    """Return the answers of one request: those under `choices`, of a list of them, or the value."""
    value = unpacked(value)
    while isinstance(value, dict):
        choices = value.get("choices")
        if isinstance(choices, list):
            return choices
        inner = unpacked(value.get("body", value.get("response")))
        if inner is None:
            return [value]
        value = inner
    are_texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
    are_choices = isinstance(value, list) and all(
        isinstance(item, dict) and not item.keys() & {"type", "role"} for item in value
    )
    return list(value) if are_texts or are_choices else [value]  # type: ignore[call-overload]


def conversation(messages: Sequence[object]) -> str:
    """Return messages as one text, a line `role: content` each; templates belong to models."""
    parts = []
    for message in messages:
        if not isinstance(message, dict):
            raise LeftOutError("messages that are none")
        role = message.get("role", message.get("from", ""))
        parts.append(f"{cut(role)}: {text_of(message) or ''}")
    return "\n".join([*parts, "assistant: "])


def prompt_of(request: object) -> str | list[int] | None:
    """Return the prompt of a request: texts, messages or ids; None without one.

    Raises:
        LeftOutError: several prompts, or something that is none.
    """
    request = unpacked(request)
    if isinstance(request, str):
        return request or None
    if isinstance(request, list):
        if not request:
            return None
        if type(request[0]) is int:
            return token_ids({"prompt": request}, "prompt")
        if all(isinstance(item, str | list) for item in request):
            if len(request) > 1:
                raise LeftOutError("several prompts in one request")
            return prompt_of(request[0])
        return conversation(request) if any(map(is_message, request)) else text_of(request)
    if not isinstance(request, dict):
        return None
    ids = token_ids(request, "prompt_token_ids")
    if ids is not None:
        return ids
    leads = [lead for name in LEADS if isinstance(lead := request.get(name), str) and lead]
    prompts = (prompt_of(request.get(name)) for name in PROMPTS)
    prompt = next((prompt for prompt in prompts if prompt is not None), None)
    if isinstance(prompt, list):
        return prompt
    return "\n\n".join([*leads, *([] if prompt is None else [prompt])]) or None


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


def temperature_of(*entries: Mapping[str, Any]) -> float | None:
    """Return the temperature that the first of some objects names; None without one.

    Raises:
        LeftOutError: it is none.
    """
    for entry in (*entries, *(entry.get(key) for entry in entries for key in SAMPLING)):
        if isinstance(entry, dict) and entry.get("temperature") is not None:
            temperature = entry["temperature"]
            if type(temperature) not in (int, float) or not 0 <= temperature <= MAX_TEMPERATURE:
                raise LeftOutError(f"a temperature that is no number from 0 to {MAX_TEMPERATURE:g}")
            return float(temperature)
    return None


def name(entry: Mapping[str, Any], index: int, *keys: str) -> str:
    """Return the first of some fields that names the request, else its number."""
    values = (entry.get(key) for key in keys)
    names = (cut(value) for value in values if type(value) in (str, int))
    return next(names, str(index))


def of_line(entry: Mapping[str, Any], index: int) -> Iterator[Request]:
    """Yield the answers of a line with its number."""
    sent = unpacked(next((entry[key] for key in REQUESTS if entry.get(key)), None))
    if isinstance(sent, dict) and isinstance(sent.get("body"), dict):
        sent = sent["body"]
    halves = (sent, entry) if isinstance(sent, dict) else (entry, sent)
    prompt = next((prompt for half in halves if (prompt := prompt_of(half))), None)
    answer = next((entry[key] for key in ANSWERS if entry.get(key) is not None), None)
    if answer is None and prompt is not None:
        answer = entry.get("text")
    messages: Any = unpacked(entry.get("messages"))
    ends = is_messages(messages) and speaker(messages[-1]) in SPEAKERS
    if ends and (answer is None or text_of(answer) == text_of(messages[-1])):
        answer = messages[-1]
        prompt = conversation(messages[:-1]) if messages[1:] else None
    if answer is None and all(entry.get(key) is None for key in ANSWER_IDS):
        raise LeftOutError("no answer in a known field")
    choices = choices_of(answer)
    if not choices:
        raise LeftOutError("an answer without choices")
    body = answer.get("body", answer) if isinstance(answer, dict) else {}
    holders = [half for half in (body, sent, entry) if isinstance(half, dict)]
    for place, choice in enumerate(choices):
        yield _request(
            choice,
            holders,
            id=name(entry, index, "custom_id", "id", "request_id") + (f"/{place}" if place else ""),
            prompt=prompt,
            temperature=temperature_of(*reversed(holders)),
            group=cut(entry["group"]) if isinstance(entry.get("group"), str) else None,
            fields=fields_of(entry),
        )


def _request(choice: object, holders: Sequence[Mapping[str, Any]], **values: Any) -> Request:
    """Return the request of one answer, whose ids and log-probabilities an outer object may have.

    Raises:
        LeftOutError: an answer that is neither a text nor ids.
    """
    text = text_of(choice)
    holders = [choice, *holders] if isinstance(choice, dict) else holders
    lists = (token_ids(holder, key) for holder in holders for key in ANSWER_IDS)
    ids = next((tokens for tokens in lists if tokens is not None), None)
    if text is None and ids is None:
        raise LeftOutError("an answer without text")
    if isinstance(values["prompt"], str | None):
        prompts = (token_ids(holder, "prompt_token_ids") for holder in holders)
        values["prompt"] = next(filter(None, prompts), values["prompt"])
    stated = next((holder["logprobs"] for holder in holders if holder.get("logprobs")), None)
    return Request(
        answer=ids if ids is not None else text or "",
        logprobs=logged(stated),
        ended_by_limit=any(holder.get("finish_reason") == "length" for holder in holders),
        **values,
    )


def speaker(message: object) -> Any:
    """Return the role of a message of a conversation."""
    return message.get("role", message.get("from")) if isinstance(message, dict) else None


def logged(values: object) -> list[float] | None:
    """Return the log-probabilities of tokens: numbers, or either form of OpenAI's API.

    What is missing for some token is missing for all: None.
    """
    if isinstance(values, dict):
        content = values.get("content")
        if not isinstance(content, list):
            return logged(values.get("token_logprobs"))
        return logged([item.get("logprob") if isinstance(item, dict) else None for item in content])
    if not isinstance(values, list):
        return None
    for value in values:
        if type(value) not in (int, float) or not NOT_LISTED < value <= ROUNDING:
            return None
    return [min(float(value), 0.0) for value in values]


def of_conversation(entry: Mapping[str, Any], index: int) -> Iterator[Request]:
    """Yield each answer of a conversation of ShareGPT, after the turns before it."""
    turns = entry["conversations"]
    if not isinstance(turns, list):
        raise LeftOutError("conversations that are no list")
    answers = [place for place, turn in enumerate(turns) if place and speaker(turn) in SPEAKERS]
    if not answers:
        raise LeftOutError("a conversation without an answer")
    for place in answers:
        yield Request(
            id=f"{name(entry, index, 'id')}/{place}",
            prompt=conversation(turns[:place]),
            answer=text_of(turns[place]) or "",
            fields=fields_of(entry),
        )


def of_bench(entry: Mapping[str, Any], index: int) -> Iterator[Request]:
    """Yield the requests of `vllm bench serve --save-detailed`, which holds no prompts."""
    texts = entry["generated_texts"]
    if not isinstance(texts, list):
        raise LeftOutError("generated_texts that are no list")
    for place, answer in enumerate(texts):
        if isinstance(answer, str) and answer:
            yield Request(id=str(place), prompt=None, answer=answer, fields=fields_of(entry))
