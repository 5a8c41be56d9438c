"""Heads under a constraint: each law is that of the head alone, over the allowed tokens."""

import copy

import pytest
import torch

from spsbench.audit.exact.automata import StateTable
from spsbench.engines.eager import EagerLM
from spsbench.loop.constraint import MaskedLM
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Drafter
from spsbench.methods.heads.masked import MaskedFrontier
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.recursive import Recursive
from spsbench.methods.verifiers.sps import Sps
from tests.decoding import rounds_of
from tests.heads import writers
from tests.heads.stage import HeadSite, Known, scratch

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


class Compared(Drafter):
    """A drafter whose laws are compared with those from scratch, over the allowed tokens."""

    def __init__(self, drafter, laws, constraint):
        self._drafter, self._laws, self._constraint = drafter, laws, constraint
        self.drawn, self.tree, self.layers = drafter.drawn, drafter.tree, drafter.layers
        self.worst, self.seen, self.refused = 0.0, 0, 0

    def begin(self, prompt, prefill):
        self._drafter.begin(prompt, prefill)

    def draft(self, context, k, noise, go_on):
        draft = self._drafter.draft(context, k, noise, go_on)
        output = tuple(context.tokens[len(PROMPT) :])
        paths = []
        for i, token in enumerate(draft.tokens.tolist()):
            above = i - 1 if draft.parents is None else int(draft.parents[i])
            before = paths[above] if above >= 0 else ()
            paths.append((*before, token))
            state = STEPS.state((*output, *before))
            law = self._laws(tuple(context.tokens), before)
            mask = torch.zeros(VOCAB, dtype=torch.bool)
            if state is not None:
                mask[list(STEPS.follows(state))] = True
            known = (law > 0) & mask
            expected = law.where(known, 0.0) / law[known].sum() if bool(known.any()) else law
            self.refused += state is None or token not in STEPS.follows(state)
            if draft.probs is not None:
                self.worst = max(self.worst, float((draft.probs[i] - expected).abs().max()))
            self.seen += 1
        return draft


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
    assert isinstance(drafter._frontier, MaskedFrontier)
    watched = Compared(drafter, laws, masked.constraint)
    lm = MaskedLM(EagerLM(target, layers=watched.layers), masked.constraint, target=True)
    rounds = rounds_of(lm, watched, 14, prompt=PROMPT, k=3, seed=2, verifier=rule, warp=WARP)
    output = tuple(token for turn in rounds for token in turn.tokens)
    assert STEPS.state(output) is not None
    assert watched.seen > 14
    assert watched.worst < 1e-12
    assert watched.refused < watched.seen / 4
