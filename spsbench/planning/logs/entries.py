"""Objects of lines become requests, by the table `forms.toml`; `chats` reads what is there.

What holds no usable request raises `LeftOutError`, and is counted by its reason.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from spsbench.metrics.intervals import Floats
from spsbench.planning.logs.account import (
    CONTAINERS,
    FORMS,
    Account,
    Form,
    holds_text,
    names,
    value_at,
)
from spsbench.planning.logs.chats import (
    KINDS,
    TOKEN_ID_END,
    Chat,
    Holders,
    LeftOutError,
    Reply,
    answers_of,
    field_ids,
    reply_of,
    request_prompt,
    role_of,
    to_messages,
    turns_of,
)
from spsbench.untrusted import cut

ROUNDING = 1e-3  # above 0, which servers' float16 and bfloat16 log-probabilities reach
NOT_LISTED = -9999.0  # stands for an unknown log-probability in OpenAI's API and vLLM's
MAX_TEMPERATURE = 100.0
MAX_FIELDS = 12  # names of fields in a reason
MAX_ANSWERS = 256  # answers of one conversation
LEAST_ECHO = 16  # characters of a prompt that an answer repeats by no accident
LENGTHS = {"prompt_tokens": "input_lens", "completion_tokens": "output_lens"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A served request: ids, or texts that a tokenizer turns into ids."""

    id: str
    prompt: str | Sequence[int] | None  # a text, a `Chat`, or ids; None: it is unknown
    answer: str | Sequence[int]  # a text, a `Reply`, or ids
    text: str | None = None  # the text of an answer in ids, where the log has it too
    read: int | None = None  # tokens of the prompt by the log's usage
    written: int | None = None  # tokens of the answer by the log's usage
    logprobs: Sequence[float] | None = None  # log-probability of each token of the answer, in nats
    probabilities: Floats | None = None  # each token's chance in the distribution it was drawn from
    temperature: float | None = None
    group: str | None = None
    trace: str | None = None  # in which a generation may stand several times
    budget: int | None = None  # most tokens of the answer; None: unknown
    ended_by_limit: bool = False  # so that the budget is the answer's length
    is_echo: bool = False  # whether the logged text began with the prompt
    first: int = 1  # token that the first round begins at; a server's prompt pass gives token 0
    processed: tuple[str, ...] = ()  # fields of penalties, biases and bans that are on
    unread: tuple[str, ...] = ()  # fields outside request and answer whose text is not read
    unread_inside: tuple[str, ...] = ()  # the same, inside request and answer
    fields: str = ""  # the names of the line's fields


def fields_of(entry: object) -> str:
    """Return the names of a line's fields."""
    if not isinstance(entry, dict):
        return f"it is {KINDS.get(type(entry), 'a number')}"
    fields = [cut(name) for name in list(entry)[:MAX_FIELDS]]
    more = [f"{len(entry) - MAX_FIELDS:,} more"] if len(entry) > MAX_FIELDS else []
    return f"the line has: {', '.join(fields + more) or 'no fields'}"


def iterate_entries(value: Any) -> Iterator[tuple[Any, str]]:
    """Yield (entry, why it is left out, or "") of a line: its value, or what a container holds.

    A list is the messages of one entry. Of a file of `vllm bench serve` each text is an entry.
    """
    if not isinstance(value, dict):
        yield ({"messages": value} if isinstance(value, list) else value), ""
        return
    for path, broken in CONTAINERS.items():
        entries = list(values_at(value, path.split(".")))
        if any(isinstance(entry, dict) for entry in entries):
            yield from ((entry, "") for entry in entries)
            for other in broken:
                why = f"a request that is not whole ({other.rpartition('.')[2]})"
                yield from ((entry, why) for entry in values_at(value, other.split(".")))
            return
    texts = value.get("generated_texts")
    if isinstance(texts, list):  # results of `vllm bench serve`: a list a field, no prompts
        for place, text in enumerate(texts):
            counts = {key: value_at(value, f"{lens}.{place}") for key, lens in LENGTHS.items()}
            yield {"id": str(place), "generated_text": text, **counts}, ""
        return
    yield value, ""


def values_at(value: Any, path: Sequence[str]) -> Iterator[Any]:
    """Yield all values at a path of keys, through all items of lists on the way and at its end."""
    if isinstance(value, list):
        for item in value:
            yield from values_at(item, path)
    elif not path:
        yield value
    elif isinstance(value, dict) and path[0] in value:
        yield from values_at(value[path[0]], path[1:])


