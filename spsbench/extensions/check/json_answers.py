"""Greedy JSON of a server under schemas: compared with the baseline's, and the valid share.

What a server states of probabilities comes after its mask, so a wrong mask is not seen in them, but
in answers that violate their schema.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import product
from typing import Any

from spsbench.errors import MissingError
from spsbench.extensions.check.greedy import ServerGreedy, against_baseline, third_is_a_bug
from spsbench.extensions.check.texts import BASE, OWN, Texts
from spsbench.serving.answers import ENDS, Answer
from spsbench.serving.engines import Ask

TOKENS = 192  # of an answer
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
    CUT = "cut"


def classify(answer: Answer, schema: Mapping[str, Any]) -> AnswerKind:
    """Return what an answer is: valid by jsonschema, cut at its budget, or wrong."""
    if (answer.finish or "").lower() in ENDS["length"]:
        return AnswerKind.CUT
    try:
        value = json.loads(answer.text)
    except (ValueError, RecursionError):
        return AnswerKind.NO_JSON
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
            "pip install jsonschema"
        ) from error
    return Draft202012Validator(schema)


@dataclass(kw_only=True)
class JsonResult:
    """The kinds of the answers of each server, in the order of the prompts."""

    kinds: dict[str, list[AnswerKind]] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """Return the valid share of each server."""
        return "; ".join(
            f"{name}: {kinds.count(AnswerKind.VALID)} of {len(kinds)} valid"
            for name, kinds in self.kinds.items()
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        kinds = {name: dict(Counter(map(str, kinds))) for name, kinds in self.kinds.items()}
        return {"line": self.line, "kinds": kinds, "unseen": UNSEEN}


async def json_answers(texts: Texts) -> tuple[JsonResult, ServerGreedy | None]:
    """Ask each server for JSON under the schemas; compare the answers with the baseline's, if any.

    Raises:
        RefusedError: a server takes no schema, or no chat.
    """
    validator({})
    result, answers = JsonResult(), {}
    for name, server in texts.servers.items():
        asks = [
            Ask(
                prompt,
                TOKENS,
                0.0,
                texts.plan.seed + number,
                top=server.top,
                chat=True,
                ignore_eos=False,
                constraint=("json_schema", json.dumps(SCHEMAS[schema])),
            )
            for number, (schema, prompt) in enumerate(PROMPTS)
        ]
        keyed = [(f"json/0/{number}", ask) for number, ask in enumerate(asks)]
        answers[name] = await texts.asked(name, keyed)
        result.kinds[name] = [
            classify(answer, SCHEMAS[schema])
            for answer, (schema, _) in zip(answers[name], PROMPTS, strict=True)
        ]
    if BASE not in answers:
        return result, None
    bases, names = answers[BASE], [f"{schema} {n}" for n, (schema, _) in enumerate(PROMPTS)]
    compared = against_baseline(names, bases, answers[OWN])
    planted = third_is_a_bug(bases[0].stated, bases[0].keys)
    return result, ServerGreedy("the baseline's JSON", compared, planted)
