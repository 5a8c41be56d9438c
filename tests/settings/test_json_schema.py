"""Schemas that would take too long, or whose texts would not follow them although allowed."""

import json

import pytest

from spsbench.errors import DataError
from spsbench.settings import constraint
from spsbench.settings.constraint import check_grammar, problem_of, to_llguidance

llguidance = pytest.importorskip("llguidance")

LIST = {"type": "array", "items": {"$ref": "#"}}
CAT = {"properties": {"tag": {"const": "cat"}, "n": {}}, "required": ["tag"], "type": "object"}
DOG = {"properties": {"tag": {"const": "dog"}}, "required": ["tag"], "type": "object"}
OLD_CAT = CAT | {"properties": {"tag": {"const": "cat", "enum": ["cat"]}}}
LOOSE_CAT, LOOSE_DOG = CAT | {"required": []}, DOG | {"required": []}
PATTERN = {"^(a+)+$": {"type": "integer"}}


def chain(length, around, end=None):
    """Definitions of which each refers to the next."""
    parts = {str(n): around({"$ref": f"#/$defs/{n + 1}"}) for n in range(length)}
    return {"$ref": "#/$defs/0", "$defs": {**parts, str(length): end or {"type": "null"}}}


def requiring(part):
    return {"type": "object", "properties": {"a": part}, "required": ["a"]}


def nested(levels, part):
    for _ in range(levels):
        part = {"type": "array", "items": part}
    return part


def keys(count):
    return [f"k{n}" for n in range(count)]


DEEP = "nests deeper than a stack of 4 MB: expected one that llguidance can compile"
SCHEMAS = {
    "anything": ({}, None),
    "lists": (LIST, None),
    "foreign reference": ({"$ref": "other.json#/a"}, "other.json"),
    "reference to nothing": ({"$ref": "#/items/9", "items": []}, "expected a schema of keywords"),
    "literal reference": ({"const": {"$ref": "#"}}, None),
    "properties as a list": (
        {"properties": [], "required": "a", "type": 3, "allOf": 1},
        "keywords",
    ),
    "slow pattern": ({"type": "object", "patternProperties": PATTERN, "required": ["aa!"]}, None),
    "slow pattern, long key": (
        {"type": "object", "patternProperties": PATTERN, "required": ["a" * 40 + "!"]},
        None,
    ),
    "broken pattern": ({"type": "object", "patternProperties": {"[": {"$ref": "#"}}}, "keywords"),
    "4,000 references": (chain(4_000, lambda part: part), DEEP),
    "1,500 required objects": (chain(1_500, requiring), DEEP),
    "240 required objects": (chain(240, requiring), None),
    "4,000 anchors": (
        {"$ref": "#n0"}
        | {"$defs": {f"a{n}": {"$anchor": f"n{n}", "$ref": f"#n{n + 1}"} for n in range(4_000)}},
        DEEP,
    ),
    "a place of 5,000 digits": ({"anyOf": [{"$ref": "#/anyOf/" + "1" * 5_000}]}, "array index"),
    "references through lists": (chain(20, lambda part: nested(30, part)), None),
    "circle of 600": (chain(600, requiring, {"$ref": "#/$defs/0"}), DEEP),
    "lists in lists": (nested(150, {}), "recursion limit"),
    "products of branches": (
        {
            "allOf": [
                {"anyOf": [{"properties": {f"{n}{m}": {}}} for m in range(9)]} for n in "abcdef"
            ]
        },
        "too large",
    ),
    "tag of one value": ({"oneOf": [OLD_CAT, DOG]}, None),
    "optional tag": ({"oneOf": [LOOSE_CAT, LOOSE_DOG]}, "Require one in each branch"),
    "no tag": ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "or use `anyOf`"),
    "wrong options": ({"x-guidance": 5}, "expected an object with options"),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema_is_followed_or_refused_in_one_line_before_it_costs_time(name):
    schema, refusal = SCHEMAS[name]
    if refusal is None:
        check_grammar("json_schema", json.dumps(schema), "FILE")
        return
    with pytest.raises(DataError) as caught:
        check_grammar("json_schema", json.dumps(schema), "FILE")
    assert refusal in str(caught.value)
    assert "\n" not in str(caught.value)


