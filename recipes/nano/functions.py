"""Generated Python functions: a signature, a docstring with examples that hold, and a body."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from nano.stdlib import Split, split_of

# What is asked of each item: words for the docstring, expression of `x`, a name for the function.
NUMBER_FILTERS = (
    ("all numbers", "", "all"),
    ("the even numbers", "x % 2 == 0", "even"),
    ("the odd numbers", "x % 2 == 1", "odd"),
    ("the positive numbers", "x > 0", "positive"),
    ("the negative numbers", "x < 0", "negative"),
    ("the numbers greater than {k}", "x > {k}", "above"),
    ("the numbers less than {k}", "x < {k}", "below"),
    ("the numbers divisible by {k}", "x % {k} == 0", "multiples"),
    ("the numbers not divisible by {k}", "x % {k} != 0", "others"),
)
NUMBER_MAPS = (
    ("", "x", ""),
    ("the squares of ", "x * x", "squared"),
    ("the cubes of ", "x ** 3", "cubed"),
    ("the absolute values of ", "abs(x)", "absolute"),
    ("{m} times ", "{m} * x", "scaled"),
    ("the last digits of ", "abs(x) % 10", "digits"),
)
NUMBER_FOLDS = (
    ("the sum of ", "sum", "total"),
    ("the list of ", "list", "list"),
    ("the sorted list of ", "sorted", "sorted"),
    ("the set of ", "set", "distinct"),
    ("the number of ", "count", "count"),
    ("the largest of ", "max", "largest"),
    ("the smallest of ", "min", "smallest"),
)
WORD_FILTERS = (
    ("all words", "", "all"),
    ("the words longer than {k} letters", "len(x) > {k}", "long"),
    ("the words shorter than {k} letters", "len(x) < {k}", "short"),
    ("the words that start with {c!r}", "x.startswith({c!r})", "starting"),
    ("the words that end with {c!r}", "x.endswith({c!r})", "ending"),
    ("the words that contain {c!r}", "{c!r} in x", "containing"),
)
WORD_MAPS = (
    ("", "x", ""),
    ("the lengths of ", "len(x)", "lengths"),
    ("the first letters of ", "x[0]", "initials"),
    ("the reversals of ", "x[::-1]", "reversed"),
    ("the upper-case forms of ", "x.upper()", "upper"),
)
WORD_FOLDS = (
    ("the list of ", "list", "list"),
    ("the sorted list of ", "sorted", "sorted"),
    ("the number of ", "count", "count"),
    ("the set of ", "set", "distinct"),
)
NUMBER_NAMES = ("numbers", "values", "items", "data", "nums", "xs")
WORD_NAMES = ("words", "names", "strings", "tokens")
WORDS = (
    *("apple", "bread", "cloud", "dream", "eagle", "flame", "grape", "house", "island", "jungle"),
    *("kite", "lemon", "moon", "night", "ocean", "pearl", "queen", "river", "stone", "tree"),
    *("umbrella", "violin", "water", "yellow", "zebra", "cat", "dog", "sun", "sky", "ant"),
)
OPENINGS = ("Return {what}.", "Compute and return {what}.", "Give back {what}.")


@dataclass(frozen=True, slots=True)
class Function:
    """`prompt + body` is a whole function; `id` is a hash of its specification."""

    id: str
    name: str
    prompt: str
    body: str


def items(seed: int, split: Split) -> Iterator[Function]:
    """Yield functions of one split without end, the same for the same seed.

    The specification (filter, map and fold, with its constants) decides the split,
    whatever the names and the wording, so a held-out task was never trained on.
    """
    rng = random.Random(f"functions/{seed}/{split}")
    while True:
        function, key = _compose(rng)
        if split_of(key) == split:
            yield function


def _compose(rng: random.Random) -> tuple[Function, str]:
    """Return a function and its specification."""
    numeric = rng.random() < 0.6
    filters, maps, folds, names = (
        (NUMBER_FILTERS, NUMBER_MAPS, NUMBER_FOLDS, NUMBER_NAMES)
        if numeric
        else (WORD_FILTERS, WORD_MAPS, WORD_FOLDS, WORD_NAMES)
    )
    chosen_filter, chosen_map, chosen_fold = map(rng.choice, (filters, maps, folds))
    constants: dict[str, Any] = {
        "k": rng.randint(2, 9),
        "m": rng.randint(2, 12),
        "c": rng.choice("abcdeghlmnorstuwy"),
    }
    of, condition, kind = (text.format_map(constants) for text in chosen_filter)
    mapped, expression, adjective = (text.format_map(constants) for text in chosen_map)
    gathered, fold, noun = chosen_fold
    argument = rng.choice(names)
    name = "_".join(part for part in (kind, adjective, noun) if part)
    x = rng.choice(("x", "n", "item", "value") if numeric else ("w", "word", "s", "item"))
    spec = "|".join((condition, expression, fold))
    condition, expression = _rename(condition, x), _rename(expression, x)
    body = _body(rng, fold, expression, condition, x, argument)
    what = f"{gathered}{mapped}{of} in {argument}"
    lines = [f"def {name}({argument}):", '    """' + rng.choice(OPENINGS).format(what=what)]
    call = _compile(lines[0] + '\n    """."""\n' + body, name)
    for _ in range(rng.randint(1, 2)):
        values = _numbers(rng) if numeric else rng.sample(WORDS, rng.randint(3, 5))
        result = call(values)
        text = "{" + ", ".join(map(repr, sorted(result))) + "}" if fold == "set" else repr(result)
        text = "set()" if text == "{}" else text
        lines += ["", f"    >>> {name}({values!r})", f"    {text}"]
    prompt = "\n".join([*lines, '    """']) + "\n"
    return Function(hashlib.sha256(spec.encode()).hexdigest()[:16], name, prompt, body), spec


