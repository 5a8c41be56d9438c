"""Texts, messages, tools and calls of them, as any API writes them: prompts and answers.

Names and kinds of fields are tables; where a value stands decides nothing.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spsbench.planning.logs.account import ROLES, Account, names, unpack_json
from spsbench.untrusted import cut

TOKEN_ID_END = 1 << 24  # no vocabulary has as many tokens
KINDS = {list: "a list", type(None): "null", str: "a text"}


class LeftOutError(ValueError):
    """A line that holds no usable request; its text is the reason, equal for lines alike."""


class Chat(str):
    """Messages as one text, a line `role: text` each, and as a template takes them.

    Attributes:
        parts: heads of its lines, texts of its messages and ends of lines, each of which is
            tokenized by itself, as an answer is: so a chat begins with the ids of that before it.
        messages: objects with `role`, `content`, and maybe `reasoning_content` and `tool_calls`.
        tools: the tools that the target may call, as the request has them.
    """

    parts: list[str]
    messages: list[dict[str, Any]]
    tools: list[Any]

    @classmethod
    def of(cls, messages: list[dict[str, Any]], tools: list[Any]) -> "Chat":
        """Return a chat, tools first, whose text ends where the answer begins."""
        parts = [f"tools: {json.dumps(tools, ensure_ascii=False)}\n"] if tools else []
        for message in messages:
            parts += [f"{message['role']}: ", *message_texts(message), "\n"]
        if messages and messages[-1]["role"] == "assistant":  # the answer goes on with it
            del parts[-1]
        else:
            parts.append("assistant: ")
        chat = cls("".join(parts))
        chat.parts, chat.messages, chat.tools = parts, messages, tools
        return chat


class Reply(str):
    """An answer as one text, and as a `message` that a template takes.

    `parts` are its texts, each tokenized by itself: thoughts, words, calls of tools.
    """

    parts: list[str]
    message: dict[str, Any]

    @classmethod
    def of(cls, message: dict[str, Any]) -> "Reply":
        """Return the answer that a message is."""
        parts = message_texts(message)
        reply = cls("\n".join(parts))
        reply.parts, reply.message = parts, message
        return reply


def message_texts(message: Mapping[str, Any]) -> list[str]:
    """Return a message's texts that are not empty: thoughts, words, calls of tools as JSON."""
    texts = [message.get("reasoning_content", ""), message["content"]]
    for call in (each["function"] for each in message.get("tool_calls", ())):
        arguments = call["arguments"]
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        texts.append(f'{{"name": {json.dumps(call["name"])}, "arguments": {arguments}}}')
    return list(filter(None, texts))


@dataclass(slots=True)
class Content:
    """The parts of a message: its texts, thoughts, calls and results."""

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    results: list[str] = field(default_factory=list)

    def __add__(self, other: "Content") -> "Content":
        return Content(
            self.texts + other.texts, self.thoughts + other.thoughts, self.calls + other.calls
        )

    def message(self, role: str) -> dict[str, Any]:
        """Return an OpenAI message: role, texts as one, nothing between; thoughts, calls if any."""
        message: dict[str, Any] = {"role": role, "content": "".join(self.texts)}
        if self.thoughts:
            message["reasoning_content"] = "\n".join(self.thoughts)
        if self.calls:
            message["tool_calls"] = self.calls
        return message


def role_of(message: object) -> str | None:
    """Return who speaks in a message: user, assistant, system or tool; None: it is none."""
    if not isinstance(message, dict):
        return None
    for name in names.speakers:
        value = message.get(name)
        value = value.get("role") if isinstance(value, dict) else value
        if isinstance(value, str) and value.lower() in ROLES:
            return ROLES[value.lower()]
    kind = message.get("type")
    return ROLES.get(kind) if isinstance(kind, str) and kind in names.typed else None


def choose_message(item: Any) -> Any:
    """Return the message in an object of a chat program or of LangChain; else the item itself.

    Of several versions it is the selected, or the last; a role outside it is set in it, if missing.
    """
    if not isinstance(item, dict):
        return item
    versions = item.get("versions")
    if isinstance(versions, list) and versions and all(isinstance(v, dict) for v in versions):
        place = item.get("currentlySelected")
        return versions[place if type(place) is int and 0 <= place < len(versions) else -1]
    path, inner = item.get("id"), item.get("kwargs", item.get("data"))
    if isinstance(inner, dict) and ("lc" in item or role_of(item)):
        inner.setdefault("role", path[-1] if isinstance(path, list) and path else item.get("type"))
        return inner
    return item["message"] if role_of(item.get("message")) and not role_of(item) else item


