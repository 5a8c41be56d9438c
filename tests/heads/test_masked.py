"""Heads under a constraint: laws over the allowed tokens, and texts with the target's law.

The laws of texts that are expected are written by hand (`tests/constrained.py`).
"""

import copy

import pytest
import torch

from spsbench.engines.eager import EagerLM
from spsbench.loop.constraint import MaskedLM
from spsbench.loop.sampling import Warp
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.block import Block
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.recursive import Recursive
from spsbench.methods.verifiers.sps import Sps
from spsbench.methods.verifiers.traversal import Traversal
from tests.automata import FORKS, StateTable
from tests.decoding import rounds_of
from tests.heads import writers
from tests.heads.head_faults import Compared
from tests.heads.stage import HeadSite, Known, proof_of, scratch
from tests.heads.test_law import FAMILIES, SMALL
from tests.oracles.models import tiny
from tests.variants import first

VOCAB, EOS = 12, 11
PROMPT = [1, 5, 3, 7]
WARP = Warp(1.0)
STEPS = StateTable(
    VOCAB,
    (
        dict.fromkeys(range(8), 1),
        dict.fromkeys(range(3, 11), 2),
        {4: 0, 9: 0, **dict.fromkeys(range(5, 8), 1)},
    ),
    frozenset(),
    EOS,
)


def over_allowed(laws):
    """The same laws over the tokens that may follow; as they are where none has a chance."""

    def law(text, drafted):
        state, plain = STEPS.state((*text[len(PROMPT) :], *drafted)), laws(text, drafted)
        mask = torch.zeros(VOCAB, dtype=torch.bool)
        if state is not None:
            mask[list(STEPS.follows(state))] = True
        known = (plain > 0) & mask
        return plain.where(known, 0.0) / plain[known].sum() if bool(known.any()) else plain

    return law


@pytest.mark.parametrize(
    ("head", "shape", "rule"),
    [
        ("eagle", {}, Sps()),
        ("eagle3", {}, Sps()),
        ("eagle3", {"shape": "3x2", "siblings": "distinct"}, Recursive()),
        ("eagle3", {"width": 3, "depth": 2, "nodes": 5}, Match()),
    ],
    ids=["chain", "own vocabulary", "tree", "best first"],
)
def test_every_law_is_masked(target, tmp_path, head, shape, rule):
    site = HeadSite(getattr(writers, head)(tmp_path / "head", target), target)
    plain = site.drafter()
    laws = scratch(plain, Known(target, plain.layers), WARP)
    masked = copy.copy(site)
    masked.constraint = STEPS.constraint(len(PROMPT))
    drafter = masked.drafter(**shape)
    assert drafter._frontier._constraint is not None
    watched = Compared(drafter, over_allowed(laws))
    lm = MaskedLM(EagerLM(target, layers=watched.layers), masked.constraint, target=True)
    rounds = rounds_of(lm, watched, 14, prompt=PROMPT, k=3, seed=2, verifier=rule, warp=WARP)
    output = tuple(token for turn in rounds for token in turn.tokens)
    assert STEPS.state(output) is not None
    assert watched.seen > 14
    assert watched.worst < 1e-12
    refused = sum(STEPS.state(text[len(PROMPT) :]) is None for text in watched.drafted)
    assert refused < watched.seen / 4


@pytest.fixture(scope="module")
def small_sites(tmp_path_factory):
    """Heads of every family over a target of three tokens, of which some heads know two."""
    small = tiny("llama", vocab=3, num_hidden_layers=6, scale=2.0, **SMALL)
    folder = tmp_path_factory.mktemp("small")
    before, writers.DRAFT_VOCAB = writers.DRAFT_VOCAB, 2
    sites = {n: HeadSite(write(folder / n, small), small) for n, write in FAMILIES.items()}
    writers.DRAFT_VOCAB = before
    return sites


RULES = (
    *((rule, {"sampled": True}) for rule in (Sps(), Block(), Match(), Traversal(), Recursive())),
    (Match(), {"sampled": False}),
    *(
        (rule, {"shape": "2x1", "siblings": siblings})
        for rule in (Recursive(), Traversal())
        for siblings in ("iid", "distinct")
    ),
    (Match(), {"shape": "2x1", "siblings": "top"}),
)


@pytest.mark.parametrize(
    ("head", "rule", "more"),
    first(2, [(head, rule, more) for head in FAMILIES for rule, more in RULES]),
    ids=str,
)
def test_every_head_keeps_the_law_under_a_grammar(small_sites, head, rule, more):
    site = small_sites[head]
    known = Known(site._model, site.drafter().layers)
    prompt = (0, 2, 1)
    proof = proof_of(
        rule,
        site,
        known,
        more=more,
        prompt=prompt,
        tokens=3 if "shape" in more else 2,
        automaton=FORKS,
        eos=frozenset({FORKS.eos}),
        schedule=Constant(2),
        one_round="shape" in more,
    )
    assert proof.whole
    assert proof.distance < 1e-12