def _numbers(rng: random.Random) -> list[int]:
    """Return a few small integers of both signs."""
    return [rng.randint(-9, 30) for _ in range(rng.randint(3, 7))]


def _rename(text: str, x: str) -> str:
    """Return `text` with its variable x renamed."""
    words = ("x", "(x", "x)", "len(x)", "abs(x)")
    return " ".join(
        part.replace("x", x) if part in words or part.startswith(("x.", "x[")) else part
        for part in text.split(" ")
    )


def _body(
    rng: random.Random, fold: str, expression: str, condition: str, x: str, argument: str
) -> str:
    """Return one of three ways to write the same loop."""
    where = f" if {condition}" if condition else ""
    terms = f"{expression} for {x} in {argument}{where}"
    plain = {
        "list": f"[{terms}]",
        "set": "{" + terms + "}",
        "sorted": f"sorted({terms})",
        "sum": f"sum({terms})",
        "count": f"len([{terms}])",
        "max": f"max(({terms}), default=None)",
        "min": f"min(({terms}), default=None)",
    }[fold]
    style = rng.randrange(3)
    if style == 0:
        return f"    return {plain}\n"
    if style == 1:
        return f"    result = {plain}\n    return result\n"
    pad = "        " + ("    " if condition else "")
    test = f"        if {condition}:\n" if condition else ""
    start, step, end = {
        "list": ("[]", f"result.append({expression})", "result"),
        "set": ("set()", f"result.add({expression})", "result"),
        "sorted": ("[]", f"result.append({expression})", "sorted(result)"),
        "sum": ("0", f"result += {expression}", "result"),
        "count": ("0", "result += 1", "result"),
        "max": ("[]", f"result.append({expression})", "max(result, default=None)"),
        "min": ("[]", f"result.append({expression})", "min(result, default=None)"),
    }[fold]
    loop = f"    for {x} in {argument}:\n{test}{pad}{step}\n"
    return f"    result = {start}\n{loop}    return {end}\n"


def _compile(source: str, name: str) -> Callable[[Any], Any]:
    """Return the function that `source` defines, which is of the fixed parts above."""
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    function: Callable[[Any], Any] = namespace[name]
    return function
