"""Heads under a constraint: probs over the allowed tokens, and exact texts."""

import pytest
import torch

from spsbench.engines.eager import EagerLM
from spsbench.loop.sampling import Warp
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.sps import Sps
from spsbench.methods.verifiers.tree_rejection import Recursive
from tests.automata import StateTable
from tests.decoding import rounds_of
from tests.heads import writers
from tests.heads.head_faults import Compared
from tests.heads.stage import HeadSite, Known, masked, scratch

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
    """The same probs over the tokens that may follow; as they are where none has a chance."""

    def law(text, drafted):
        plain = laws(text, drafted)
        allowed = masked(STEPS, plain.tolist(), (*text[len(PROMPT) :], *drafted))
        return torch.tensor(allowed, dtype=plain.dtype)

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
def test_every_distribution_is_masked(target, tmp_path, head, shape, rule):
    site = HeadSite(getattr(writers, head)(tmp_path / "head", target), target)
    plain, constraint = site.drafter(), STEPS.constraint()
    laws = scratch(plain, Known(target, plain.layers), WARP)
    watched = Compared(site.drafter(**shape), over_allowed(laws))
    lm = EagerLM(target, layers=watched.layers)
    parts = {"verifier": rule, "warp": WARP, "constraint": constraint}
    rounds = rounds_of(lm, watched, 14, prompt=PROMPT, k=3, seed=2, **parts)
    output = tuple(token for turn in rounds for token in turn.tokens)
    assert STEPS.state(output) is not None
    assert watched.seen > 14
    assert watched.worst < 1e-12
    refused = sum(STEPS.state(text[len(PROMPT) :]) is None for text in watched.drafted)
    assert refused < watched.seen / 4