def read_into(account: Account, value: Any, content: Content, texts: list[str]) -> None:
    """Add what a text, a message, a part of one or a list of these holds to `content`.

    Plain texts, empty ones too, are added to `texts`, one of the lists of `content`. Fields are
    marked as read in the `account`; parts without text are noted there. Anything else is ignored.
    """
    if isinstance(value, str):
        texts.append(value)
    elif isinstance(value, list):
        for item in value:
            read_into(account, item, content, texts)
    elif isinstance(value, dict):
        _read_object(account, value, content, texts)


def _read_object(
    account: Account, part: dict[str, Any], content: Content, texts: list[str]
) -> None:
    """Add a part's words to `texts`, its thoughts, calls and results to `content`, and mark them.

    Words of a thinking part are thoughts. A part without text is noted in the `account`.
    """
    kind = part.get("type")
    kind = kind if isinstance(kind, str) else ""
    if kind in names.calls:
        content.calls.append(call_of(account, part))
        return
    if kind in names.results:
        content.results.append(result_of(account, part))
        return
    style = part.get("style")
    thinks = part.get("thought") is True or (
        isinstance(style, dict) and style.get("type") == "thinking"
    )
    if thinks or kind in names.thoughts:
        texts = content.thoughts
    thoughts = account.get(part, *names.thoughts)
    read_into(account, thoughts, content, content.thoughts)
    words = account.get(part, *names.texts)
    read_into(account, words, content, texts)
    calls = account.get(part, *names.calls)
    for call in calls if isinstance(calls, list) else [calls]:
        if isinstance(call, dict):
            content.calls.append(call_of(account, call))
    results = account.get(part, *names.results)
    if isinstance(results, dict):
        content.results.append(result_of(account, results))
    has_text = thoughts or words or calls or results
    if part and not has_text and not role_of(part) and kind not in (*names.plain, *names.thoughts):
        account.others[f"a part of type {cut(kind or next(iter(part)))}"] = None


def call_of(account: Account, call: dict[str, Any]) -> dict[str, Any]:
    """Return a call of a tool as OpenAI's API has it; mark its fields as read."""
    inner = account.get(call, "function", *names.calls)
    inner = inner if isinstance(inner, dict) else call
    name, arguments = inner.get("name"), account.get(inner, *names.arguments, whole=True)
    function = {"name": name if isinstance(name, str) else "", "arguments": arguments or {}}
    return {"type": "function", "function": function}


def result_of(account: Account, result: dict[str, Any]) -> str:
    """Return what a tool answered, a text or JSON, "" for nothing; mark it as read, and below."""
    value = account.get(result, *names.result_texts, whole=True) or ""
    if isinstance(value, list):
        texts = [part.get("text") if isinstance(part, dict) else part for part in value]
        if words := [text for text in texts if isinstance(text, str)]:
            return "".join(words)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def to_messages(account: Account, items: Sequence[Any]) -> list[dict[str, Any]]:
    """Return a conversation's messages as OpenAI's API has them, and mark what is read.

    An item without a role joins its neighbour of the same role, which is the assistant's for
    thoughts and calls, else the user's. Results of tools become messages of `tool`. LeftOutError:
    an item that is neither an object nor a text.
    """
    contents: list[tuple[str, Content]] = []
    named = True  # whether the last item has a role
    for item in map(choose_message, items):
        if not isinstance(item, dict | str):
            raise LeftOutError("messages that are none")
        content, role = Content(), role_of(item)
        read_into(account, item, content, content.texts)
        contents += [("tool", Content([text])) for text in content.results]
        if content.results and not (content.texts or content.thoughts or content.calls):
            named = True
            continue
        is_named = role is not None
        role = role or ("assistant" if content.thoughts or content.calls else "user")
        if contents and contents[-1][0] == role and not (named and is_named):
            content = contents.pop()[1] + content
        contents.append((role, content))
        named = is_named
    return [content.message(role) for role, content in contents]


