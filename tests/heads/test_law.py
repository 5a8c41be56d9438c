"""Losslessness with heads: the law of the shipping loop over a tiny transformer, by enumeration.

The head's law of each draft is computed anew from scratch (`stage.scratch`), so that a wrong
feature, position or row of its cache is a cell at the wrong place, which the walk finds out.
"""

from typing import Any

import pytest

from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.block import Block
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.recursive import Recursive
from spsbench.methods.verifiers.sps import Sps
from spsbench.methods.verifiers.traversal import Traversal
from tests.heads import writers
from tests.heads.stage import HeadSite, Known, proof_of
from tests.tiny_models import tiny

VOCAB = 3
SMALL = {
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
}
HEAD = {"intermediate_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1}
PROMPT = (0, 2)
HEADS = ("eagle", "eagle3", "speculators", "mtp")
RULES = (Sps(), Block(), Match())


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny("llama", vocab=VOCAB, num_hidden_layers=6, scale=2.0, **SMALL)


@pytest.fixture(scope="module")
def sites(target: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, HeadSite]:
    folder = tmp_path_factory.mktemp("heads")
    writers.DRAFT_VOCAB, before = 2, writers.DRAFT_VOCAB
    made = {
        "eagle": writers.eagle(folder / "eagle", target, **HEAD),
        "eagle3": writers.eagle3(folder / "eagle3", target, **HEAD),
        "mtp": writers.mtp(folder / "mtp", target),
        "speculators": writers.speculators(
            folder / "speculators",
            target,
            layers=2,
            inner={**HEAD, "head_dim": 4},
            norm_output=True,
        ),
    }
    writers.DRAFT_VOCAB = before
    return {name: HeadSite(path, target) for name, path in made.items()}


def exact(sites: dict[str, HeadSite], target: Any, head: str, rule: Any, **how: Any) -> None:
    site = sites[head]
    known = Known(target, site.drafter().layers)
    proof = proof_of(rule, site, known, prompt=PROMPT, schedule=Constant(2), **how)
    assert proof.exact, (proof.distance, proof.constant, proof.mass)
    assert "some" in proof.kinds or "none" in proof.kinds


def test_the_law_is_the_target_s(sites: dict[str, HeadSite], target: Any) -> None:
    """A sample: the others are marked slow."""
    exact(sites, target, "eagle3", Sps(), tokens=2)


@pytest.mark.slow
@pytest.mark.parametrize("real", [False, True], ids=["known", "real caches"])
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("warp", [{}, {"temperature": 0.7, "top_k": 2}], ids=["plain", "top-k"])
def test_every_head_with_every_rule(
    sites: dict[str, HeadSite], target: Any, head: str, rule: Any, warp: Any, real: bool
) -> None:
    exact(sites, target, head, rule, tokens=3, warp=warp, real=real)


TREES = (
    ("distinct", Recursive()),
    ("iid", Recursive()),
    ("distinct", Traversal()),
    ("iid", Traversal()),
    ("distinct", Match()),
)


@pytest.mark.slow
def test_the_law_of_a_tree_is_the_target_s(sites: dict[str, HeadSite], target: Any) -> None:
    """A sample: two children of the text, by traversal."""
    more = {"shape": "2x1", "siblings": "distinct"}
    exact(sites, target, "eagle", Traversal(), tokens=2, more=more)


def test_the_law_of_siblings_is_the_target_s(sites: dict[str, HeadSite], target: Any) -> None:
    """The same in short: one round, one depth."""
    more = {"shape": "2", "siblings": "distinct"}
    exact(sites, target, "eagle3", Traversal(), tokens=2, more=more, one_round=True)


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["2x1", "2x2"])
@pytest.mark.parametrize(("siblings", "rule"), TREES, ids=str)
@pytest.mark.parametrize("head", HEADS)
def test_every_head_on_trees(
    sites: dict[str, HeadSite], target: Any, head: str, siblings: str, rule: Any, shape: str
) -> None:
    more = {"shape": shape, "siblings": siblings}
    exact(sites, target, head, rule, tokens=3, more=more, one_round=True)


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
def test_a_tree_that_grows_best_first(sites: dict[str, HeadSite], target: Any, head: str) -> None:
    exact(sites, target, head, Match(), tokens=3, more={"width": 2, "nodes": 4})


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
def test_the_likeliest_tokens_by_match(sites: dict[str, HeadSite], target: Any, head: str) -> None:
    exact(sites, target, head, Match(), tokens=3, more={"sampled": False})
