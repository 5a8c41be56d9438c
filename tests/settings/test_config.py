"""From flags to a cell: defaults, and what is refused before any model is touched."""

import math

import pytest

from spsbench.errors import UsageError
from spsbench.settings.cell_from_options import make_cell
from spsbench.settings.models import ModelSpec
from spsbench.spec import Spec


def test_a_bundled_target_brings_its_draft():
    cell = make_cell()
    assert (cell.models.target, cell.models.draft) == (ModelSpec("nano"), ModelSpec("nano-draft"))
    assert (cell.method.drafter, cell.method.verifier) == (Spec("model"), Spec("auto"))
    assert cell.method.schedule == Spec("constant", (("lookahead", 4),))


def test_another_target_without_a_draft_looks_up():
    cell = make_cell(target="folder")
    assert (cell.models.draft, cell.method.drafter) == (None, Spec("ngram"))


def test_a_named_drafter_leaves_the_bundled_draft_out():
    cell = make_cell(drafter="ngram:n=3")
    assert (cell.models.draft, cell.method.drafter) == (None, Spec("ngram", (("n", 3),)))
    assert make_cell(drafter="model").models.draft == ModelSpec("nano-draft")


def test_k_is_the_constant_schedule():
    assert make_cell(k=7).method.schedule == Spec("constant", (("lookahead", 7),))
    assert make_cell(schedule="other:a=1").method.schedule == Spec("other", (("a", 1),))
    with pytest.raises(UsageError, match="--k 7 with --schedule other"):
        make_cell(schedule="other", k=7)


def test_a_tree_is_as_deep_as_its_arguments_say_where_nobody_says_k():
    for drafter, k in (
        ("tree:shape=3x2x1", 3),
        ("tree:shape=5", 1),
        ("topk:depth=6", 6),
        ("topk", 4),
    ):
        cell = make_cell(drafter=drafter)
        assert cell.k == k
        assert cell.models.draft == ModelSpec("nano-draft")
        assert make_cell(drafter=drafter, k=2).k == 2
    assert make_cell(drafter="tree", schedule="constant:lookahead=7").k == 7


def test_k_zero_is_auto_regressive():
    cell = make_cell(k=0, draft="folder")
    assert (cell.models.draft, cell.method.drafter) == (None, Spec("none"))
    assert cell.method.schedule == Spec("constant", (("lookahead", 0),))


def test_revisions_go_with_their_models():
    cell = make_cell(target="a/b", revision="r", draft="c/d", draft_revision="s")
    assert (cell.models.target, cell.models.draft) == (ModelSpec("a/b", "r"), ModelSpec("c/d", "s"))


def test_nothing_is_lost_on_the_way():
    given = {
        "max_new_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "min_p": 0.25,
        "seed": 11,
        "ignore_eos": True,
        "device": "cuda:1",
        "dtype": "float16",
        "attention": "eager",
    }
    cell = make_cell(**given, stop=["a", "b"], engine="other", verifier="block")
    flat = cell.to_json()
    assert {name: flat.get(name, flat["target"].get(name)) for name in given} == given
    assert (cell.sampling.stop, cell.models.target.engine, cell.method.verifier) == (
        ("a", "b"),
        Spec("other"),
        Spec("block"),
    )
    assert make_cell(
        target="a/b", trust_remote_code=True, revision="r"
    ).models.target.trust_remote_code


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"k": -1}, "--k is -1: expected 1..64"),
        ({"k": 65}, "--k is 65"),
        ({"k": 10**9}, "--k is 1000000000"),
        ({"max_new_tokens": -1}, "--max-new-tokens is -1: expected 0 or more"),
        ({"temperature": -1.0}, "--temperature is -1.0"),
        ({"temperature": math.nan}, "--temperature is nan"),
        ({"temperature": math.inf}, "--temperature is inf"),
        ({"top_p": 0.0}, "--top-p is 0.0"),
        ({"top_p": 1.5}, "--top-p is 1.5"),
        ({"top_p": math.nan}, "--top-p is nan"),
        ({"top_k": -1}, "--top-k is -1"),
        ({"min_p": 2.0}, "--min-p is 2.0"),
        ({"seed": -1}, "--seed is -1"),
        ({"seed": 2**64}, "--seed is 18446744073709551616"),
        ({"stop": [""]}, "--stop is ''"),
        ({"stop": ["a", ""]}, "--stop is ''"),
        ({"trust_remote_code": True}, "--trust-remote-code: expected a pinned revision"),
        ({"draft_revision": "r"}, "--draft-revision without --draft"),
        ({"drafter": "ngram:"}, "--drafter 'ngram:'"),
        ({"drafter": "ngram:n"}, "--drafter 'ngram:n'"),
        ({"verifier": ":x=1"}, "--verifier ':x=1'"),
        ({"schedule": "x:a=1,a=2"}, "--schedule 'x:a=1,a=2': a is given twice"),
        ({"engine": ":"}, "--engine ':'"),
    ],
)
def test_what_cannot_be_meant_is_refused(given, said):
    with pytest.raises(UsageError) as refused:
        make_cell(**given)
    assert str(refused.value).startswith(said)


def test_the_edges_are_allowed():
    make_cell(k=1)
    make_cell(k=64, max_new_tokens=0, temperature=0.0, top_p=1.0, top_k=0, seed=2**64 - 1)
    make_cell(temperature=1e-12, top_p=1e-9, top_k=10**9)