def request_prompt(account: Account, sent: Any) -> str | list[int] | None:
    """Return the prompt of a request in any API: a text, a chat or ids; None without one.

    What is read is marked in the `account`. LeftOutError: several prompts, ids or messages that are
    none. A system text, a history or tools make it a chat.
    """
    if isinstance(sent, str):
        return sent or None
    if isinstance(sent, list):
        return _prompt_of_list(account, sent)
    if not isinstance(sent, dict):
        return None
    if role_of(sent):
        return Chat.of(to_messages(account, [sent]), [])
    for name in names.prompt_ids:
        if ids := field_ids(account, sent, name):
            account.get(sent, *names.prompts, whole=True)  # the same as text
            return ids
    prompt = request_prompt(account, account.get(sent, *names.prompts, api=True))
    if isinstance(prompt, list):
        return prompt
    system = [value for name in names.systems if (value := account.get(sent, name, api=True))]
    history = account.get(sent, *names.histories)
    tools = account.get(sent, *names.tools, whole=True)
    leads = [value for name in names.leads if isinstance(value := account.get(sent, name), str)]
    if not (system or history or tools):
        return "\n\n".join([*leads, *([prompt] if prompt else [])]) if leads else prompt
    messages = to_messages(account, [{"role": "system", "content": value} for value in system])
    if isinstance(history, list):
        messages += to_messages(account, turns_of(history))
    if isinstance(prompt, Chat):
        messages += prompt.messages
    elif prompt or leads:
        text = "\n\n".join([*leads, *([prompt] if prompt else [])])
        messages.append({"role": "user", "content": text})
    return Chat.of(messages, tools if isinstance(tools, list) else [])


def _prompt_of_list(account: Account, items: list[Any]) -> str | list[int] | None:
    """Return the prompt that a list is: ids, one text, or messages; None: it is empty.

    LeftOutError: several prompts, or ids or messages that are none.
    """
    if not items:
        return None
    if type(items[0]) is int:
        return field_ids(account, {"prompt": items}, "prompt")
    if all(isinstance(item, str | list) for item in items):
        if len(items) > 1:
            raise LeftOutError("several prompts in one request")
        return request_prompt(account, items[0])
    return Chat.of(to_messages(account, items), [])


def turns_of(pairs: Sequence[Any]) -> list[Any]:
    """Return items, each pair of texts as two messages (user, assistant), others as they are."""
    turns: list[Any] = []
    for pair in pairs:
        if isinstance(pair, list) and len(pair) == 2 and all(isinstance(x, str) for x in pair):
            turns += [{"role": "user", "content": pair[0]}]
            turns += [{"role": "assistant", "content": pair[1]}]
        else:
            turns.append(pair)
    return turns


def field_ids(account: Account, entry: dict[str, Any], key: str) -> list[int] | None:
    """Return a field of token ids, and mark it as read; None: it is not there, or null.

    LeftOutError: anything but a list, maybe empty, of ids from 0 to below `TOKEN_ID_END`.
    """
    if (ids := entry.get(key)) is None:
        return None
    if not isinstance(ids, list) or not all(
        type(token) is int and 0 <= token < TOKEN_ID_END for token in ids
    ):
        raise LeftOutError(f"{key} that are no token ids")
    account.get(entry, key, whole=True)
    return ids


Holders = tuple[dict[str, Any], ...]
"""The objects around an answer, the nearest first."""


def answers_of(account: Account, value: Any, outer: Holders = ()) -> Iterator[tuple[Any, Holders]]:
    """Yield each answer of a response in any API, and the objects around it, the nearest first.

    An answer is a text, null, all of a list of typed parts, or an object, such as a message, whole:
    then it is itself the first of these objects. Of a list of messages it is the last, of others
    each item; [] has none. `outer`: objects around `value`. Fields on the way are marked as read.
    """
    value = unpack_json(value)
    if isinstance(value, list):
        typed = [
            item for item in value if isinstance(item, dict) and ("type" in item or "lc" in item)
        ]
        if value and all(map(role_of, value)) and not typed:
            yield value[-1], outer
        elif len(typed) == len(value) and value:
            yield value, outer
        else:
            for item in value:
                yield from answers_of(account, item, outer)
        return
    if not isinstance(value, dict):
        yield value, outer
        return
    message = choose_message(value)
    holders = (message, *([] if message is value else [value]), *outer)
    value = message
    choices = account.get(value, *names.choices, api=True)
    if isinstance(choices, list):
        yield from answers_of(account, choices, holders)
    elif isinstance(value.get("output"), dict | list) and value["output"]:
        yield from answers_of(account, account.get(value, "output"), holders)
    elif role_of(value) or any(
        isinstance(value.get(k), str | list) and value[k] for k in names.texts
    ):
        yield value, holders
    elif (inner := account.get(value, *names.wrapped, api=True)) is not None:
        yield from answers_of(account, inner, holders)
    else:
        yield value, holders


def reply_of(account: Account, answer: Any) -> Reply | None:
    """Return an answer, marked as read, as a `Reply` ("" too); None: no words, thoughts, calls."""
    content = Content()
    read_into(account, answer, content, content.texts)
    if not (content.texts or content.thoughts or content.calls):
        if isinstance(answer, dict):
            account.others.pop(f"a part of type {cut(next(iter(answer), ''))}", None)
        return None
    return Reply.of(content.message("assistant"))