def rules(name, count):
    return "start: R0\n" + "\n".join(f"{name}{n}: {name}{n + 1}" for n in range(count))


@pytest.mark.parametrize(
    "grammar",
    [
        rules("R", 8_000) + '\nR8000: "a"\n',
        rules("r", 8_000).replace("R0", "r0") + '\nr8000: "a"\n',
        "start: %json " + json.dumps(chain(4_000, lambda part: part)),
    ],
    ids=["terminals", "rules", "schema inside"],
)
def test_a_grammar_that_would_end_the_process_is_refused_and_the_next_one_compiled(grammar):
    with pytest.raises(DataError) as caught:
        check_grammar("grammar", grammar, "FILE")
    assert DEEP in str(caught.value)
    check_grammar("grammar", 'start: "a" | "b"', "FILE")


@pytest.mark.parametrize("kind", ["json_schema", "grammar"])
def test_a_constraint_that_takes_too_long_is_refused(kind, monkeypatch):
    monkeypatch.setattr(constraint, "SECONDS", 1)
    text = json.dumps({"properties": {key: {} for key in keys(8_000)}})
    if kind == "grammar":
        text = "start: %json " + text
    with pytest.raises(DataError) as caught:
        check_grammar(kind, text, "FILE")
    assert "more than 1 s of processor time" in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "few"),
    [
        ({"minProperties": 2}, True),
        ({"minProperties": 1}, False),
        ({"minProperties": 2, "required": ["a"]}, False),
        ({"minProperties": 3, "required": ["a", "a"]}, True),
        ({"minProperties": 2, "additionalProperties": False}, False),
        ({"minProperties": 2, "additionalProperties": False, "patternProperties": {"a": {}}}, True),
        ({"properties": {"minProperties": {"minProperties": 4}}}, True),
        ({"properties": {"minProperties": {"type": "integer"}}}, False),
        ({"items": {"anyOf": [{}, {"minProperties": 4}]}}, True),
        ({"enum": [{"minProperties": 4}]}, False),
    ],
    ids=str,
)
def test_a_key_that_comes_twice_cannot_make_up_the_number_of_keys(schema, few):
    assert ("a key may come twice" in (problem_of(schema) or "")) == few


@pytest.mark.parametrize(
    ("bounds", "text", "loose"),
    [
        ({"exclusiveMinimum": 0, "maximum": 0.5}, "0", True),
        ({"minimum": -1.5, "exclusiveMaximum": -1}, "-1", True),
        ({"exclusiveMinimum": 0, "maximum": 1}, "0", False),
        ({"exclusiveMinimum": 0.5, "exclusiveMaximum": 0.75}, "0.5", False),
        ({"minimum": 0, "maximum": 0.5}, "0.6", False),
        ({"minimum": 0, "exclusiveMinimum": True}, "0", False),
    ],
)
def test_bounds_that_the_library_allows_are_refused(bounds, text, loose):
    schema = {"type": "number", **bounds}
    assert is_text(schema, text) == loose
    assert ("llguidance would allow it" in (problem_of({"items": schema}) or "")) == loose


def is_text(schema, text):
    matcher = llguidance.LLMatcher(
        llguidance.LLTokenizer("byte"),
        to_llguidance("json_schema", json.dumps(schema)),
        log_level=0,
    )
    assert not matcher.is_error()
    read = matcher.try_consume_tokens(list(text.encode()))
    return read == len(text.encode()) and matcher.is_accepting()


def test_a_key_is_written_in_one_way():
    """Else a key with an escape would hide the value of a declared one, whatever it is."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert is_text(schema, '{"a":1,"b\\n":"\\""}')
    assert not is_text(schema, '{"a":1,"\\u0061":"x"}')
    assert is_text({"const": "\x01"}, '"\\u0001"')


def test_white_space_is_forbidden_where_the_schema_says_so():
    assert is_text({"type": "array"}, "[ ]")
    assert not is_text({"type": "array", "x-guidance": {"whitespace_flexible": False}}, "[ ]")
