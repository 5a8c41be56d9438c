"""Texts under five JSON schemas on one model: how many are valid, and where drafts are accepted.

    .venv/bin/python benchmarks/structured.py prompts work/structured   # two files, 100 each
    .venv/bin/sps bench --config configs/structured-smollm2.toml --out work/structured/run
    .venv/bin/python benchmarks/structured.py report work/structured/run

The schemas are a person, a tool call, an extraction, a sentiment and a recursive tree, with 20
prompts each. The same prompts without a schema show how many plain texts are valid. Whether a text
is valid, jsonschema decides, not the library that made the masks. Speed, tau, masks and forced
tokens are in the run's own table.
"""

import argparse
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from jsonschema import Draft202012Validator

from spsbench.settings.records import Record
from spsbench.store.manifest import Manifest
from spsbench.store.records import records

PLACES = ("structure", "key", "string", "number")
COUNTED = ("texts", "failed", "finished", "valid", "finished and not valid")


class Method(NamedTuple):
    """How texts were made."""

    texts_under: str  # "a schema" or "no schema"
    method: str  # "K = 0" or "drafts"
    temperature: float


def object_of(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object with these properties, all required."""
    required = {"required": list(properties), "additionalProperties": False}
    return {"type": "object", "properties": properties, **required}


def text(length: int) -> dict[str, Any]:
    """Return the schema of a string of at most `length` characters."""
    return {"type": "string", "maxLength": length}


TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": object_of(
            name=text(20),
            children={"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
        )
    },
}
CALLS = {
    "get_weather": object_of(city=text(30), days={"type": "integer", "minimum": 1, "maximum": 14}),
    "send_mail": object_of(to=text(30), subject=text(40)),
    "search": object_of(query=text(60)),
}
SCHEMAS: Mapping[str, dict[str, Any]] = {
    "person": object_of(
        name=text(30),
        age={"type": "integer", "minimum": 0, "maximum": 120},
        city=text(30),
        married={"type": "boolean"},
    ),
    "tool call": {
        "anyOf": [
            object_of(name={"const": name}, arguments=arguments)
            for name, arguments in CALLS.items()
        ]
    },
    "extraction": object_of(
        people={"type": "array", "items": text(24), "maxItems": 3},
        places={"type": "array", "items": text(24), "maxItems": 3},
        year={"type": ["integer", "null"], "minimum": 1000, "maximum": 2100},
    ),
    "sentiment": object_of(
        sentiment={"enum": ["positive", "neutral", "negative"]},
        score={"type": "number", "minimum": 0, "maximum": 1},
        reason=text(60),
    ),
    "recursive": TREE,
}
ASKED = {
    "person": "Invent a person who is {}. Answer in JSON with name, age, city and married.",
    "tool call": "Tools: get_weather(city, days), send_mail(to, subject), search(query). {} Answer "
    "with one call in JSON, with name and arguments.",
    "extraction": "List people, places and the year of this text in JSON. Text: {}",
    "sentiment": "Give the sentiment, a score from 0 to 1 and a short reason in JSON. Text: {}",
    "recursive": "Give {} as a small tree in JSON: name, children (each with name and children).",
}
JOBS = ("a baker", "a pilot", "a teacher", "a nurse", "a painter")
CITIES = ("Lisbon", "Oslo", "Vienna", "Dublin")
WISHES = ("What is the weather in {}?", "Write to Ann about {}.", "Find museums in {}.")
NOUNS = ("a river", "a family", "a company", "a forest", "a car")
EVENTS = (
    "met Marie in {} in 1911",
    "left {} in 1848",
    "opened a school in {}",
    "died in {} in 1730",
)
REVIEWS = ("The hotel in {} was wonderful.", "The food in {} was cold.", "{} is a city.")


def details(name: str) -> list[str]:
    """Return twenty details to ask about under the schema `name`."""
    pairs = [(number, city) for number in range(5) for city in CITIES]
    if name == "person":
        return [f"{JOBS[number]} from {city}" for number, city in pairs]
    if name == "recursive":
        return [f"{NOUNS[number]} of {city}" for number, city in pairs]
    lines = {"tool call": WISHES, "sentiment": REVIEWS}.get(name)
    if lines is not None:
        return [f"({n + 1}) {lines[n % len(lines)].format(city)}" for n, city in pairs]
    names = ("Ada", "Emil", "Rosa", "Paul", "Nora")
    return [f"{names[n]} {EVENTS[n % len(EVENTS)].format(city)}." for n, city in pairs]


def write_prompts(folder: Path) -> None:
    """Write the prompts with schemas, `held.jsonl`, and the same without, `free.jsonl`."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"id": f"{name} {n}", "group": name, "prompt": ASKED[name].format(details(name)[n])}
        for n in range(20)
        for name in SCHEMAS
    ]
    constrained = [row | {"json_schema": SCHEMAS[row["group"]]} for row in rows]
    for file, prompts in (("held.jsonl", constrained), ("free.jsonl", rows)):
        (folder / file).write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))


