"""Calls of tools, and streams: parts of a check that compare the forms of one greedy answer.

`tools`: calls fit their schemas, whole and streamed, and are the baseline's, without speculation.
`stream`: what is streamed equals what is sent whole, for several budgets of tokens, so that answers
end inside of drafts. A fault that is not there when a request comes again may be rounding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any, Literal

import msgspec

from spsbench.audit.statistical.comparison import Compared, GreedyKind
from spsbench.errors import first_line
from spsbench.extensions.check.greedy import ServerGreedy
from spsbench.extensions.check.options import TABLE
from spsbench.extensions.check.texts import BASE, OWN, CheckTexts
from spsbench.serving import wire
from spsbench.serving.answers import AnswerReader
from spsbench.serving.engines import Ask
from spsbench.untrusted import cut

FORMS = (False, True)  # streamed
TOKENS = 256  # at most in an answer that may call a tool
CUTS = (1, 2, 3, 5, 8, 13, 21, 34)  # tokens of streamed answers
LONGEST = 60  # characters of a value in a line
HALF = "\N{REPLACEMENT CHARACTER}"  # what half a character is decoded to
ARGUMENTS: Mapping[str, list[tuple[str, Any]]] = {
    "get_weather": [("city", str), ("unit", Literal["celsius", "fahrenheit"])],
    "search": [("query", str), ("limit", int)],
    "add": [("a", float), ("b", float)],
}
TOOLS: Mapping[str, Any] = {
    name: msgspec.defstruct(name, arguments, forbid_unknown_fields=True)
    for name, arguments in ARGUMENTS.items()
}
FUNCTION: Any = msgspec.defstruct(
    "function", [("name", str | None, None), ("arguments", str | None, None)]
)
CALL: Any = msgspec.defstruct("call", [("function", FUNCTION), ("index", int | None, None)])
REQUESTS: tuple[str, ...] = tuple(TABLE["requests"])
Request = tuple[str, Ask, Mapping[str, Any]]  # name, request, and further fields


@dataclass
class Reply:
    """A chat's answer: text, thoughts, calls as [name, arguments], end and usage."""

    text: str = ""
    thoughts: str = ""
    calls: list[list[str]] = field(default_factory=list)
    ids: list[int] | None = None
    finish: str | None = None
    count: int | None = None


class ReplyReader(AnswerReader):
    """Reads an answer with its calls of tools, whole or in chunks."""

    def __init__(self, hide: Any) -> None:
        super().__init__(hide)
        self.calls: dict[int, list[str]] = {}

    def _add(self, at: float, value: Any) -> None:
        """Add JSON `value` of second `at` to the answer, and pieces of calls, joined by index."""
        super()._add(at, value)
        for choice in wire.read_json(value, wire.Chunk).choices or ():
            part = choice.delta or choice.message or wire.ContentPart()
            calls: list[Any] = wire.read_json(part.tool_calls or [], list[CALL])
            for number, call in enumerate(calls):
                place = number if call.index is None else call.index
                name, arguments = self.calls.get(place, ["", ""])
                new = call.function
                self.calls[place] = [name + (new.name or ""), arguments + (new.arguments or "")]

    @property
    def reply(self) -> Reply:
        """Return the answer read so far, with its calls in the order in which they began."""
        answer, calls = self.answer, list(self.calls.values())
        text, thoughts, ids, count = answer.text, answer.reasoning, answer.ids, answer.count
        return Reply(text, thoughts, calls, ids, answer.finish, count)


async def check_tools(texts: CheckTexts) -> ServerGreedy:
    """Ask for calls of tools, free and forced; compare them with schemas, streams and baseline.

    Returns a comparison for each request. RefusedError, in a group: the server takes no tools.
    """
    _, schemas = msgspec.json.schema_components(TOOLS.values())
    functions = [{"name": name, "parameters": schema} for name, schema in schemas.items()]
    tools = [{"type": "function", "function": function} for function in functions]
    choices = [(f"free choice {i + 1}", text, "auto") for i, text in enumerate(REQUESTS)]
    for name, text in zip(TOOLS, REQUESTS, strict=False):
        choices.append((f"forced {name}", text, {"type": "function", "function": {"name": name}}))  # type: ignore[arg-type]
    requests = [
        (name, chat(texts, text, TOKENS), {"tools": tools, "tool_choice": choice})
        for name, text, choice in choices
    ]
    return await compare_forms(texts, "tools", "their schemas", requests)


async def check_streams(texts: CheckTexts) -> ServerGreedy:
    """Compare streamed and whole chats: two own prompts, two of the plan, each of `CUTS` tokens."""
    prompts = (*REQUESTS[:2], *texts.plan.texts[:2])
    requests: list[Request] = [
        (f"prompt {i + 1}, {tokens} tokens", chat(texts, prompt, tokens), {})
        for (i, prompt), tokens in product(enumerate(prompts), CUTS)
    ]
    return await compare_forms(texts, "stream", "whole answers", requests)


def chat(texts: CheckTexts, prompt: str, tokens: int) -> Ask:
    """Return the request of a greedy chat of up to `tokens`, without log-probabilities."""
    return Ask(prompt, tokens, 0.0, texts.plan.seed, chat=True, ignore_eos=False)


