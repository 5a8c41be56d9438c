"""Texts under five JSON schemas on one model: valid share, forced tokens, kept drafts by place.

    .venv/bin/python benchmarks/structured.py prompts work/structured   # two files, 100 each
    .venv/bin/sps bench --config configs/structured-smollm2.toml --out work/structured/run
    .venv/bin/python benchmarks/structured.py report work/structured/run

The schemas are a person, a tool call, an extraction, a sentiment and a recursive tree, with 20
prompts each. The same prompts without a schema show how many plain texts are valid. Whether a text
is valid, jsonschema decides, not the library that made the masks.
"""

import argparse
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from spsbench.store.manifest import Manifest
from spsbench.store.records import records

PLACES = ("structure", "key", "string", "number")


def text(most: int) -> dict[str, Any]:
    """A string of limited length."""
    return {"type": "string", "maxLength": most}


def object_of(**properties: Any) -> dict[str, Any]:
    """An object of these properties, all of them required."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


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
    """Twenty of a schema."""
    pairs = [(a, city) for a in range(5) for city in CITIES]
    if name == "person":
        return [f"{JOBS[a]} from {city}" for a, city in pairs]
    if name == "recursive":
        return [f"{NOUNS[a]} of {city}" for a, city in pairs]
    lines = {"tool call": WISHES, "sentiment": REVIEWS}.get(name)
    if lines is not None:
        return [f"({a + 1}) {lines[a % len(lines)].format(city)}" for a, city in pairs]
    heroes = ("Ada", "Emil", "Rosa", "Paul", "Nora")
    return [f"{heroes[a]} {EVENTS[a % len(EVENTS)].format(city)}." for a, city in pairs]


def write_prompts(folder: Path) -> None:
    """Write the prompts with schemas, and the same without."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"id": f"{name} {n}", "group": name, "prompt": ASKED[name].format(detail)}
        for n in range(20)
        for name in SCHEMAS
        for detail in [details(name)[n]]
    ]
    held = [row | {"json_schema": SCHEMAS[row["group"]]} for row in rows]
    for file, listed in (("held.jsonl", held), ("free.jsonl", rows)):
        (folder / file).write_text("".join(json.dumps(row) + "\n" for row in listed))


def is_valid(made: str, schema: Mapping[str, Any]) -> bool:
    """Whether a text is JSON, and follows its schema."""
    try:
        value = json.loads(made)
    except ValueError:
        return False
    return bool(Draft202012Validator(schema).is_valid(value))


def place(before: str) -> str:
    """The place in a JSON text of what comes after `before`."""
    quoted, escaped, keys, last = False, False, [], ""
    for letter in before:
        if quoted:
            quoted = escaped or letter != '"'
            escaped = letter == "\\" and not escaped
            continue
        if letter == '"':
            quoted = True
        elif letter in "{[":
            keys.append(letter)
        elif letter in "}]" and keys:
            keys.pop()
        last = last if letter.isspace() else letter
    if quoted:  # a key stands in an object, and no colon before it
        return "key" if keys[-1:] == ["{"] and opened_as_key(before) else "string"
    return "number" if last.isdigit() or (last in "-." and last) else "structure"


def opened_as_key(before: str) -> bool:
    """Whether the string that is open at the end of `before` is a key."""
    start, escaped, quoted = 0, False, False
    for at, letter in enumerate(before):
        if quoted:
            quoted = escaped or letter != '"'
            escaped = letter == "\\" and not escaped
        elif letter == '"':
            quoted, start = True, at
    return before[:start].rstrip()[-1:] in ("{", ",")


def tested(record: Any, decode: Any) -> Iterator[tuple[str, bool]]:
    """The place of each draft token that was tested, and whether it was kept."""
    done: list[int] = []
    for turn, laws in zip(record.rounds, record.laws or (), strict=False):
        for slot, token in enumerate(laws.tokens[: max(0, turn.tested)]):
            before = decode(done + laws.tokens[:slot])
            here = place(before)
            if here == "structure" and decode([token]).strip()[:1].isdigit():
                here = "number"
            yield here, slot < turn.accepted
        done = record.tokens[: len(done) + turn.emitted]


