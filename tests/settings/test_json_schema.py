"""Schemas whose texts would not end, or not follow them although each token is allowed."""

import json

import pytest

from spsbench.errors import DataError
from spsbench.settings.constraint import check_grammar, compiled
from spsbench.settings.json_schema import problem_of

llguidance = pytest.importorskip("llguidance")

OBJECT = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
LIST = {"type": "array", "items": {"$ref": "#"}}
CELL = {"type": "object", "properties": {"next": {"$ref": "#/$defs/a~1b"}}, "required": ["next"]}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        OBJECT,
        LIST | {"minItems": 1},
        {"prefixItems": [{"$ref": "#"}], "minItems": 1, "type": "array"},
        {"$defs": {"a/b": CELL}, "$ref": "#/$defs/a~1b"},
        {"$defs": {"x": {"$ref": "#/$defs/y"}, "y": {"$ref": "#/$defs/x"}}, "$ref": "#/$defs/x"},
        {"anyOf": [OBJECT, {"$ref": "#/anyOf/0"}], "type": "object"},
        {"allOf": [{"type": "object"}, {"$ref": "#"}]},
        {"type": "object", "required": ["b1"], "patternProperties": {"^b": {"$ref": "#"}}},
        {"type": "object", "required": ["k"], "additionalProperties": {"$ref": "#"}},
    ],
    ids=str,
)
def test_schemas_that_require_themselves_are_refused(schema):
    assert "requires itself again" in (problem_of(schema) or "")


@pytest.mark.parametrize(
    "schema",
    [
        {},
        OBJECT | {"required": []},
        OBJECT | {"type": ["object", "null"]},
        LIST,
        {"$defs": {"a/b": {"anyOf": [CELL, {"type": "null"}]}}, "$ref": "#/$defs/a~1b"},
        {
            "$defs": {
                "x": {"type": "object", "properties": {"y": {"$ref": "#/$defs/y"}}},
                "y": {"anyOf": [{"$ref": "#/$defs/x"}, {"type": "integer"}]},
            },
            "$ref": "#/$defs/y",
        },
        {"$ref": "other.json#/a"},
        {"$ref": "#name", "$defs": {"b": {"$anchor": "name"}}},
        {"$ref": "#/items/9", "items": []},
        {"const": {"$ref": "#"}},
        {"type": "object", "required": ["b"], "patternProperties": {"[": {"$ref": "#"}}},
        {"properties": [], "required": "a", "type": 3, "allOf": 1},
    ],
    ids=str,
)
def test_other_schemas_are_left_to_the_library(schema):
    assert problem_of(schema) is None


def test_a_schema_of_many_references_is_read_once_for_each():
    names = [str(n) for n in range(300)]
    chain = {
        name: {"type": "object", "properties": {"n": {"$ref": f"#/$defs/{then}"}}, "required": "n"}
        for name, then in zip(names, [*names[1:], "end"], strict=True)
    }
    schema = {"$ref": "#/$defs/0", "$defs": chain | {"end": {"type": "null"}}}
    assert problem_of(schema) is None


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


def test_messages_name_the_place_and_the_remedy():
    with pytest.raises(DataError, match=r"FILE: minProperties 2: expected .* Require them by name"):
        check_grammar("json_schema", '{"minProperties": 2}', "FILE")
    with pytest.raises(DataError, match="x-guidance: expected an object"):
        check_grammar("json_schema", '{"x-guidance": 5}', "FILE")


def is_text(schema, text):
    matcher = llguidance.LLMatcher(
        llguidance.LLTokenizer("byte"), compiled("json_schema", json.dumps(schema)), log_level=0
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
