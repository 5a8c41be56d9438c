"""JSON answers of a server under schemas: the valid share, with and without speculation.

Each of 200 prompts over five schemas is answered at temperature 0 and at 1. Answers of the server
and of its baseline are paired by prompt: an exact McNemar test asks whether speculation changes how
many are valid. What the server states of probabilities comes after its mask, so a wrong mask is not
seen in them, but in answers that violate their schema.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import partial
from itertools import product
from typing import Any

from spsbench.audit.statistical.comparison import GreedyKind
from spsbench.errors import MissingError, first_line
from spsbench.extensions.check import greedy
from spsbench.metrics.intervals import LEVEL
from spsbench.serving.answers import ENDS
from spsbench.serving.engines import Answer, Ask
from spsbench.serving.http import AbortedError, ImpossibleAnswerError, RefusedError

OWN, BASE = "server", "baseline"
TEMPERATURES = (0.0, 1.0)
TOKENS = 192  # of an answer
RUN = 40  # white characters at the end of an answer that was cut: it would never have ended
UNSEEN = (
    "stated probabilities come after the server's mask: bets on them hold although a mask is "
    "wrong, and the law under a schema cannot be told by weights without the server's own masks"
)


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
PROMPTS: tuple[tuple[str, str], ...] = tuple(
    (name, ASKED[name].format(f"a {who} from {where}"))
    for (who, where), name in product(product(WHO, WHERE), SCHEMAS)
)
"""Schema and prompt of each request."""


class AnswerKind(StrEnum):
    """The kinds of answers under a schema."""

    VALID = "valid"
    VIOLATING = "violating its schema"
    NO_JSON = "no JSON"
    DOUBLED = "a doubled opener"
    CUT = "cut"
    WHITE = "a run of white space"
    ERROR = "an error"


WRONG = (AnswerKind.VIOLATING, AnswerKind.NO_JSON, AnswerKind.DOUBLED)
"""Answers that no right mask gives, however many tokens there are."""


def classify(answer: Answer, schema: Mapping[str, Any]) -> AnswerKind:
    """Return what an answer is: valid by jsonschema, cut at its budget, or wrong."""
    if (answer.finish or "").lower() in ENDS["length"]:
        white = len(answer.text) - len(answer.text.rstrip())
        return AnswerKind.WHITE if white >= RUN else AnswerKind.CUT
    try:
        value = json.loads(answer.text)
    except (ValueError, RecursionError):
        doubled = re.match(r"\s*(\{\s*\{|\[\s*\[\s*\{)", answer.text)
        return AnswerKind.DOUBLED if doubled else AnswerKind.NO_JSON
    return AnswerKind.VALID if validator(schema).is_valid(value) else AnswerKind.VIOLATING


def validator(schema: Mapping[str, Any]) -> Any:
    """Return a validator of a schema.

    Raises:
        MissingError: jsonschema is not installed.
    """
    try:
        from jsonschema import Draft202012Validator
    except ImportError as error:
        raise MissingError(
            "jsonschema is not installed: expected it to judge answers. Install it with "
            "pip install 'spsbench[structured]'"
        ) from error
    return Draft202012Validator(schema)


def share_interval(count: int, total: int, level: float = 1 - LEVEL) -> tuple[float, float]:
    """Return the interval of Clopper and Pearson of a share: exact, by bisection of the binomial.

    Args:
        level: chance that the share is outside.
    """
    if total == 0:
        return 0.0, 1.0

    def least(share: float) -> float:  # P(X >= count)
        return sum(binomial(i, total, share) for i in range(count, total + 1))

    def most(share: float) -> float:  # P(X <= count)
        return sum(binomial(i, total, share) for i in range(count + 1))

    low = 0.0 if count == 0 else bisected(lambda share: least(share) < level / 2)
    high = 1.0 if count == total else bisected(lambda share: most(share) > level / 2)
    return low, high


def binomial(count: int, total: int, share: float) -> float:
    """Return the probability of `count` of `total` at chance `share`."""
    chance: float = math.comb(total, count) * share**count * (1 - share) ** (total - count)
    return chance


def bisected(below: Callable[[float], bool]) -> float:
    """Return the share at which `below`, true for lesser ones, becomes false."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return low


def mcnemar(one: int, other: int) -> float:
    """Return the two-sided chance of so uneven a split of discordant pairs, each way even."""
    total = one + other
    tail: float = sum(math.comb(total, i) for i in range(min(one, other) + 1)) / 2**total
    return min(1.0, 2 * tail)


