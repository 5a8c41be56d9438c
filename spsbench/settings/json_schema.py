"""Faults of JSON schemas that a grammar of their texts cannot show.

A grammar writes keys one by one, so it never knows that a key comes twice; and a schema that
requires itself again has a grammar, but no text that ends.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

COMBINED = ("anyOf", "oneOf")
MAX_PASSES = 100  # over the references of a schema, of which each pass resolves one or more
SCALARS = ("string", "number", "integer", "boolean", "null")
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
NESTED = ("properties", "patternProperties", "$defs", "definitions")


def problem_of(schema: Mapping[str, Any]) -> str | None:
    """Return why texts under a schema would not end, or not follow it, with the remedy.

    None: nothing is found.
    """
    if not isinstance(schema.get("x-guidance", {}), Mapping):
        return "x-guidance: expected an object with options of llguidance. Correct it"
    try:
        if (bound := next(loose_bounds(schema), None)) is not None:
            return (
                f"{bound}, less than 1 away from the other bound: expected no whole number, since "
                "llguidance would allow it. Name the next number that is allowed, as `minimum` or "
                "`maximum`"
            )
        if not Ends(schema).all_of_it():
            return (
                "what it requires requires itself again: expected a schema that some text that "
                "ends satisfies. Give an alternative, or require less"
            )
        if (few := next(repeatable(schema), None)) is not None:
            return (
                f"minProperties {few}: expected at most one more than the keys that are required, "
                "since a key may come twice in a text, and counts once. Require them by name"
            )
    except RecursionError:
        return None  # llguidance has its own limit
    return None


class Ends:
    """Decides whether a finite text satisfies a schema, as far as its references say.

    Unknown keywords and foreign references never refuse anything.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._ending: set[str] = set()  # references known to have a text
        self._visited: set[str] = set()  # references of this pass

    def all_of_it(self) -> bool:
        """Return whether the schema has a text that ends."""
        for _ in range(MAX_PASSES):
            before = len(self._ending)
            self._visited = set()
            if self._ends(self._root):
                return True
            if len(self._ending) == before:
                return False
        return True

    def _ends(self, schema: Any) -> bool:
        if not isinstance(schema, Mapping):
            return schema is not False
        if not self._reference_ends(schema.get("$ref")):
            return False
        if "const" in schema or "enum" in schema:
            return True
        if not all(map(self._ends, listed(schema.get("allOf")))):
            return False
        for name in COMBINED:
            branches = listed(schema.get(name))
            if branches and not any(map(self._ends, branches)):
                return False
        types = schema.get("type", [*SCALARS, "object", "array"])
        return any(self._type_ends(schema, name) for name in listed(types) or [types])

    def _reference_ends(self, reference: Any) -> bool:
        if not isinstance(reference, str) or reference in self._ending:
            return True
        if reference in self._visited:
            return False
        self._visited.add(reference)
        place = pointed(self._root, reference)
        ending = place is None or self._ends(place)
        if ending:
            self._ending.add(reference)
        return ending

    def _type_ends(self, schema: Mapping[str, Any], name: Any) -> bool:
        if name == "object":
            return all(
                self._ends(value)
                for key in listed(schema.get("required"))
                for value in values_of(schema, key)
            )
        if name == "array":
            least, before = schema.get("minItems", 0), listed(schema.get("prefixItems"))
            least = least if isinstance(least, int) else 0
            behind = [schema.get("items", True)] if least > len(before) else []
            return all(map(self._ends, [*before[:least], *behind]))
        return True


def schemas_in(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield a schema and all that are written inside of it."""
    if isinstance(schema, list):
        for part in schema:
            yield from schemas_in(part)
    if not isinstance(schema, Mapping):
        return
    yield schema
    for name, part in schema.items():
        if name in NESTED and isinstance(part, Mapping):
            yield from schemas_in(list(part.values()))
        elif name not in ("const", "enum", "default", "examples", *NESTED):
            yield from schemas_in(part)


def repeatable(root: Any) -> Iterator[int]:
    """Yield each `minProperties` that a key that comes twice could fill."""
    for schema in schemas_in(root):
        least, others = schema.get("minProperties"), schema.get("additionalProperties", True)
        is_open = others is not False or bool(schema.get("patternProperties"))
        # of the keys that are not declared one at least is a new one
        sure = len(set(map(str, listed(schema.get("required"))))) + 1
        if isinstance(least, int) and is_open and least > sure:
            yield least


def loose_bounds(root: Any) -> Iterator[str]:
    """Yield bounds that a number may not have, and that llguidance 1.9 allows."""
    for schema in schemas_in(root):
        numbers: dict[str, float] = {
            name: schema[name] for name in BOUNDS if is_number(schema.get(name))
        }
        low = [x for name, x in numbers.items() if name.endswith("inimum")]
        high = [x for name, x in numbers.items() if name.endswith("aximum")]
        if not low or not high or min(high) - max(low) >= 1:
            continue
        for name in BOUNDS[2:]:
            if name in numbers and numbers[name] == int(numbers[name]):
                yield f"{name} {numbers[name]}"


def is_number(value: Any) -> bool:
    """Return whether a JSON value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def values_of(schema: Mapping[str, Any], key: Any) -> list[Any]:
    """Return the schemas of the value under a key of an object."""
    properties = schema.get("properties")
    found = [properties[key]] if isinstance(properties, Mapping) and key in properties else []
    patterns = schema.get("patternProperties")
    for pattern, value in patterns.items() if isinstance(patterns, Mapping) else ():
        try:
            found += [value] if re.search(pattern, str(key)) else []
        except re.error:  # of another dialect
            continue
    return found or [schema.get("additionalProperties", True)]


def pointed(root: Any, reference: str) -> Any:
    """Return what a reference within the schema points to; None: another one, or nothing."""
    if not reference.startswith("#"):
        return None
    place = root
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(place, Mapping) and name in place:
            place = place[name]
        elif isinstance(place, list) and name.isdecimal() and int(name) < len(place):
            place = place[int(name)]
        else:
            return None
    return place if reference == "#" or reference.startswith("#/") else None


def listed(value: Any) -> list[Any]:
    """Return a list as it is; else an empty one."""
    return value if isinstance(value, list) else []