def nest(attributes: Any) -> Any:
    """Return the attributes of a span, dotted names or OpenTelemetry's list, as nested objects.

    Objects whose keys are all numbers become lists; what is neither form is returned as it is.
    """
    if isinstance(attributes, list):
        with suppress(KeyError, TypeError, AttributeError, StopIteration):
            attributes = {item["key"]: next(iter(item["value"].values())) for item in attributes}
    if not isinstance(attributes, dict):
        return attributes
    root: dict[str, Any] = {}
    for field, value in attributes.items():
        *path, last = str(field).split(".", 6)
        holder = root
        for key in path:
            inner = holder.setdefault(key, {})
            holder = inner if isinstance(inner, dict) else holder
        holder.setdefault(last, value)
    return numbered_to_lists(root)


def numbered_to_lists(value: Any) -> Any:
    """Return objects whose keys are all numbers as lists in order, through objects, not lists."""
    if not isinstance(value, dict):
        return value
    items = {key: numbered_to_lists(item) for key, item in value.items()}
    if items and all(key.isdecimal() for key in items):
        return [items[key] for key in sorted(items, key=lambda key: (len(key), key))]
    return items


def requests_in(entry: dict[str, Any], index: int) -> tuple[str, list[Request]]:
    """Return the name of a line's form, and its requests, one or more, with what is not read.

    `index` is the number of the line, a name where it has none. With several requests `written` is
    None, since it is of all. LeftOutError: no generation, a cached one, or any unusable answer.
    """
    if "attributes" in entry:
        entry = {**entry, "attributes": nest(entry["attributes"])}
    for path in names.span_kinds:
        kind = value_at(entry, path)
        if isinstance(kind, str) and kind.lower() in names.steps:
            raise LeftOutError(f"a step of a trace that is no generation ({path}: {kind.lower()})")
    if any(entry.get(name) is True for name in names.cached):
        raise LeftOutError("an answer out of a cache")
    account = Account(entry)
    form = next(
        form for form in FORMS if all(value_at(entry, path) is not None for path in form.marks)
    )
    requests = list((_of_conversation if form.turns else _of_form)(account, form, index))
    outside, inside = map(tuple, account.unread())
    alone = len(requests) == 1  # else usage is of all of them
    return form.name, [
        replace(r, written=r.written if alone else None, unread=outside, unread_inside=inside)
        for r in requests
    ]


def _of_form(account: Account, form: Form, index: int) -> Iterator[Request]:
    """Yield a request for each answer of a line; from the second on with /1, /2 ... in its id.

    LeftOutError: no answer (why, in words), or a prompt, answer or temperature that is none.
    """
    entry = account.entry
    sent = account.at(form.request)
    if isinstance(sent, dict) and sent is not entry and isinstance(sent.get("body"), dict):
        sent = sent["body"]
    prompt = None if sent is None or sent is entry else request_prompt(account, sent)
    answer = account.at(form.answer)
    speaks = role_of(entry)
    if prompt is None and speaks is None and form.request in ((), FORMS[-1].request):
        prompt = request_prompt(account, entry)
    if answer is None and speaks == "assistant":
        answer = entry
    if answer is None and prompt is not None:
        answer = account.get(entry, "text")
    turns = prompt.messages if isinstance(prompt, Chat) else []
    if turns and turns[-1]["role"] == "assistant":
        last = Reply.of(turns[-1])
        if answer is None or reply_of(Account({}), answer) == last:
            answer = last
            prompt = Chat.of(turns[:-1], prompt.tools) if turns[1:] else None  # type: ignore[union-attr]
    if answer is None and all(entry.get(key) is None for key in names.answer_ids):
        raise LeftOutError(_without_answer(entry, speaks, prompt))
    choices = list(answers_of(account, answer, () if answer is entry else (entry,)))
    if not choices:
        raise LeftOutError("an answer without choices")
    beside = [account.at([path]) for path in form.beside if value_at(entry, path)]
    around = tuple(half for half in (sent, *beside) if isinstance(half, dict))
    identity = request_name(entry, index, "custom_id", "id", "request_id", "rid")
    for place, (choice, holders) in enumerate(choices):
        yield _request(
            account,
            choice,
            (*holders, *around),
            id=identity + (f"/{place}" if place else ""),
            prompt=prompt,
            temperature=temperature_of(entry, *around, *reversed(holders)),
            processed=processed_by(entry, *around, *reversed(holders)),
            group=cut(entry["group"]) if isinstance(entry.get("group"), str) else None,
            trace=next((cut(v) for k in names.traces if isinstance(v := entry.get(k), str)), None),
            fields=fields_of(entry),
        )


