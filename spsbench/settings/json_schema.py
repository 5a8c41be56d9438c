"""Faults of JSON schemas that llguidance neither bounds nor refuses.

Its compiler calls itself along nested schemas and references until the stack ends, and compares
the keys and patterns of an object pair by pair: both are bounded here, before it is called. A
grammar writes keys one by one, so it never knows that a key comes twice; and a schema that requires
itself again has a grammar, but no text that ends. Nothing here is matched against a pattern.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

MAX_DEPTH = 500  # schemas inside each other and behind references; a stack of 8 MiB takes 1,300
MAX_SCHEMAS = 100_000  # each counted once for each reference to it or to one around it
MAX_KEYS = 2_000  # of one object
MAX_PATTERNS = 50  # in the `patternProperties` of one object
MAX_PASSES = 100  # over the references of a schema, of which each pass resolves one or more
SCALARS = ("string", "number", "integer", "boolean", "null")
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
NAMED = ("properties", "patternProperties")  # schemas by name
NO_SCHEMAS = ("const", "enum", "default", "examples", "$defs", "definitions")


def problem_of(schema: Mapping[str, Any]) -> str | None:
    """Return why a schema is too large, or texts under it would not end or not follow it.

    The message ends with the remedy. None: no such fault.
    """
    if not isinstance(schema.get("x-guidance", {}), Mapping):
        return "x-guidance: expected an object with options of llguidance. Correct it"
    try:
        places = read_places(schema)
    except OverflowError as error:
        return f"{error}. Make it simpler"
    for part in (part for place in places.values() for part in place.parts):
        if (problem := _problem_of_part(part)) is not None:
            return problem
    if not has_finite_text(places):
        return (
            "what it requires requires itself again: expected a schema that some text that ends "
            "satisfies. Give an alternative, or require less"
        )
    return None


class Place(NamedTuple):
    """The root of a schema, or what a reference of it points to.

    Attributes:
        parts: the schemas inside of it, itself the first; definitions are places of their own.
        height: the most schemas inside each other.
    """

    parts: list[Mapping[str, Any]]
    height: int
    schema: Any

    @property
    def references(self) -> set[str]:
        """Return the references of its parts."""
        names = (part.get("$ref") for part in self.parts)
        return {name for name in names if isinstance(name, str)}


def read_places(root: Mapping[str, Any]) -> dict[str, Place]:
    """Return the places of a schema by reference, "" for its root; each after those it refers to.

    Places in a cycle, and those that refer to one, come last. References that point to no part of
    the schema have no place.

    Raises:
        OverflowError: it is too deep or too large for llguidance.
    """
    places: dict[str, Place] = {}
    names, size = [""], 0
    while names:
        name = names.pop()
        schema = root if name == "" else pointed(root, name)
        if name in places or schema is None:
            continue
        places[name] = _read_place(schema)
        size += len(places[name].parts)
        if size > MAX_SCHEMAS:
            raise OverflowError(f"expected at most {MAX_SCHEMAS:,} schemas, references resolved")
        names += places[name].references
    references = {name: place.references & places.keys() for name, place in places.items()}
    sorter = TopologicalSorter(references)
    with suppress(CycleError):  # what no cycle is behind is sorted all the same
        sorter.prepare()
    depths: dict[str, int] = {}
    while ready := sorter.get_ready():
        for name in ready:
            below = (depths[other] for other in references[name])
            depths[name] = places[name].height + max(below, default=0)
        sorter.done(*ready)
    cyclic = [name for name in places if name not in depths]
    # no way through a cycle enters a place twice
    depth = max(depths.values(), default=0) + sum(places[name].height for name in cyclic)
    if depth > MAX_DEPTH:
        raise OverflowError(
            f"expected at most {MAX_DEPTH} schemas inside each other and behind `$ref`"
        )
    return {name: places[name] for name in [*depths, *cyclic]}


def _read_place(schema: Any) -> Place:
    parts, height, stack = [], 0, [(schema, 1)]
    while stack:
        part, level = stack.pop()
        inner: Collection[Any] = ()
        if isinstance(part, list):
            inner = part
        elif isinstance(part, Mapping):
            parts.append(part)
            height = max(height, level)
            inner = list(_inner(part))
        stack += [(value, level + 1) for value in inner if isinstance(value, list | Mapping)]
    return Place(parts, height, schema)


def _inner(schema: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the values in a schema that may be schemas, or lists of them."""
    for name, value in schema.items():
        if name in NAMED and isinstance(value, Mapping):
            yield from value.values()
        elif name not in NO_SCHEMAS:
            yield value


