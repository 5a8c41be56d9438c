"""Every pair of choices is tried together: a text is generated, or one line says why not.

Pairs of values that are refused by themselves are tried alone, so that they hide no other. A
covering array of all other pairs is found greedily. A combination that generates gives, at
temperature 0, the text of plain sampling with the same target, unless its verifier is lossy.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, count

import pytest

import spsbench
from spsbench.errors import PlugInError, SpsError
from spsbench.loop.types import Guarantee
from spsbench.messages import ignore
from spsbench.methods.resolve import resolve
from spsbench.models.prepare import facts_of, prepare_access
from spsbench.plugins import plug_in
from spsbench.registry import entries
from spsbench.settings.execution import Access
from spsbench.settings.grid import Grid
from spsbench.settings.options import parse
from spsbench.spec import Spec
from tests.folders import random_model, save
from tests.variants import first

PROMPTS = ["def fibonacci(n):\n", "the cat sat on the mat, the cat sat"]
DRAFTING = {  # drafter -> draft; None: nothing is named
    "the default": (None, None),
    "a draft model": (None, "nano-draft"),
    "its own int4": ("self:int4", None),
    "eagle3": (None, "nano-eagle3"),
    "medusa": (None, "nano-medusa"),
    "mlp": (None, "nano-mlp"),
    "medusa by rule": ("medusa:sampled=false", None),
    "eagle3, best first": ("eagle3:width=3,nodes=8", None),
    "eagle3, a shape": ("eagle3:shape=2x1", None),
    "medusa, a shape by rule": ("medusa:shape=2x1,siblings=top", None),
    "a tree": ("tree:shape=2x1", "nano-draft"),
    "a drawn tree": ("tree:shape=2x1,siblings=distinct", "nano-draft"),
    "best first": ("topk:width=2,nodes=6", "nano-draft"),
    "sequoia": ("sequoia:nodes=6", "nano-draft"),
    "chains": ("chains:n=4", "nano-draft"),
    "tokens in common": ("tli", "nano-draft"),
    "strings": ("slem", "nano-draft"),
    "fewer layers": ("self:skip=1", None),
    "a window": ("self:window=6", None),
    "a window, guessed": ("self:window=6,first=suffix", None),
    "two drafters": ("hybrid:first=suffix,then=eagle3", None),
    "two by rule": ("hybrid:first=copy,then=ngram", None),
    **{name: (name, None) for name in ("ngram", "suffix", "copy", "recycling", "lookahead")},
    "a head of another kind": ("eagle3", "nano-medusa"),
    "no drafter": ("none", None),
}
FACTORS: Mapping[str, Sequence[object]] = {
    "drafting": tuple(DRAFTING),
    "verifier": (None, *(entry.name for entry in entries("verifiers"))),
    "by": (None, "k 1", "k 5", *(entry.name for entry in entries("schedules"))),
    "target": ("nano", "another"),
    "weights": (None, "int8", "int4"),
    "draft_weights": (None, "int8", "checkpoint"),
    "engine": ("fast", "eager"),
    "temperature": (0.0, 1.0),
    "batch": (0, 2),
}
Row = dict[str, object]
Side = tuple[str, object]


def pairs_of(factors: Mapping[str, Sequence[object]]) -> list[tuple[Side, Side]]:
    """Pairs of values of two factors, in the factors' order."""
    both = combinations(factors, 2)
    return [((a, x), (b, y)) for a, b in both for x in factors[a] for y in factors[b]]


def rows_of_all_pairs(
    factors: Mapping[str, Sequence[object]],
    allowed: Callable[[Side, Side], bool] = lambda one, other: True,
    seed: int = 0,
) -> list[Row]:
    """Rows of which each allowed pair of values is in one, found greedily; none has another."""
    draw, order = random.Random(seed), list(factors)
    untried = {pair for pair in pairs_of(factors) if allowed(*pair)}

    def sorted_pairs(side: Side, row: Row) -> list[tuple[Side, Side]]:
        sides = [sorted([side, other], key=lambda s: order.index(s[0])) for other in row.items()]
        return [(one, other) for one, other in sides]

    def new_pairs(side: Side, row: Row) -> int:
        pairs = sorted_pairs(side, row)
        return sum(p in untried for p in pairs) if all(allowed(*p) for p in pairs) else -1

    rows = []
    while untried:
        row: Row = dict(draw.choice(sorted(untried, key=str)))
        for name in draw.sample(order, len(order)):
            if name not in row:
                values = draw.sample(list(factors[name]), len(factors[name]))
                row[name] = max(values, key=lambda value: new_pairs((name, value), row))
        rows.append({name: row[name] for name in order})
        untried -= set(combinations(rows[-1].items(), 2))
    return rows