def _without_answer(entry: Mapping[str, Any], speaks: str | None, prompt: object) -> str:
    """Return why a line has no answer; `speaks`: the role of the line itself, if a message."""
    if any(entry.get(key) for key in ("error", "errors")) or value_at(entry, "result.error"):
        return "an error in place of an answer"
    if "custom_id" in entry and ("body" in entry or "params" in entry):
        return "a request of a batch without an answer: add the file of its output"
    if speaks is not None:
        return "one message of a conversation in a line"
    if prompt is None and not any(map(holds_text, entry.values())):
        return "no texts, only lengths or times"
    return "no answer in a known field"


def _request(account: Account, choice: object, holders: Holders, **values: Any) -> Request:
    """Return the request of one answer, whose ids and usage an outer object may have.

    `values`: its other fields; a prompt that is no chat gives way to the log's own ids of it.
    LeftOutError: no text and no ids, ids that are none, or as `check_answers_whole`.
    """
    reply = choice if isinstance(choice, Reply) else reply_of(account, choice)
    ids, logprobs = None, None
    for holder in holders:
        for key in names.answer_ids:
            ids = field_ids(account, holder, key) if ids is None and holder.get(key) else ids
        logprobs = logprobs or holder.get("logprobs")
    if reply is None and ids is None:
        raise LeftOutError("an answer without text")
    check_answers_whole(holders, reply)
    prompt = values["prompt"]
    if isinstance(prompt, str | None):
        of_prompt = (field_ids(account, h, "prompt_token_ids") for h in holders)
        values["prompt"] = prompt = next(filter(None, of_prompt), prompt)
    echoes = any(holder.get("echo") is True for holder in holders)
    answer, is_echo = without_prompt(ids if ids is not None else reply or "", prompt, echoes)
    endings = [str(ending(holder)).lower() for holder in holders]
    return Request(
        answer=answer,
        text=None if ids is None or is_echo else reply,
        logprobs=logged_logprobs(logprobs),
        read=count_of(holders, names.read),
        written=count_of(holders, names.written),
        ended_by_limit=any(word in names.at_limit for word in endings),
        is_echo=is_echo,
        **values,
    )


def without_prompt(
    answer: str | list[int], prompt: Any, echoes: bool
) -> tuple[str | list[int], bool]:
    """Return an answer without the prompt that it goes on from, and whether it began with one.

    Of a chat its last message counts, the assistant's or, with `echoes` (the request asked for the
    prompt too), any. Without `echoes`, fewer than `LEAST_ECHO` characters (or ids, in ids) are no
    prompt. An answer that is the prompt alone is kept; ids and text are not compared.
    """
    before: Any = prompt
    if isinstance(prompt, Chat) and prompt.messages:
        before = prompt.messages[-1]["content"]
        if prompt.messages[-1]["role"] != "assistant" and not echoes:
            return answer, False
    begins = before and type(before) is not Chat and answer[: len(before)] == before
    if not begins or len(answer) == len(before) or not (echoes or len(before) >= LEAST_ECHO):
        return answer, False
    return answer[len(before) :], True


def ending(holder: Mapping[str, Any]) -> object:
    """Return why an answer ended, as the log has it; None: it is not said."""
    value = next((holder[key] for key in names.endings if holder.get(key)), None)
    return value.get("type", value.get("reason")) if isinstance(value, dict) else value