def is_valid(text: str, schema: Mapping[str, Any]) -> bool:
    """Return whether a text is JSON that follows its schema."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return bool(Draft202012Validator(schema).is_valid(value))


def place(before: str) -> str:
    """Return the place in a JSON text of what comes after `before`: one of `PLACES`."""
    quoted, escaped, brackets = False, False, []
    last, before_string = "", ""  # the last character outside of strings; that before the last one
    for letter in before:
        if quoted:
            quoted = escaped or letter != '"'
            escaped = letter == "\\" and not escaped
            continue
        if letter == '"':
            quoted, before_string = True, last
        elif letter in "{[":
            brackets.append(letter)
        elif letter in "}]" and brackets:
            brackets.pop()
        last = last if letter.isspace() else letter
    if quoted:  # a key stands in an object, and no colon before it
        return "key" if brackets[-1:] == ["{"] and before_string in ("{", ",") else "string"
    return "number" if last.isdigit() or last in ("-", ".") else "structure"


def tested(record: Record, decode: Callable[[Sequence[int]], str]) -> Iterator[tuple[str, bool]]:
    """Yield the place of each draft token that was examined, and whether it was accepted.

    The place is that of the token that the target emitted there.
    """
    start = 0
    for turn in record.rounds:
        for slot in range(min(turn.accepted + 1, turn.drafted)):
            if start + slot >= len(record.tokens):
                break
            token = record.tokens[start + slot]
            kind = place(decode(record.tokens[: start + slot]))
            if kind == "structure" and decode([token]).strip()[:1].isdigit():
                kind = "number"
            yield kind, slot < turn.accepted
        start += turn.emitted


@dataclass
class Row:
    """The texts of a method under one schema, or under all."""

    counts: Counter[str] = field(default_factory=Counter)
    accepted: dict[str, list[bool]] = field(default_factory=lambda: defaultdict(list))
    mass: list[float] = field(default_factory=list)  # chance of each text to be valid without masks

    def add(self, record: Record, decode: Callable[[Sequence[int]], str]) -> None:
        """Count a text."""
        counts = self.counts
        counts["texts"] += 1
        if record.error is not None:
            counts["failed"] += 1
            return
        ended = record.finish == "eos"
        valid = is_valid(record.text, SCHEMAS[record.group or ""])
        counts["finished"] += ended
        counts["valid"] += valid
        counts["finished and not valid"] += ended and not valid
        if record.removed_nats is not None:  # a text that is cut is not valid
            self.mass.append(math.exp(-record.removed_nats) if ended else 0.0)
        for kind, accepted in tested(record, decode):
            self.accepted[kind].append(accepted)

    def to_json(self) -> dict[str, Any]:
        """Return counts and shares."""
        return {
            **{name: self.counts[name] for name in COUNTED},
            "plain texts that would be valid": fmean(self.mass) if self.mass else None,
            "accepted by place": {
                name: {
                    "accepted": sum(slots),
                    "tested": len(slots),
                    "share": round(fmean(slots), 3),
                }
                for name in PLACES
                if (slots := self.accepted.get(name))
            },
        }


def report(run: Path) -> dict[str, Any]:
    """Return the figures of a run by method and schema."""
    from transformers import AutoTokenizer

    from spsbench.models.folder import local_folder

    manifest = Manifest.load(run)
    cells = manifest.configurations(run)
    target = next(iter(cells.values())).target.id
    tokenizer = AutoTokenizer.from_pretrained(local_folder(target))

    def decode(tokens: Sequence[int]) -> str:
        return str(tokenizer.decode(tokens, skip_special_tokens=True))

    rows: dict[Method, dict[str, Row]] = defaultdict(lambda: defaultdict(Row))
    for record in records(run):
        cell = cells[record.cell]
        constraint = "a schema" if "held" in str(cell.task) else "no schema"
        method = Method(constraint, "K = 0" if cell.k == 0 else "drafts", cell.temperature)
        for group in (record.group or "", "all"):
            rows[method][group].add(record, decode)
    return {
        "command": "see benchmarks/structured.py",
        "versions": {"llguidance": manifest.fingerprint.get("version.llguidance")},
        "rows": [
            {**method._asdict(), "schema": group, **row.to_json()}
            for method in sorted(rows)
            for group, row in sorted(rows[method].items())
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["prompts", "report"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    if flags.what == "prompts":
        write_prompts(flags.folder)
        return
    figures = json.dumps(report(flags.folder), indent=1) + "\n"
    if flags.out is None:
        print(figures, end="")
    else:
        flags.out.write_text(figures)


if __name__ == "__main__":
    main()