def _problem_of_part(schema: Mapping[str, Any]) -> str | None:
    required = {str(key) for key in listed(schema.get("required"))}
    patterns = named(schema, "patternProperties")
    for name, count, limit in (
        ("properties", len(named(schema, "properties")), MAX_KEYS),
        ("required", len(required), MAX_KEYS),
        ("patternProperties", len(patterns), MAX_PATTERNS),
    ):
        if count > limit:
            return f"`{name}` has {count:,} keys: expected at most {limit:,}. Make it simpler"
    least = schema.get("minProperties")
    is_open = schema.get("additionalProperties", True) is not False or bool(patterns)
    # of the keys that are not declared one at least is a new one
    if isinstance(least, int) and is_open and least > len(required) + 1:
        return (
            f"minProperties {least}: expected at most one more than the keys that are required, "
            "since a key may come twice in a text, and counts once. Require them by name"
        )
    if (bound := loose_bound(schema)) is not None:
        return (
            f"{bound}, less than 1 away from the other bound: expected no whole number, since "
            "llguidance would allow it. Name the next number that is allowed, as `minimum` or "
            "`maximum`"
        )
    return None


def loose_bound(schema: Mapping[str, Any]) -> str | None:
    """Return a bound that a number may not have, and that llguidance 1.9 allows; None: none."""
    numbers: dict[str, float] = {
        name: schema[name] for name in BOUNDS if is_number(schema.get(name))
    }
    low = [x for name, x in numbers.items() if name.endswith("inimum")]
    high = [x for name, x in numbers.items() if name.endswith("aximum")]
    if not low or not high or min(high) - max(low) >= 1:
        return None
    whole = (name for name in BOUNDS[2:] if name in numbers and numbers[name] % 1 == 0)
    return next((f"{name} {numbers[name]}" for name in whole), None)


def has_finite_text(places: Mapping[str, Place]) -> bool:
    """Return whether a text that ends satisfies a schema, as far as its references say.

    Keywords and references that are not known have such a text, and keys by a pattern as well.
    """
    endless = set(places)  # places not known to have one
    for _ in range(MAX_PASSES):
        before = len(endless)
        for name, place in places.items():
            if name in endless and _ends(place.schema, endless):
                endless.remove(name)
        if "" not in endless or len(endless) == before:
            return "" not in endless
    return True


def _ends(schema: Any, endless: Collection[str]) -> bool:
    """Return whether a schema has a text that ends, if the references `endless` have none."""
    if not isinstance(schema, Mapping):
        return schema is not False
    if isinstance(schema.get("$ref"), str) and schema["$ref"] in endless:
        return False
    if "const" in schema or "enum" in schema:
        return True
    if not all(_ends(part, endless) for part in listed(schema.get("allOf"))):
        return False
    for name in ("anyOf", "oneOf"):
        branches = listed(schema.get(name))
        if branches and not any(_ends(branch, endless) for branch in branches):
            return False
    types = schema.get("type", [*SCALARS, "object", "array"])
    return any(
        all(_ends(part, endless) for part in _required_parts(schema, kind))
        for kind in listed(types) or [types]
    )


def _required_parts(schema: Mapping[str, Any], kind: Any) -> list[Any]:
    """Return the schemas of the values that each object, or each list, of a schema has."""
    if kind == "object":
        properties = named(schema, "properties")
        others = not named(schema, "patternProperties") and schema.get("additionalProperties")
        return [properties.get(str(key), others or True) for key in listed(schema.get("required"))]
    if kind == "array":
        least, first = schema.get("minItems", 0), listed(schema.get("prefixItems"))
        least = least if isinstance(least, int) else 0
        return [*first[:least], *([schema.get("items", True)] if least > len(first) else [])]
    return []


def without_equal_enums(schema: Mapping[str, Any]) -> None:
    """Drop each `enum` that only repeats the `const` beside it, in place.

    With both llguidance does not see that the branches of a `oneOf` exclude each other.
    """
    for place in read_places(schema).values():
        for part in place.parts:
            if "const" in part and part.get("enum") == [part["const"]] and isinstance(part, dict):
                del part["enum"]


def optional_tag(schema: Mapping[str, Any]) -> str | None:
    """Return a key that tells the branches of a `oneOf` apart and that one of them lets out."""
    for part in (part for place in read_places(schema).values() for part in place.parts):
        branches = [
            pointed(schema, branch["$ref"]) if "$ref" in branch else branch
            for branch in listed(part.get("oneOf"))
            if isinstance(branch, Mapping)
        ]
        branches = [branch for branch in branches if isinstance(branch, Mapping)]
        for key in {key for branch in branches for key in named(branch, "properties")}:
            tags = [named(named(branch, "properties"), key).get("const") for branch in branches]
            is_optional = any(key not in listed(branch.get("required")) for branch in branches)
            if is_optional and None not in tags and len(set(map(repr, tags))) == len(tags):
                return str(key)
    return None


def is_number(value: Any) -> bool:
    """Return whether a JSON value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def pointed(root: Any, reference: Any) -> Any:
    """Return what a reference within the schema points to; None: another one, or nothing."""
    if not isinstance(reference, str) or not reference.startswith("#"):
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


def named(schema: Mapping[str, Any], keyword: str) -> Mapping[str, Any]:
    """Return the mapping under a keyword; an empty one where there is none."""
    value = schema.get(keyword)
    return value if isinstance(value, Mapping) else {}


def listed(value: Any) -> list[Any]:
    """Return a list as it is; else an empty one."""
    return value if isinstance(value, list) else []