def shares(kept: Mapping[str, Sequence[bool]]) -> dict[str, Any]:
    """Place -> kept, tested and the share."""
    return {
        name: {"kept": sum(side), "tested": len(side), "share": round(sum(side) / len(side), 3)}
        for name in PLACES
        if (side := kept.get(name))
    }


def report(run: Path) -> dict[str, Any]:
    """The figures of a run by arm and schema."""
    from transformers import AutoTokenizer

    from spsbench.models.folder import local_folder

    manifest = Manifest.load(run)
    cells = manifest.configurations(run)
    target = next(iter(cells.values())).models.target.id
    tokenizer = AutoTokenizer.from_pretrained(local_folder(target))

    def decode(tokens: Sequence[int]) -> str:
        return str(tokenizer.decode(tokens, skip_special_tokens=True))

    rows: dict[tuple[str, str, float, str], dict[str, Any]] = {}
    greedy: dict[str, dict[str, list[int]]] = defaultdict(dict)
    for record in records(run):
        cell = cells[record.cell]
        held = "held" in str(cell.work.task)
        method = "K = 0" if cell.k == 0 else str(cell.method.drafter)
        for group in (record.group or "", "all"):
            key = "schema" if held else "free", method, cell.sampling.temperature, group
            row = rows.setdefault(key, {"count": Counter(), "kept": defaultdict(list), "mass": []})
            count = row["count"]
            count["texts"] += 1
            if record.error is not None:
                count["failed"] += 1
                continue
            ended = record.finish == "eos"
            valid = is_valid(record.text, SCHEMAS[record.group or ""])
            count["finished"] += ended
            count["valid"] += valid
            count["finished and not valid"] += ended and not valid
            count["tokens"] += len(record.tokens)
            count["rounds"] += len(record.rounds)
            count["forced"] += record.forced or 0
            count["masks"] += record.masks or 0
            count["mask_ms"] += 1e3 * (record.mask_seconds or 0.0)
            count["seconds"] += sum(turn.seconds for turn in record.rounds)
            if record.removed_nats is not None:  # a text that is cut is not valid
                row["mass"].append(math.exp(-record.removed_nats) if ended else 0.0)
            for where, kept in tested(record, decode):
                row["kept"][where].append(kept)
        if held and cell.sampling.temperature == 0 and record.error is None:
            greedy[record.sample][method] = record.tokens
    return {
        "command": "see benchmarks/structured.py",
        "versions": {"llguidance": manifest.provenance["versions"].get("llguidance")},
        "greedy texts equal K = 0": Counter(
            one == texts["K = 0"]
            for texts in greedy.values()
            if "K = 0" in texts
            for name, one in texts.items()
            if name != "K = 0"
        )[True],
        "greedy texts compared": sum(
            len(texts) - 1 for texts in greedy.values() if "K = 0" in texts
        ),
        "rows": [figures(*key, row) for key, row in sorted(rows.items())],
    }


def figures(kind: str, method: str, temperature: float, group: str, row: Any) -> dict[str, Any]:
    """One row of the report."""
    count, mass = row["count"], row["mass"]
    made = max(1, count["tokens"])
    return {
        "texts under": kind,
        "method": method,
        "temperature": temperature,
        "schema": group,
        **{name: count[name] for name in ("texts", "failed", "finished", "valid")},
        "finished and not valid": count["finished and not valid"],
        "tokens": count["tokens"],
        "forced share": round(count["forced"] / made, 3) if kind == "schema" else None,
        "block efficiency": round(made / max(1, count["rounds"]), 2),
        "masks a token": round(count["masks"] / made, 2),
        "mask ms a token": round(count["mask_ms"] / made, 3),
        "plain texts that would be valid": (sum(mass) / len(mass) if mass else None),
        "kept by place": shares(row["kept"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["prompts", "report"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.what == "prompts":
        write_prompts(given.folder)
        return
    made = json.dumps(report(given.folder), indent=1) + "\n"
    if given.out is None:
        print(made, end="")
    else:
        given.out.write_text(made)


if __name__ == "__main__":
    main()
