"""Losslessness with heads: the shipping loop over a tiny transformer, by enumeration.

The head's distribution of each draft is computed from scratch (`stage.scratch`), so that a wrong
feature, position or row of its cache is a cell at the wrong place, which the walk finds out.
"""

import pytest

from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.block import Block
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.sps import Sps
from spsbench.methods.verifiers.traversal import Traversal
from spsbench.methods.verifiers.tree_rejection import Recursive
from tests.automata import FORKS
from tests.heads import writers
from tests.heads.head_faults import FAMILIES as ALL
from tests.heads.stage import HeadSite, Known, proof_of
from tests.oracles.models import tiny
from tests.variants import first

SIZES = {"intermediate_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1}
PROMPT = (0, 2, 1)
FAMILIES = ALL | {
    "eagle": lambda f, t: writers.eagle(f, t, **SIZES),
    "eagle3": lambda f, t: writers.eagle3(f, t, **SIZES),
    "3.1": lambda f, t: writers.speculators(
        f, t, layers=2, inner={**SIZES, "head_dim": 4}, norm_output=True
    ),
}
DRAWN = {"sampled": True}  # DFlash drafts by rule otherwise
CHAINS = (*((rule, DRAWN) for rule in (Sps(), Block(), Match())), (Match(), {"sampled": False}))
TREES = (
    *((rule, {"siblings": s}) for rule in (Recursive(), Traversal()) for s in ("iid", "distinct")),
    (Match(), {"siblings": "top"}),
    (Match(), {"siblings": "distinct"}),
)
CHAINS_OF_TREES = tuple((rule, DRAWN) for rule in (Traversal(), Recursive()))
SHAPED = tuple((rule, {"shape": "2x1", **more}) for rule, more in TREES)
every_head = pytest.mark.parametrize("head", FAMILIES)
slow = pytest.mark.slow


@pytest.fixture(scope="module")
def target():
    small = SIZES | {"hidden_size": 8, "intermediate_size": 12, "head_dim": 4}
    return tiny("llama", vocab=3, num_hidden_layers=6, scale=2.0, **small)


@pytest.fixture(scope="module")
def sites(target, tmp_path_factory):
    folder = tmp_path_factory.mktemp("heads")
    before, writers.DRAFT_VOCAB = writers.DRAFT_VOCAB, 2
    made = {n: HeadSite(write(folder / n, target), target) for n, write in FAMILIES.items()}
    writers.DRAFT_VOCAB = before
    return made


def exact(sites, target, head, rule, k=2, **how):
    known = Known(target, sites[head].drafter().layers)
    proof = proof_of(rule, sites[head], known, prompt=PROMPT, schedule=Constant(k), **how)
    assert proof.exact, (proof.distance, proof.constant, proof.mass)


@pytest.mark.parametrize("head", ["eagle3", "mlp", "falcon"])
def test_a_chain_of_two_tokens_has_the_distribution_of_the_target(sites, target, head):
    exact(sites, target, head, Sps(), tokens=2)


@pytest.mark.parametrize(
    ("head", "rule", "siblings"),
    [("eagle3", Traversal(), "distinct"), ("medusa", Recursive(), "iid")],
)
def test_two_siblings_have_the_distribution_of_the_target(sites, target, head, rule, siblings):
    more = {"shape": "2", "siblings": siblings}
    exact(sites, target, head, rule, tokens=2, more=more, one_round=True)


@slow
@pytest.mark.parametrize("real", [False, True], ids=["known", "real caches"])
@pytest.mark.parametrize(("rule", "more"), CHAINS, ids=str)
@every_head
def test_every_head_with_every_rule(sites, target, head, rule, more, real):
    exact(sites, target, head, rule, tokens=3, more=more, real=real)


@slow
@every_head
def test_every_head_under_a_warp(sites, target, head):
    exact(sites, target, head, Sps(), tokens=3, more=DRAWN, warp={"temperature": 0.7, "top_k": 2})


@slow
@pytest.mark.parametrize("rule", [Sps(), Block()], ids=lambda rule: type(rule).__name__)
def test_a_draft_of_two_blocks(sites, target, rule):
    exact(sites, target, "falcon", rule, 3, tokens=4, one_round=True)


@slow
@pytest.mark.parametrize(("rule", "more"), TREES, ids=str)
@every_head
def test_every_head_on_trees(sites, target, head, rule, more):
    exact(sites, target, head, rule, tokens=3, more={"shape": "2x1", **more}, one_round=True)


@slow
def test_whole_texts_of_a_tree(sites, target):
    more = {"shape": "2x1", "siblings": "distinct"}
    exact(sites, target, "eagle", Traversal(), tokens=2, more=more)


@slow
@every_head
def test_a_tree_that_grows_best_first(sites, target, head):
    exact(sites, target, head, Match(), tokens=3, more={"width": 2, "nodes": 4})


@pytest.mark.parametrize(
    ("head", "rule", "more"),
    first(2, [(head, *way) for head in FAMILIES for way in (*CHAINS, *CHAINS_OF_TREES, *SHAPED)]),
    ids=str,
)
def test_every_head_keeps_the_distribution_under_a_grammar(sites, target, head, rule, more):
    tree = "shape" in more
    fields = {"automaton": FORKS, "eos": frozenset({FORKS.eos}), "tokens": 3 if tree else 2}
    exact(sites, target, head, rule, more=more, one_round=tree, **fields)
