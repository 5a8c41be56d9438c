"""Modes in which greedy text must not change: parts of a check that are asked by name.

`mixed`: greedy texts that share their batches with sampled ones equal those of greedy batches.
`json`: greedy answers under schemas equal the baseline's. `stop`: a text with a stop string is the
plain text up to that string. `cache`: the second answer to a long prompt equals the first, which a
prefix cache must not change.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from itertools import product
from typing import Any

from spsbench.audit.statistical.comparison import Compared, GreedyKind
from spsbench.extensions.check.greedy import (
    LEAST,
    ServerGreedy,
    against_baseline,
    compared_pair,
    parting,
    shared_texts,
    third_is_a_bug,
)
from spsbench.extensions.check.texts import BASE, OWN, Texts
from spsbench.foreign import FieldError, parse_json
from spsbench.serving.engines import Answer, Ask

LONG = 1600  # characters of a long prompt: several blocks of a prefix cache
LONG_PROMPTS = 4
WORD = re.compile(r"\s?\S{1,20}")
JSON_TOKENS = 192  # of an answer under a schema
UNSEEN_IN_JSON = (
    "stated probabilities come after the server's mask: bets on them hold although a mask is "
    "wrong, and the law under a schema cannot be told by weights without the server's own masks"
)
QUOTED = 20  # characters of the end of a text
CACHED = re.compile(r"^\S*prefix_cache_hits(?:_total)?(?:{[^}]*})?\s+([0-9.eE+]+)$", re.MULTILINE)


def object_of(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object with these properties, all required."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


SHORT = {"type": "string", "maxLength": 30}
SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "person": object_of(name=SHORT, age={"type": "integer", "minimum": 0, "maximum": 120}),
    "tool call": object_of(
        name={"enum": ["search", "get_weather"]}, arguments=object_of(query=SHORT)
    ),
    "extraction": object_of(places={"type": "array", "items": SHORT, "maxItems": 4}),
    "sentiment": object_of(
        sentiment={"enum": ["positive", "neutral", "negative"]}, reason={**SHORT, "maxLength": 80}
    ),
    "recursive": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": object_of(
                name=SHORT,
                children={"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
            )
        },
    },
}
ASKED: Mapping[str, str] = {
    "person": "Invent {}. Answer in JSON with name and age.",
    "tool call": "Tools: search(query), get_weather(query). Find out about {}. Answer with one "
    "call in JSON, with name and arguments.",
    "extraction": "List in JSON the places where one meets {}.",
    "sentiment": "Answer in JSON with the sentiment, and a short reason, of: I met {} today.",
    "recursive": "Draw {} as a small tree in JSON: name and children.",
}
WHO = ("baker", "pilot", "teacher", "nurse", "painter", "farmer", "sailor", "judge")
WHERE = ("Lisbon", "Oslo", "Vienna", "Cairo", "Lima")
JSON_PROMPTS: tuple[tuple[str, str], ...] = tuple(
    (name, ASKED[name].format(f"a {who} from {where}"))
    for (who, where), name in product(product(WHO, WHERE), SCHEMAS)
)
"""Schema and prompt of each request."""


def long_prompt(prompts: Sequence[str], index: int) -> str:
    """Return prompts from `index` on, one after another, until they are long."""
    text = prompts[index % len(prompts)]
    at = index
    while len(text) < LONG:
        at += 1
        text += f"\n\n{prompts[at % len(prompts)]}"
    return text


def stop_string(text: str) -> str:
    """Return the word that first occurs nearest the middle of a text; empty if there is none."""
    words = [word for word in set(WORD.findall(text)) if "\ufffd" not in word]
    firsts = {word: text.find(word) for word in words if text.find(word) > 0}
    middle = len(text) // 2
    return min(firsts, key=lambda word: (abs(firsts[word] - middle), word), default="")


def common_word(texts: Sequence[str]) -> str:
    """Return the word in most of the texts, the most frequent of such; empty if there is none."""
    count: Counter[str] = Counter()
    for text in texts:
        words = [word for word in WORD.findall(text) if "\ufffd" not in word and word.strip()]
        count.update({word: len(texts) for word in set(words)})
        count.update(words)
    return min(count, key=lambda word: (-count[word], word), default="")


def against_cut(name: str, whole: Answer, stop: str, text: Answer, shared: Set[str]) -> Compared:
    """Compare a text that had a stop string with the plain text cut there."""
    due = whole.text[: whole.text.find(stop)]
    if text.text == due:
        return Compared(name, GreedyKind.IDENTICAL)
    if parting(whole, text) is not None:
        return compared_pair(name, whole, text, LEAST, shared)
    ends = repr(due[-QUOTED:]), repr(text.text[-QUOTED:])
    at = len(text.keys) or len(text.ids or ()) or text.tokens
    if text.text.startswith(due) or due.startswith(text.text):
        return Compared(name, GreedyKind.BUG, max(0, at - 1), ends)
    return Compared(name, GreedyKind.UNKNOWN, max(0, at - 1), ends)


def lists_its_stop(stop: str, text: Answer) -> bool:
    """Return whether the tokens of a stop string are listed, so that a text can be scored."""
    return text.stopped_by == stop or stop in "".join(text.keys)


def unended(stop: str, text: Answer, decoded: str) -> Answer:
    """Return a text for scoring: one that a stop string ended has no end of its own."""
    stopped = lists_its_stop(stop, text) or stop in decoded
    return replace(text, finish="length") if stop and stopped else text


def cached(page: Any) -> float | None:
    """Return the prompt tokens that came from a cache, as a /metrics page counts them."""
    if not isinstance(page, str):
        return None
    counts = [float(number) for number in CACHED.findall(page)]
    return sum(counts) if counts else None


class Modes:
    """Texts in the modes, each compared with the text that it must equal."""

    def __init__(self, texts: Texts) -> None:
        self.texts, self.plan = texts, texts.plan

    async def json(self) -> tuple[str, ServerGreedy | None]:
        """Ask each server for JSON under schemas; return the shares, and the comparison if any.

        Raises:
            RefusedError: a server takes no schema, or no chat.
        """
        answers, shares = {}, []
        for name, server in self.texts.servers.items():
            asks = [
                Ask(
                    *(prompt, JSON_TOKENS, 0.0, self.plan.seed + number, server.top),
                    chat=True,
                    ignore_eos=False,
                    constraint=("json_schema", json.dumps(SCHEMAS[schema])),
                )
                for number, (schema, prompt) in enumerate(JSON_PROMPTS)
            ]
            keyed = [(f"json/0/{number}", ask) for number, ask in enumerate(asks)]
            answers[name] = await self.texts.asked(name, keyed)
            count = sum(map(is_json, answers[name]))
            shares.append(f"{name}: {count} of {len(asks)} answers are JSON")
        if BASE not in answers:
            return "; ".join(shares), None
        names = [f"{schema} {number}" for number, (schema, _) in enumerate(JSON_PROMPTS)]
        compared = against_baseline(names, answers[BASE], answers[OWN])
        planted = third_is_a_bug(answers[BASE][0].stated, answers[BASE][0].keys)
        return "; ".join(shares), ServerGreedy("the baseline's JSON", compared, planted)

    async def mixed(self, alone: Sequence[Answer]) -> ServerGreedy:
        """Compare greedy texts, each asked beside a sampled one, with those of greedy batches."""
        asks = []
        for i in range(len(alone)):
            sampled = replace(self.texts.ask(OWN, i, 1.0), warp=self.plan.cut)
            asks += [(f"mixed/{i}", self.texts.ask(OWN, i, 0.0)), (f"beside/{i}", sampled)]
        mixed = (await self.texts.asked(OWN, asks))[::2]
        return ServerGreedy(
            "greedy texts in batches of their own",
            against_baseline(numbered(alone), alone, mixed),
            third_is_a_bug(alone[0].stated, alone[0].keys),
        )

    async def stop(self, plain: Sequence[Answer]) -> tuple[ServerGreedy, str]:
        """Compare texts with stop strings; return a string to stop sampled texts, or none."""
        stops = {i: stop for i, text in enumerate(plain) if (stop := stop_string(text.text))}
        result = ServerGreedy("the plain texts, cut at the stop strings")
        if not stops:
            return result, ""
        asks = [replace(self.texts.ask(OWN, i, 0.0), stop=(stop,)) for i, stop in stops.items()]
        keyed = [(f"stop/{i}", ask) for i, ask in zip(stops, asks, strict=True)]
        texts = await self.texts.asked(OWN, keyed)
        shared = shared_texts(plain)
        for (i, stop), text in zip(stops.items(), texts, strict=True):
            result.compared.append(against_cut(f"prompt {i + 1}", plain[i], stop, text, shared))
        at, stop = next(iter(stops.items()))
        late = replace(plain[at], text=plain[at].text[: plain[at].text.find(stop) + len(stop)])
        planted = against_cut("planted", plain[at], stop, late, shared)
        result.planted = planted.kind is GreedyKind.BUG
        if not all(lists_its_stop(stops[i], text) for i, text in zip(stops, texts, strict=True)):
            return result, ""
        return result, common_word([text.text for text in plain])

    async def cache(self) -> ServerGreedy:
        """Compare the second answers to long prompts with the first ones."""
        count = min(LONG_PROMPTS, len(self.plan.texts))
        asks = [self.texts.ask(OWN, i, 0.0, self.long(i)) for i in range(count)]
        page = await self.texts.page("/metrics")
        first = await self.texts.asked(OWN, [(f"first/{i}", ask) for i, ask in enumerate(asks)])
        again = await self.texts.asked(OWN, [(f"again/{i}", ask) for i, ask in enumerate(asks)])
        before, after = cached(page), cached(await self.texts.page("/metrics"))
        if before is not None and after is not None:
            hits = after - before
            tokens = f"{hits:,.0f} prompt tokens" if hits else "no prompt token"
            self.texts.remark(f"cache: {tokens} came from a prefix cache, by the server's count")
        return ServerGreedy(
            "the first answers to the same prompts",
            against_baseline(numbered(first), first, again),
            third_is_a_bug(first[0].stated, first[0].keys),
        )

    def long(self, index: int) -> str:
        """Return a long prompt, in rotation."""
        return long_prompt(self.plan.texts, index % min(LONG_PROMPTS, len(self.plan.texts)))


def is_json(answer: Answer) -> bool:
    """Return whether an answer is JSON; one that was cut is none."""
    try:
        parse_json(answer.text.encode())
    except (FieldError, UnicodeEncodeError):
        return False
    return True


def numbered(texts: Sequence[Answer]) -> list[str]:
    """Return the names of texts."""
    return [f"prompt {i + 1}" for i in range(len(texts))]