def check_answers_whole(holders: Holders, text: str | None) -> None:
    """Raise LeftOutError for an answer that no model wrote, or not as it is logged.

    `holders` tell a piece of a stream, an error, a filtered or a truncated answer; marks in `text`
    that the log has shortened it.
    """
    for holder in holders:
        kind = str(holder.get("object", ""))
        if kind.endswith(".chunk") or "delta" in holder or holder.get("done") is False:
            raise LeftOutError("a piece of a stream: expected whole answers")
        if (word := str(ending(holder)).lower()) in names.broken:
            raise LeftOutError(f"an answer that ended by {word}")
        status = next((holder[k] for k in names.statuses if type(holder.get(k)) is int), 0)
        if status >= 400:
            raise LeftOutError("an answer with an error")
        if holder.get("truncated") is True:
            raise LeftOutError("a text that was truncated")
    if text is not None and any(mark in text.lower() for mark in names.shortened):
        raise LeftOutError("a text that the log has shortened")


def count_of(holders: Holders, keys: Sequence[str]) -> int | None:
    """Return the first count, 0 or more, under one of `keys` in an object or its usage, or None."""
    for holder in holders:
        for place in (holder, *(holder.get(key) for key in names.usages)):
            for key in keys if isinstance(place, dict) else ():
                value = place.get(key)  # type: ignore[union-attr]
                if type(value) is int and 0 <= value < TOKEN_ID_END:
                    return value
    return None


def processed_by(*entries: Mapping[str, Any]) -> tuple[str, ...]:
    """Return penalties, biases and bans that any object sets, in the order of `names.processors`.

    Sampling parameters within the objects count too. A repetition penalty of 1 sets nothing.
    """
    every = [*entries, *(entry.get(key) for entry in entries for key in names.sampling)]
    objects = [entry for entry in every if isinstance(entry, dict)]
    neutral = {name: 1 for name in names.processors if name.startswith("rep")}
    return tuple(
        name
        for name in names.processors
        if any(entry.get(name) and entry[name] != neutral.get(name) for entry in objects)
    )


def temperature_of(*entries: Mapping[str, Any]) -> float | None:
    """Return the temperature that the first of some objects, or their sampling, names; else None.

    LeftOutError: it is no number from 0 to `MAX_TEMPERATURE`.
    """
    for entry in (*entries, *(entry.get(key) for entry in entries for key in names.sampling)):
        if isinstance(entry, dict) and entry.get("temperature") is not None:
            temperature = entry["temperature"]
            if type(temperature) not in (int, float) or not 0 <= temperature <= MAX_TEMPERATURE:
                raise LeftOutError(f"a temperature that is no number from 0 to {MAX_TEMPERATURE:g}")
            return float(temperature)
    return None


def request_name(entry: Mapping[str, Any], index: int, *keys: str) -> str:
    """Return the first of some fields that names the request, else its number."""
    values = (entry.get(key) for key in keys)
    return next((cut(value) for value in values if type(value) in (str, int)), str(index))


def logged_logprobs(values: object) -> list[float] | None:
    """Return the log-probabilities of tokens, at most 0: of numbers, or a form of OpenAI's API.

    None: another form, or a token whose value is missing, unknown or beyond rounding above 0.
    """
    if isinstance(values, dict):
        content = values.get("content")
        if not isinstance(content, list):
            return logged_logprobs(values.get("token_logprobs"))
        return logged_logprobs(
            [item.get("logprob") if isinstance(item, dict) else None for item in content]
        )
    if not isinstance(values, list):
        return None
    for value in values:
        if type(value) not in (int, float) or not NOT_LISTED < value <= ROUNDING:
            return None
    return [min(float(value), 0.0) for value in values]


def _of_conversation(account: Account, form: Form, index: int) -> Iterator[Request]:
    """Yield a request for each answer of a conversation, whose prompt is the turns before it.

    LeftOutError: turns that are no messages, no answer, or more than `MAX_ANSWERS`.
    """
    turns = account.at(form.turns)
    if not isinstance(turns, list):
        raise LeftOutError("conversations that are no list")
    messages = to_messages(account, turns_of(turns))
    answers = [place for place, m in enumerate(messages) if place and m["role"] == "assistant"]
    if not answers:
        raise LeftOutError("a conversation without an answer")
    if len(answers) > MAX_ANSWERS:
        raise LeftOutError(f"a conversation of more than {MAX_ANSWERS} answers")
    system = account.at(("system",))
    lead = [{"role": "system", "content": system}] if isinstance(system, str) else []
    for place in answers:
        yield Request(
            id=f"{request_name(account.entry, index, 'id')}/{place}",
            prompt=Chat.of([*lead, *messages[:place]], []),
            answer=Reply.of(messages[place]),
            fields=fields_of(account.entry),
        )
