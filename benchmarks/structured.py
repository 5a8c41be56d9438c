"""Texts under five JSON schemas on one model: valid share, forced tokens, kept drafts by place.

    .venv/bin/python benchmarks/structured.py prompts work/structured   # two files, 100 each
    .venv/bin/sps bench --config configs/structured-smollm2.toml --out work/structured/run
    .venv/bin/python benchmarks/structured.py report work/structured/run   # and --table

The schemas are a person, a tool call, an extraction, a sentiment and a recursive tree, with 20
prompts each. The same prompts without a schema show how many plain texts are valid. Whether a text
is valid, jsonschema decides, not the library that made the masks.
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

from spsbench.extensions.check.modes import object_of
from spsbench.metrics.rates import speedup
from spsbench.settings.records import Record
from spsbench.store.manifest import Manifest
from spsbench.store.records import records

PLACES = ("structure", "key", "string", "number")
COUNTED = ("texts", "failed", "finished", "valid", "finished and not valid", "tokens")
TEMPERATURES = (0.0, 0.7)
SCHEMA, FREE = "a schema", "no schema"
ALONE, DRAFTED = "K = 0", "drafts"


class Arm(NamedTuple):
    """Texts that were made in one way."""

    texts_under: str  # `SCHEMA` or `FREE`
    method: str  # `ALONE` or `DRAFTED`
    temperature: float


def text(most: int) -> dict[str, Any]:
    """A string of limited length."""
    return {"type": "string", "maxLength": most}


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


def tested(record: Record, decode: Callable[[Sequence[int]], str]) -> Iterator[tuple[str, bool]]:
    """The place of each draft token that was tested, and whether it was kept.

    The place is that of the token that the target emitted there.
    """
    start = 0
    for turn in record.rounds:
        for slot in range(min(turn.accepted + 1, turn.drafted)):
            if start + slot >= len(record.tokens):
                break
            token = record.tokens[start + slot]
            here = place(decode(record.tokens[: start + slot]))
            if here == "structure" and decode([token]).strip()[:1].isdigit():
                here = "number"
            yield here, slot < turn.accepted
        start += turn.emitted


@dataclass
class Row:
    """The texts of one arm under one schema, or under all."""

    counts: Counter[str] = field(default_factory=Counter)
    kept: dict[str, list[bool]] = field(default_factory=lambda: defaultdict(list))
    mass: list[float] = field(default_factory=list)  # chance of each text to be valid without masks
    times: dict[str, tuple[float, int]] = field(default_factory=dict)  # prompt -> seconds, tokens
    tokens: dict[str, list[int]] = field(default_factory=dict)  # prompt -> the text
    mask_seconds: float = 0.0

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
        counts["tokens"] += len(record.tokens)
        counts["rounds"] += len(record.rounds)
        counts["forced"] += record.forced or 0
        counts["masks"] += record.masks or 0
        self.mask_seconds += record.mask_seconds or 0.0
        seconds = sum(turn.seconds for turn in record.rounds)
        self.times[record.sample] = seconds, len(record.tokens)
        self.tokens[record.sample] = record.tokens
        if record.removed_nats is not None:  # a text that is cut is not valid
            self.mass.append(math.exp(-record.removed_nats) if ended else 0.0)
        for where, kept in tested(record, decode):
            self.kept[where].append(kept)

    def to_json(self) -> dict[str, Any]:
        """Return counts, shares and times."""
        counts, tokens = self.counts, max(1, self.counts["tokens"])
        seconds = sum(seconds for seconds, _ in self.times.values())
        return {
            **{name: counts[name] for name in COUNTED},
            "forced share": round(counts["forced"] / tokens, 3),
            "block efficiency": round(tokens / max(1, counts["rounds"]), 3),
            "tokens a second": round(tokens / seconds, 1) if seconds else None,
            "masks a token": round(counts["masks"] / tokens, 2),
            "seconds of masks": round(self.mask_seconds, 3),
            "mask ms a token": round(1e3 * self.mask_seconds / tokens, 3),
            "share of time in masks": round(self.mask_seconds / seconds, 4) if seconds else None,
            "plain texts that would be valid": fmean(self.mass) if self.mass else None,
            "kept by place": shares(self.kept),
        }


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
    target = next(iter(cells.values())).target.id
    tokenizer = AutoTokenizer.from_pretrained(local_folder(target))

    def decode(tokens: Sequence[int]) -> str:
        return str(tokenizer.decode(tokens, skip_special_tokens=True))

    rows: dict[Arm, dict[str, Row]] = defaultdict(lambda: defaultdict(Row))
    for record in records(run):
        cell = cells[record.cell]
        kind = SCHEMA if "held" in str(cell.task) else FREE
        arm = Arm(kind, ALONE if cell.k == 0 else DRAFTED, cell.temperature)
        for group in (record.group or "", "all"):
            rows[arm][group].add(record, decode)
    return {
        "command": "see benchmarks/structured.py",
        "versions": {"llguidance": manifest.fingerprint.get("version.llguidance")},
        "drafters": sorted({cell.noise_key for cell in cells.values() if cell.k != 0}),
        "greedy texts": greedy_texts(rows),
        "ratios of speed": list(ratios(rows)),
        "rows": [
            {**arm._asdict(), "schema": group, **row.to_json()}
            for arm in sorted(rows)
            for group, row in sorted(rows[arm].items())
        ],
    }


def greedy_texts(rows: Mapping[Arm, Mapping[str, Row]]) -> dict[str, int]:
    """How many greedy texts with drafts equal those without."""
    equal: Counter[str] = Counter()
    for kind in (SCHEMA, FREE):
        plain, drafted = (rows.get(Arm(kind, method, 0.0), {}) for method in (ALONE, DRAFTED))
        if not plain or not drafted:
            continue
        texts = plain["all"].tokens
        for sample, tokens in drafted["all"].tokens.items():
            equal[f"{kind}, compared"] += sample in texts
            equal[f"{kind}, equal"] += texts.get(sample) == tokens
    return dict(equal)


def ratios(rows: Mapping[Arm, Mapping[str, Row]]) -> Iterator[dict[str, Any]]:
    """Ratios of mean token times, paired by prompt, with their 95 % intervals."""
    arms = [
        (f"{kind}, T = {t:g}: {DRAFTED} over {ALONE}", Arm(kind, ALONE, t), Arm(kind, DRAFTED, t))
        for kind in (SCHEMA, FREE)
        for t in TEMPERATURES
    ] + [
        (f"{method}, T = {t:g}: {SCHEMA} over {FREE}", Arm(FREE, method, t), Arm(SCHEMA, method, t))
        for method in (ALONE, DRAFTED)
        for t in TEMPERATURES
    ]
    for name, base, other in arms:
        if base not in rows or other not in rows:
            continue
        for group in sorted(rows[base].keys() & rows[other].keys()):
            before, after = rows[base][group].times, rows[other][group].times
            prompts = sorted(before.keys() & after.keys())
            pairs = [[side[prompt] for prompt in prompts] for side in (before, after)]
            gain = speedup(*pairs)
            yield {
                "speed-up": name,
                "schema": group,
                "prompts": len(prompts),
                **{end: rounded(getattr(gain, end)) for end in ("mean", "low", "high")},
            }


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def table(figures: Mapping[str, Any]) -> str:
    """The table of docs/howto/structured.md: drafted texts at temperature 0.7, and their speed."""
    names = ("schema", "valid of finished", "finished", "forced", "tau", *PLACES)
    lines = [names, ["---"] * len(names)]
    drafted = {
        row["schema"]: row
        for row in figures["rows"]
        if (row["texts_under"], row["method"], row["temperature"]) == (SCHEMA, DRAFTED, 0.7)
    }
    for name in (*SCHEMAS, "all"):
        row = drafted[name]
        lines.append(
            [
                name,
                f"{row['finished'] - row['finished and not valid']} of {row['finished']}",
                f"{row['finished']} of {row['texts']}",
                f"{row['forced share']:.2f}",
                f"{row['block efficiency']:.2f}",
                *(
                    f"{share['share']:.2f}" if (share := row["kept by place"].get(where)) else "-"
                    for where in PLACES
                ),
            ]
        )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["prompts", "report"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", action="store_true", help="Markdown in place of JSON")
    options = parser.parse_args()
    if options.what == "prompts":
        write_prompts(options.folder)
        return
    figures = report(options.folder)
    text = table(figures) if options.table else json.dumps(figures, indent=1) + "\n"
    if options.out is None:
        print(text, end="")
    else:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
