"""Modes in which greedy text must not change: parts of a check that are asked by name.

`mixed`: greedy texts that share their batches with sampled ones equal those of greedy batches.
`json`: greedy answers under schemas equal the baseline's. `stop`: a text with a stop string is the
plain text up to that string. `cache`: the second answer to a long prompt equals the first, which a
prefix cache must not change.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from spsbench.audit.statistical.comparison import Compared, GreedyKind
from spsbench.extensions.check.greedy import (
    LEAST,
    ServerGreedy,
    compare,
    compare_pair,
    parting,
    shared_texts,
)
from spsbench.extensions.check.journal import REFUSED
from spsbench.extensions.check.texts import BASE, OWN, Texts, first_of
from spsbench.foreign import FieldError, parse_json
from spsbench.serving.engines import Answer, Ask
from spsbench.serving.http import RefusedError

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


def list_of(items: Any, most: int) -> dict[str, Any]:
    """Return the schema of a list of at most so many items."""
    return {"type": "array", "items": items, "maxItems": most}


SHORT, LONGER = ({"type": "string", "maxLength": most} for most in (30, 80))
AGE = {"type": "integer", "minimum": 0, "maximum": 120}
CALL = object_of(name={"enum": ["search", "get_weather"]}, arguments=object_of(query=SHORT))
OPINION = object_of(sentiment={"enum": ["positive", "neutral", "negative"]}, reason=LONGER)
NODE = object_of(name=SHORT, children=list_of({"$ref": "#/$defs/node"}, 2))
SCHEMAS: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "person": (
        object_of(name=SHORT, age=AGE),
        "Invent {}. Answer in JSON with name and age.",
    ),
    "tool call": (
        CALL,
        "Tools: search(query), get_weather(query). Find out about {}. Answer with one call in "
        "JSON, with name and arguments.",
    ),
    "extraction": (
        object_of(places=list_of(SHORT, 4)),
        "List in JSON the places where one meets {}.",
    ),
    "sentiment": (
        OPINION,
        "Answer in JSON with the sentiment, and a short reason, of: I met {} today.",
    ),
    "recursive": (
        {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
        "Draw {} as a small tree in JSON: name and children.",
    ),
}
"""Schema, and the prompt that asks for it, by name."""
WHO = ("baker", "pilot", "teacher", "nurse", "painter", "farmer", "sailor", "judge")
WHERE = ("Lisbon", "Oslo", "Vienna", "Cairo", "Lima")
JSON_PROMPTS: tuple[tuple[str, str], ...] = tuple(
    (name, prompt.format(f"a {who} from {where}"))
    for (who, where), (name, (_, prompt)) in product(product(WHO, WHERE), SCHEMAS.items())
)
"""Name of the schema, and prompt, of each request."""


@dataclass
class Modes:
    """Texts in the modes that are asked for, each compared with the text that it must equal."""

    texts: Texts
    greedy: Sequence[Answer]  # in batches of their own
    results: dict[str, ServerGreedy] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)  # modes whose requests the server refuses
    shares: str | None = None  # of JSON in the answers under schemas
    stop_string: str = ""  # of sampled texts

    async def run(self) -> None:
        """Run the modes; one that the server refuses leaves the others."""
        journal = self.texts.journal
        modes = {"json": self._json, "mixed": self._mixed, "stop": self._stop, "cache": self._cache}
        for part, mode in modes.items():
            if part not in self.texts.plan.parts:
                continue
            try:
                if not journal.asks and f"{REFUSED}{part}" in journal:
                    raise RefusedError(journal.read(f"{REFUSED}{part}", str), 0, "")
                if (result := await mode()) is not None:
                    self.results[part] = result
            except* RefusedError as group:
                reason = str(error := first_of(group))
                if isinstance(error, RefusedError) and error.status:
                    reason = f"HTTP {error.status}: {error.reason}"
                    journal.keep(f"{REFUSED}{part}", reason)
                self.refused.append(part)
                self.texts.remark(f"{part}: refused ({reason})")

    async def _json(self) -> ServerGreedy | None:
        """Ask each server for JSON under schemas; count it, and compare with a baseline's."""
        texts, answers, shares = self.texts, {}, []
        for name, server in texts.servers.items():
            asks = [
                Ask(
                    *(prompt, JSON_TOKENS, 0.0, texts.plan.seed + number, server.top),
                    chat=True,
                    ignore_eos=False,
                    constraint=("json_schema", json.dumps(SCHEMAS[schema][0])),
                )
                for number, (schema, prompt) in enumerate(JSON_PROMPTS)
            ]
            keyed = [(f"json/0/{number}", ask) for number, ask in enumerate(asks)]
            answers[name] = await texts.asked(name, keyed)
            count = sum(map(is_json, answers[name]))
            shares.append(f"{name}: {count} of {len(asks)} answers are JSON")
        self.shares = "; ".join(shares)
        names = [f"{schema} {number}" for number, (schema, _) in enumerate(JSON_PROMPTS)]
        if BASE not in answers:
            return None
        return compare("the baseline's JSON", answers[BASE], answers[OWN], names)

    async def _mixed(self) -> ServerGreedy:
        """Compare greedy texts, each asked beside a sampled one, with those of greedy batches."""
        texts, asks = self.texts, []
        for i in range(len(self.greedy)):
            sampled = replace(texts.ask(OWN, i, 1.0), warp=texts.plan.cut)
            asks += [(f"mixed/{i}", texts.ask(OWN, i, 0.0)), (f"beside/{i}", sampled)]
        mixed = (await texts.asked(OWN, asks))[::2]
        return compare("greedy texts in batches of their own", self.greedy, mixed)

    async def _stop(self) -> ServerGreedy:
        """Compare texts with stop strings with the plain texts, cut there."""
        plain = self.greedy
        stops = {i: stop for i, text in enumerate(plain) if (stop := stop_string(text.text))}
        result = ServerGreedy("the plain texts, cut at the stop strings")
        if not stops:
            return result
        asks = {i: replace(self.texts.ask(OWN, i, 0.0), stop=(stop,)) for i, stop in stops.items()}
        texts = await self.texts.asked(OWN, [(f"stop/{i}", ask) for i, ask in asks.items()])
        for (i, stop), text in zip(stops.items(), texts, strict=True):
            result.compared.append(against_cut(f"prompt {i + 1}", plain[i], stop, text))
        at, stop = next(iter(stops.items()))
        late = replace(plain[at], text=plain[at].text.partition(stop)[0] + stop)
        result.planted = against_cut("planted", plain[at], stop, late).kind is GreedyKind.BUG
        if all(text.stopped_by for text in texts):
            words = Counter(word for text in plain for word in words_of(text.text))
            self.stop_string = max(words, key=lambda word: (words[word], word))
        else:
            self.texts.remark(
                "stop: the server does not say what ended a text, so sampled texts have no stop "
                "string"
            )
        return result

    async def _cache(self) -> ServerGreedy:
        """Compare the second answers to long prompts with the first ones."""
        texts, prompts = self.texts, self.texts.plan.texts
        count = min(LONG_PROMPTS, len(prompts))
        asks = [texts.ask(OWN, i, 0.0, long_prompt(prompts, i)) for i in range(count)]
        before = cached(await texts.page("/metrics"))
        first, again = [
            await texts.asked(OWN, [(f"{kind}/{i}", ask) for i, ask in enumerate(asks)])
            for kind in ("first", "again")
        ]
        after = cached(await texts.page("/metrics"))
        if before is not None and after is not None:
            hits = after - before
            tokens = f"{hits:,.0f} prompt tokens" if hits else "no prompt token"
            texts.remark(f"cache: {tokens} came from a prefix cache, by the server's count")
        return compare("the first answers to the same prompts", first, again)