def label(row: Row) -> str:
    return ", ".join(f"{name} {value}" for name, value in row.items() if value is not None)


@pytest.fixture(scope="module")
def another(tmp_path_factory) -> str:
    """A target with another vocabulary than the bundled drafts have."""
    model = random_model(scale=0.5, num_hidden_layers=4)
    return str(save(tmp_path_factory.mktemp("another"), model))


def options_of(row: Row, another: str) -> dict[str, object]:
    """Options of `load` for a row, or for some of its values."""
    drafter, draft = DRAFTING[str(row.get("drafting", "the default"))]
    options = {name: row[name] for name in row if name not in ("drafting", "batch", "target", "by")}
    options |= {"drafter": drafter, "draft": draft, "offline": True}
    options["target"] = another if row.get("target") == "another" else "nano"
    by = str(row.get("by"))
    options |= {"k": int(by[2:])} if by.startswith("k ") else {"schedule": row.get("by")}
    return {name: value for name, value in options.items() if value is not None}


def refusal(row: Row, another: str) -> str | None:
    """The line by which a row is refused before anything is loaded."""
    grid, access = parse(options_of(row, another), Grid, Access)
    try:
        request = grid.one(facts_of(access))
        prepare_access([request], access)
        resolve(request)
    except SpsError as error:
        return checked(error)
    return None


def checked(error: SpsError) -> str:
    """The line of a refusal, which must be one, and the fault of the options."""
    line = str(error)
    fine = line and "\n" not in line and not isinstance(error, PlugInError) and error.code != 70
    assert fine, repr(error)
    return line


def tried(row: Row, another: str) -> str:
    """Generate by a row; return what came of it: "the same", "generated", or the refusal."""
    try:
        pair = spsbench.load(**options_of(row, another), max_new_tokens=10, seed=1, say=ignore)
        batch = {"batch": row["batch"]} if row["batch"] else {}
        texts = pair.generate(PROMPTS, **batch) if batch else [pair.generate(p) for p in PROMPTS]
        plain = [pair.generate(p, k=0) for p in PROMPTS]
    except SpsError as error:
        return checked(error)
    assert all(0 < len(text.tokens) <= 10 for text in texts)
    guarantee = plug_in("verifiers", Spec.parse(str(pair.cell.verifier))).guarantee
    if row["temperature"] or guarantee is Guarantee.LOSSY:
        return "generated"
    assert [text.tokens for text in texts] == [text.tokens for text in plain]
    return "the same"


@pytest.mark.parametrize("seed", first(1, range(10)))
def test_a_combination_drawn_at_random_generates(seed, another):
    """The first of a stream of random rows that is not refused beforehand."""
    draw = random.Random(seed)
    rows = ({name: draw.choice(values) for name, values in FACTORS.items()} for _ in count())
    row = next(row for row in rows if refusal(row, another) is None)
    tried(row, another)


@pytest.mark.slow
def test_every_pair_of_choices_generates_or_is_refused(another):
    """All rows in one test, with what failed of them together."""
    refused = {pair for pair in pairs_of(FACTORS) if refusal(dict(pair), another) is not None}
    rows = rows_of_all_pairs(FACTORS, lambda one, other: (one, other) not in refused)
    failed, results = {}, []
    for row in rows:
        try:
            results.append(tried(row, another))
        except Exception as error:
            failed[label(row)] = f"{type(error).__name__}: {error}"
    assert not failed, "\n".join(f"{row}: {error}" for row, error in failed.items())
    generated = [result for result in results if result in ("the same", "generated")]
    assert len(generated) > len(rows) / 2, "\n".join(sorted(set(results)))