@dataclass(kw_only=True)
class JsonResult:
    """The answers of a check under schemas."""

    level: float
    kinds: dict[str, list[AnswerKind]] = field(default_factory=dict)  # of each server, in order
    errors: dict[str, str] = field(default_factory=dict)  # the first error of each server
    compared: list[Any] = field(default_factory=list)  # greedy texts, as `greedy` compares them

    @property
    def pairs(self) -> tuple[int, int] | None:
        """Return how many prompts have a valid answer of one server alone; None: no baseline."""
        if BASE not in self.kinds:
            return None
        own, base = (
            [kind is AnswerKind.VALID for kind in self.kinds[name]] for name in (OWN, BASE)
        )
        both = list(zip(own, base, strict=True))
        return sum(a and not b for a, b in both), sum(b and not a for a, b in both)

    @property
    def chance(self) -> float | None:
        """Return the p-value of the paired test; None: no baseline."""
        return None if self.pairs is None else mcnemar(*self.pairs)

    @property
    def bug(self) -> bool:
        """Return whether speculation changes the valid share, or a greedy text beyond rounding."""
        differs = any(text.kind is GreedyKind.BUG for text in self.compared)
        return differs or (self.chance is not None and self.chance < self.level)

    @property
    def wrong(self) -> int:
        """Return how many answers of the server no right mask gives."""
        return sum(kind in WRONG for kind in self.kinds[OWN])

    def shares(self) -> list[tuple[str, int, int, float, float]]:
        """Return of each server: its name, valid answers, all, and the interval of the share."""
        rows = []
        for name, kinds in self.kinds.items():
            valid = sum(kind is AnswerKind.VALID for kind in kinds)
            rows.append((name, valid, len(kinds), *share_interval(valid, len(kinds))))
        return rows

    @property
    def line(self) -> str:
        """Return the result in words."""
        parts = [
            f"{name}: {valid} of {total} valid ({low:.1%} to {high:.1%})"
            for name, valid, total, low, high in self.shares()
        ]
        if self.wrong:
            parts.append(f"{self.wrong} finished answers follow no schema, so its masks are wrong")
        if self.pairs is not None and self.chance is not None:
            parts.append(
                f"paired by prompt {self.pairs[0]} to {self.pairs[1]}, p = {self.chance:.2g}"
            )
            counts = Counter(str(text.kind) for text in self.compared)
            parts.append("greedy texts: " + ", ".join(f"{n} {kind}" for kind, n in counts.items()))
        return "; ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "line": self.line,
            "kinds": {name: dict(Counter(map(str, kinds))) for name, kinds in self.kinds.items()},
            "shares": [
                dict(zip(("server", "valid", "answers", "low", "high"), row, strict=True))
                for row in self.shares()
            ],
            "pairs": self.pairs,
            "p": self.chance,
            "greedy": [
                {**asdict(text), "kind": str(text.kind), "logits": None} for text in self.compared
            ],
            "errors": self.errors,
            "unseen": UNSEEN,
        }


Send = Callable[[str, str, Ask], Awaitable[Answer]]
"""(server, key of the journal, request) -> its answer."""


async def examine_json(
    servers: Sequence[str],
    send: Send,
    gather: Callable[[Sequence[Callable[[], Awaitable[Any]]]], Awaitable[list[Any]]],
    *,
    seed: int,
    top: Mapping[str, int],
    level: float,
    prompts: Sequence[tuple[str, str]] = (),
    progress: Callable[[str, int, int], None] = lambda part, done, total: None,
) -> JsonResult:
    """Ask every server for JSON under each schema, and judge the answers.

    Args:
        top: likeliest tokens that each server may return, which tell ties of greedy texts.
        level: chance of a false alarm of the paired test.
        prompts: schema and prompt of each request; empty: `PROMPTS`.
    """
    validator({})
    result = JsonResult(level=level)
    texts: dict[str, list[Answer | None]] = {}
    work = [(t, n, *prompt) for t in TEMPERATURES for n, prompt in enumerate(prompts or PROMPTS)]
    count: Counter[str] = Counter()

    async def one(
        name: str, temperature: float, number: int, schema: str, prompt: str
    ) -> Answer | None:
        ask = Ask(
            prompt,
            TOKENS,
            temperature,
            seed + number,
            top=0 if temperature else top[name],
            chat=True,
            ignore_eos=False,
            constraint=("json_schema", json.dumps(SCHEMAS[schema])),
        )
        try:
            answer = await send(name, f"json/{temperature:g}/{number}", ask)
        except (AbortedError, ImpossibleAnswerError, RefusedError) as error:
            result.errors.setdefault(name, first_line(error))
            answer = None
        count[name] += 1
        progress(f"json texts of the {name}", count[name], len(work))
        return answer

    for name in servers:
        texts[name] = await gather([partial(one, name, *request) for request in work])
        result.kinds[name] = [
            AnswerKind.ERROR if answer is None else classify(answer, SCHEMAS[schema])
            for answer, (_, _, schema, _) in zip(texts[name], work, strict=True)
        ]
    if BASE in texts:
        both = [
            (f"{schema} {number}", base, own)
            for (t, number, schema, _), base, own in zip(work, texts[BASE], texts[OWN], strict=True)
            if t == 0 and base is not None and own is not None
        ]
        if both:
            names, bases, owns = map(list, zip(*both, strict=True))
            result.compared = greedy.against_baseline(names, bases, owns)
    return result