async def compare_forms(
    texts: CheckTexts, part: str, reference: str, requests: Sequence[Request]
) -> ServerGreedy:
    """Ask for whole and streamed replies, compare them, and return a comparison for each request.

    Replies of `part` "tools" are compared with the baseline's too, and their calls with the tools.
    Requests with a fault are remarked and asked once more: each is a BUG if it has a fault again,
    else UNKNOWN. A request without a fault is IDENTICAL, or ALONE if the reply has no call, or no
    text. `reference` names in the result what replies are compared with.
    """
    has_base, empty = part == "tools" and BASE in texts.servers, set[str]()

    async def faults_in(attempt: str, requests: Sequence[Request]) -> list[list[str]]:
        """Return faults by request, kept under `attempt`; add names of empty replies to `empty`."""
        asks = [
            (f"{part}/{attempt}/{name}/{form}", replace(ask, stream=form), more)
            for name, ask, more in requests
            for form in FORMS
        ]
        replies = await ask_all(texts, OWN, asks)
        bases = await ask_all(texts, BASE, asks[::2]) if has_base else []
        faults = []
        for i, (name, _, more) in enumerate(requests):
            whole, streamed = replies[2 * i : 2 * i + 2]
            lines = differences(whole, streamed, "whole")
            for base in bases[i : i + 1]:
                lines += differences(base, whole, "without speculation", counts=False)
            if more:
                forced = more["tool_choice"] != "auto"
                lines += {*wrong_calls(whole, forced), *wrong_calls(streamed, forced)}
            faults.append(lines)
            if not (whole.calls if more else whole.text + whole.thoughts):
                empty.add(name)
        return faults

    faults, compared = await faults_in("first", requests), []
    wrong = [request for request, lines in zip(requests, faults, strict=True) if lines]
    again = iter(await faults_in("again", wrong) if wrong else ())
    for (name, _, _), lines in zip(requests, faults, strict=True):
        kind = GreedyKind.ALONE if name in empty else GreedyKind.IDENTICAL
        if lines:
            kind = GreedyKind.BUG if next(again) else GreedyKind.UNKNOWN
            texts.remark(f"{part}: {name}: {'; '.join(lines)}")
        compared.append(Compared(name, kind))
    return ServerGreedy(f"{reference}{' and the baseline' * has_base}", compared)


async def ask_all(texts: CheckTexts, name: str, requests: Sequence[Request]) -> list[Reply]:
    """Return server `name`'s replies to 1 or more `requests`, in order: kept, or asked and kept."""
    server, read = texts.servers[name], partial(msgspec.convert, type=Reply)

    async def post(ask: Ask, more: Mapping[str, Any]) -> Reply:
        path, body = server.request(ask)
        return (await server.client.post(path, {**body, **more}, ReplyReader)).reply  # type: ignore[attr-defined,no-any-return]

    texts.report(f"{requests[0][0].partition('/')[0]} texts of the {name}", 0, len(requests))
    return await texts.wait_for(
        [
            partial(texts.journal.get, f"{name}/{key}", read, partial(post, ask, more), asdict)
            for key, ask, more in requests
        ]
    )


def quoted(value: Any) -> str:
    """Return a server's value as Python writes it, a string cut to `LONGEST`."""
    return repr(cut(value, LONGEST) if isinstance(value, str) else value)


def differences(base: Reply, reply: Reply, where: str, *, counts: bool = True) -> list[str]:
    """Return in words what differs from `base`, which they call `where`: text, thoughts, calls.

    `counts`: the finish reason too, and number of tokens and ids where both replies tell them.
    """
    lines = []
    if HALF in reply.text + reply.thoughts and HALF not in base.text + base.thoughts:
        lines.append("a character of several bytes is split")
    elif reply.thoughts + reply.text == base.thoughts + base.text != "" and reply.text != base.text:
        lines.append(
            f"thoughts end elsewhere: answer {quoted(reply.text)}, {where} {quoted(base.text)}"
        )
    else:
        pairs = (("text", base.text, reply.text), ("thoughts", base.thoughts, reply.thoughts))
        lines += [f"{n} {quoted(b)}, {where} {quoted(a)}" for n, a, b in pairs if a != b]
    for before, after in zip(base.calls, reply.calls, strict=False):
        lost = before[1].removesuffix(after[1]) if before[0] == after[0] else ""
        if after[1] and lost and lost != before[1]:
            lines.append(f"arguments lack their beginning {quoted(lost)}")
        elif before != after:
            lines.append(f"call {quoted(' '.join(after))}, {where} {quoted(' '.join(before))}")
    if len(base.calls) != len(reply.calls):
        lines.append(f"{len(reply.calls)} calls, {where} {len(base.calls)}")
    if counts:
        names = {"finish": "finish reason", "count": "tokens counted", "ids": "ids"}
        for name, words in names.items():
            a, b = getattr(base, name), getattr(reply, name)
            if a != b and (None not in (a, b) or name == "finish"):
                lines.append(f"{words} {quoted(b)}, {where} {quoted(a)}")
    return lines


def wrong_calls(reply: Reply, forced: bool) -> list[str]:
    """Return unknown tools, calls in the text and, unless cut, bad arguments, no `forced` call."""
    lines = []
    for name, arguments in reply.calls:
        try:
            msgspec.json.decode(arguments, type=TOOLS[name])
        except KeyError:
            lines.append(f"no tool {quoted(name)}")
        except (ValueError, UnicodeError) as error:
            if reply.finish != "length":
                lines.append(f"arguments {quoted(arguments)} of {name}: {first_line(error)}")
    if any(mark in reply.text for mark in ("<tool_call>", *(f'"{name}"' for name in TOOLS))):
        lines.append(f"text of a call inside the answer {quoted(reply.text)}")
    if forced and not reply.calls and reply.finish != "length":
        lines.append("no call, though one was forced")
    return lines