def long_prompt(prompts: Sequence[str], index: int) -> str:
    """Return one of a few long prompts: prompts, one after another."""
    at = index % min(LONG_PROMPTS, len(prompts))
    text = prompts[at]
    while len(text) < LONG:
        at += 1
        text += f"\n\n{prompts[at % len(prompts)]}"
    return text


def words_of(text: str) -> set[str]:
    """Return the words of a text whose characters are whole."""
    return {word for word in WORD.findall(text) if "\ufffd" not in word}


def stop_string(text: str) -> str:
    """Return the word that first occurs nearest the middle of a text; empty if there is none."""
    firsts = {word: text.find(word) for word in words_of(text) if text.find(word) > 0}
    middle = len(text) // 2
    return min(firsts, key=lambda word: (abs(firsts[word] - middle), word), default="")


def against_cut(name: str, whole: Answer, stop: str, text: Answer) -> Compared:
    """Compare a text that had a stop string with the plain text cut there."""
    due = whole.text.partition(stop)[0]
    if text.text == due:
        return Compared(name, GreedyKind.IDENTICAL)
    if parting(whole, text) is not None:
        return compare_pair(name, whole, text, LEAST, shared_texts([whole]))
    at = max(0, (len(text.keys) or text.tokens) - 1)
    is_bug = text.text.startswith(due) or due.startswith(text.text)
    ends = repr(due[-QUOTED:]), repr(text.text[-QUOTED:])
    return Compared(name, GreedyKind.BUG if is_bug else GreedyKind.UNKNOWN, at, ends)


def cached(page: Any) -> float | None:
    """Return the prompt tokens that came from a cache, as a /metrics page counts them."""
    counts = [float(n) for n in CACHED.findall(page)] if isinstance(page, str) else []
    return sum(counts) if counts else None


def is_json(answer: Answer) -> bool:
    """Return whether an answer is JSON; one that was cut is none."""
    try:
        parse_json(answer.text.encode())
    except (FieldError, UnicodeEncodeError):
        return False
    return True
