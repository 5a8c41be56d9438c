"""The rules for trees, proved: one round of each shape that a rule accepts has the target's law.

By the enumeration of `tests/test_exactness.py`, the rules' thresholds being found by asking them.
Each sampled shape is walked with siblings drawn independently and without replacement, and trees by
rule as they are. Planted bugs are seen.
"""

from dataclasses import dataclass, replace
from types import FunctionType
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from spsbench.audit.exact import pairings, rules
from spsbench.audit.exact.cases import Case
from spsbench.audit.exact.discovery import DiscoveredRule
from spsbench.audit.exact.draft_kinds import FixedDrafter, along, sampled
from spsbench.audit.exact.enumeration import prove
from spsbench.audit.exact.tables import Pair
from spsbench.loop.sampling import sample
from spsbench.loop.types import Draft, Drawn, Purpose
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers import spectr
from spsbench.methods.verifiers.block import Block
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.recursive import Recursive
from spsbench.methods.verifiers.spectr import SpecTr
from spsbench.methods.verifiers.traversal import Traversal
from spsbench.methods.verifiers.tree_rejection import TreeRejection
from spsbench.methods.verifiers.tree_tables import shape_of
from spsbench.spec import Spec

PLAIN, MIXED = Pair(2, 3, ("plain",)), Pair(2, 4)
WIDE, WIDE_MIXED = Pair(3, 2, ("plain",)), Pair(3, 4)
WIDER = Pair(4, 4, ("plain",))  # of three tokens the third distinct one would be certain

FORK = (-1, -1, 0)  # two children, one below the first
SHAPES = {
    "siblings": (-1, -1),
    "three siblings": (-1, -1, -1),
    "fork": FORK,
    "two chains": (-1, -1, 0, 1),
    "stem": (-1, 0, 0),
    "tree": (-1, -1, 0, 0, 1),
    "chain by chain": (-1, 0, -1, 2),
    "four siblings": (-1, -1, -1, -1),
    "two forks": (-1, -1, 0, 0, 1, 1),
}
RULES = (Traversal(), Recursive(), SpecTr(), Match())
by_name = {"ids": lambda part: type(part).__name__}


def proof(rule, parents, drawn, pair, **more):
    """One round of a sampled tree."""
    kind = sampled("", parents, drawn)
    depth = max(len(along(parents, parents, node)) for node in range(len(parents)))
    fields = {"tokens": depth + 1, "schedule": Constant(depth), "one_round": True, "prompt": (0, 1)}
    cells = DiscoveredRule(rule, kind.drawn)
    return prove(Case(rule, cells, pair.q, pair.p, pair.vocab, drafter=kind.make, **fields | more))


def by_rule(rule, tokens, parents, pair):
    """One round of a tree that is always the same."""
    fields = {"tokens": 3, "schedule": Constant(2), "one_round": True}
    drafter = FixedDrafter(tokens, parents)
    cells = DiscoveredRule(rule)
    return prove(
        Case(rule, cells, pair.q, pair.p, pair.vocab, drafter=lambda lm: drafter, **fields)
    )


QUICK = (
    (Traversal(), "stem", Drawn.DISTINCT, PLAIN),
    (Traversal(), "fork", Drawn.IID, PLAIN),
    (Traversal(), "siblings", Drawn.DISTINCT, WIDE),
    (Recursive(), "stem", Drawn.DISTINCT, PLAIN),
    (Recursive(), "fork", Drawn.IID, PLAIN),
    (Recursive(), "siblings", Drawn.DISTINCT, WIDE),
    (SpecTr(), "siblings", Drawn.IID, PLAIN),
    (Traversal(), "three siblings", Drawn.DISTINCT, WIDER),
    (Recursive(), "three siblings", Drawn.DISTINCT, WIDER),
    (Traversal(), "three siblings", Drawn.IID, WIDE),
    (Recursive(), "three siblings", Drawn.IID, WIDE),
    (SpecTr(), "three siblings", Drawn.IID, WIDE),
    (SpecTr(), "two chains", Drawn.IID, PLAIN),
)


@pytest.mark.parametrize(("rule", "shape", "drawn", "pair"), QUICK)
def test_a_sample_of_sampled_trees(rule, shape, drawn, pair):
    assert proof(rule, SHAPES[shape], drawn, pair).exact


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, **by_name)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("drawn", [Drawn.IID, Drawn.DISTINCT])
def test_every_sampled_tree(rule, shape, drawn):
    if rule.refuses(drawn, True):
        pytest.skip("refused")
    for pair in PLAIN, MIXED:
        assert proof(rule, SHAPES[shape], drawn, pair).exact
    assert proof(rule, SHAPES[shape], drawn, WIDE, warp={"temperature": 0.0}).exact
    if len(SHAPES[shape]) < 4:
        for pair in WIDE, WIDE_MIXED:
            assert proof(rule, SHAPES[shape], drawn, pair, warp={"top_k": 2}).exact
            assert proof(rule, SHAPES[shape], drawn, pair, prompt=(2,)).exact


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES[:2], **by_name)
def test_whole_texts_of_siblings(rule):
    """The rounds after the first are drafted and ruled anew: caches, cut and noise as well."""
    for drawn in Drawn.IID, Drawn.DISTINCT:
        more = {"one_round": False, "tokens": 3, "schedule": Constant(2)}
        assert proof(rule, FORK, drawn, PLAIN, **more).exact
        assert proof(rule, FORK, drawn, PLAIN, eos=frozenset({1}), target_limit=4, **more).exact


@pytest.mark.parametrize("rule", [Traversal(), Recursive(), Match()], **by_name)
@pytest.mark.parametrize(
    ("tokens", "parents"),
    [((0, 1, 2, 0), (-1, -1, 0, 1)), ((0, 0, 1, 2), (-1, -1, 0, 1)), ((2, 1, 0), (-1, 0, 0))],
    ids=str,
)
def test_trees_by_rule(rule, tokens, parents):
    assert by_rule(rule, tokens, parents, WIDE).exact


def test_by_rule_all_keep_as_much_as_one_sample_match():
    """A token by rule has no law to gain from: what is kept is the target's mass of the paths."""
    tokens, parents = (0, 1, 2, 0), (-1, -1, 0, 1)
    kept = [by_rule(r, tokens, parents, WIDE).emitted for r in (Match(), Recursive(), Traversal())]
    assert kept == pytest.approx([kept[0]] * 3, abs=1e-12)


def test_from_the_leaves_up_keeps_no_less_than_from_the_root_down():
    distinct = Drawn.DISTINCT
    up, down = (proof(rule, FORK, distinct, PLAIN).emitted for rule in (Traversal(), Recursive()))
    assert up > down + 1e-3


# Planted: each is seen by the same walk.


@dataclass(frozen=True)
class WrongSiblings(Recursive):
    """Takes independent siblings for distinct ones, and distinct ones for independent."""

    def __call__(self, draft, q, noise):
        other = Drawn.IID if draft.drawn is Drawn.DISTINCT else Drawn.DISTINCT
        return super().__call__(replace(draft, drawn=other), q, noise)


@dataclass(frozen=True)
class TakesALaw(Traversal):
    """Takes tokens by rule for drawn ones."""

    def __call__(self, draft, q, noise):
        even = torch.full((len(draft.tokens), q.shape[-1]), 1 / q.shape[-1], dtype=q.dtype)
        return super().__call__(replace(draft, probs=even, drawn=Drawn.IID), q, noise)


@dataclass(frozen=True)
class LosesTheOrder(Recursive):
    """Tests siblings in the order of their ids, not in that in which they were drawn."""

    def __call__(self, draft, q, noise):
        order = draft.tokens.argsort(stable=True)  # of siblings of the context alone
        moved = Draft(draft.tokens[order], draft.probs[order], draft.parents, draft.drawn)
        rows = torch.cat([q[:1], q[1:][order]])
        verdict = super().__call__(moved, rows, noise)
        back = torch.where(verdict.path >= 0, order[verdict.path.clamp(min=0)], -1)
        return verdict._replace(path=back)


@dataclass(frozen=True)
class KeepsTheWeight(Traversal):
    """A refused subtree leaves the weight of its parent as it was."""

    def __call__(self, draft, q, noise):
        refuse = TreeRejection._refuse

        def kept(self, here, *rest):
            before = self.weight[here].clone()
            refuse(self, here, *rest)
            self.weight[here] = before

        with patch.object(TreeRejection, "_refuse", kept):
            return super().__call__(draft, q, noise)


REFUSE = TreeRejection._refuse


def against_its_own_law(self, here, before, nodes, rank):
    """Test one child of each row against the target's own law, and take nothing away."""
    own, weight, scale = (
        self.q[self.order[here]],
        self.weight[here].clone(),
        self.scale[here].clone(),
    )
    REFUSE(self, here, own, nodes, rank)
    self.left[here], self.weight[here], self.scale[here] = own, weight, scale


@dataclass(frozen=True)
class ForgetsTheRefused(Recursive):
    """Tests every sibling against the target's own law."""

    def __call__(self, draft, q, noise):
        with patch.object(TreeRejection, "_refuse", against_its_own_law):
            return super().__call__(draft, q, noise)


BLOCK = "spsbench.methods.verifiers.block"


@dataclass(frozen=True)
class OnlyTheWeight(Block):
    """Takes the bound of a prefix, its weight, for the chance to keep it."""

    def __call__(self, draft, q, noise):
        with patch(f"{BLOCK}.keep_chances", lambda draft, q, weight: weight[1:]):
            return super().__call__(replace(draft, parents=None), q, noise)

    def refuses(self, drawn, tree):
        return None


@dataclass(frozen=True)
class BonusOfAnother(Recursive):
    """The last token comes from the row of the first node."""

    def __call__(self, draft, q, noise):
        verdict = super().__call__(draft, q, noise)
        token = sample(q[1], noise.uniform(Purpose.FINAL, 1)[0])
        return verdict._replace(token=torch.where(verdict.path[0] < 0, verdict.token, token))


@dataclass(frozen=True)
class OneCandidate(SpecTr):
    """Tests each of several siblings as if it were alone."""

    def __call__(self, draft, q, noise):
        with patch.object(spectr, "rhos", lambda draft, q, shape, k: torch.ones_like(q[:, 0])):
            return super().__call__(draft, q, noise)


class FirstGivenBack:
    """The law of a third distinct sibling still holds the first token."""

    def __call__(self, draft, q, noise):
        with patch.object(TreeRejection, "_law", with_the_first(TreeRejection._law)):
            return super().__call__(draft, q, noise)  # a rule is beside it


@dataclass(frozen=True)
class ThirdHoldsTheFirst(FirstGivenBack, Recursive):
    """From the root down."""


@dataclass(frozen=True)
class ThirdHoldsTheFirstUpwards(FirstGivenBack, Traversal):
    """From the leaves up."""


def with_the_first(law):
    """A law of a sibling with the first one's mass given back to a third."""

    def wrong(self, nodes, rank):
        left, total = law(self, nodes, rank)
        if self.draft.drawn is not Drawn.DISTINCT or rank < 2:
            return left, total
        family = [self.shape.children[self.shape.parents[node] + 1] for node in nodes]
        rows = self.draft.probs[list(nodes)]
        first = self.draft.tokens[[siblings[0] for siblings in family]][:, None]
        left = left.scatter(1, first, rows.gather(1, first))
        return left, left.sum(-1)

    return wrong


@dataclass(frozen=True)
class TwoTries(SpecTr):
    """Where all were refused, what is left of q counts two tries, however many there were."""

    def __call__(self, draft, q, noise):
        right = spectr.tries
        rhos = copied_with(spectr.rhos, tries=right)
        with patch.multiple(spectr, rhos=rhos, tries=lambda beta, k: right(beta, k.clamp(max=2))):
            return super().__call__(draft, q, noise)


def copied_with(function, **names):
    """A function of a module that sees some names of it as they are given."""
    return FunctionType(function.__code__, {**function.__globals__, **names})


@dataclass(frozen=True)
class FullWeightBelow(Traversal):
    """A subtree begins with the weight 1, whatever the chance of its root."""

    def __call__(self, draft, q, noise):
        settle = TreeRejection.settle

        def whole(self, first, rows, weights):
            settle(self, first, rows, torch.ones_like(weights))

        with patch.object(TreeRejection, "settle", whole):
            return super().__call__(draft, q, noise)


@dataclass(frozen=True)
class OneDrawPerPath(Match):
    """A row below the second draws the target's token with the uniform of its grandparent."""

    def __call__(self, draft, q, noise):
        above = shape_of(draft).parents
        rows = [
            0,
            *(1 + (above[above[node]] if above[node] >= 0 else node) for node in range(len(above))),
        ]
        u = noise.uniform(Purpose.PLAIN, len(rows))[rows]
        return super().__call__(draft, q, Uniforms(u))


@dataclass(frozen=True)
class Uniforms:
    """The same numbers for each purpose."""

    values: Tensor

    def uniform(self, purpose, n):
        return self.values[:n]


@dataclass(frozen=True)
class SecondByRuleKept(Recursive):
    """A token by rule leaves what q had for it to the siblings after it."""

    def __call__(self, draft, q, noise):
        if draft.probs is not None:
            return super().__call__(draft, q, noise)
        with patch.object(TreeRejection, "_refuse", against_its_own_law):
            return super().__call__(draft, q, noise)


SLOW = pytest.mark.slow  # rules that are seen in one round, below
PLANTED = (
    (WrongSiblings(), "(i.i.d. siblings)"),
    pytest.param(WrongSiblings(), "(distinct siblings)", marks=SLOW),
    (LosesTheOrder(), "(distinct siblings)"),
    pytest.param(KeepsTheWeight(), "(i.i.d. tree)", marks=SLOW),
    (ForgetsTheRefused(), "(i.i.d. siblings)"),
    (BonusOfAnother(), "(i.i.d. siblings)"),
    (OneCandidate(), "(i.i.d. siblings)"),
    pytest.param(ThirdHoldsTheFirst(), "(distinct three siblings)", marks=SLOW),
    (ThirdHoldsTheFirstUpwards(), "(distinct three siblings)"),
    pytest.param(TwoTries(), "(i.i.d. three siblings)", marks=SLOW),
    pytest.param(FullWeightBelow(), "(i.i.d. tree)", marks=SLOW),
    (OneDrawPerPath(), "(fixed tree)"),
    (SecondByRuleKept(), "(fixed siblings)"),
)
"""Rules that are wrong, and a kind of draft that `sps verify rules` walks unasked."""


@pytest.mark.needs_fast
@pytest.mark.parametrize(("rule", "name"), PLANTED, ids=str)
def test_a_planted_bug_is_seen_by_what_is_walked_unasked(rule, name):
    kind = next(kind for kind in pairings.drafter_kinds() if kind.name == name)
    assert pairings.is_apt(rule, Spec("mine"), kind)
    with patch.object(rules, "smallest", lambda make: []):
        found = rules.pairing("mine", rule, kind, "constant", lambda: Constant(2))
    assert found.verdict == "BIASED"
    assert (found.distance or 0) > 1e-3


@pytest.mark.parametrize(
    ("rule", "drawn", "parents", "pair"),
    [
        (ThirdHoldsTheFirst(), Drawn.DISTINCT, (-1, -1, -1), WIDER),
        pytest.param(TwoTries(), Drawn.IID, (-1, -1, -1), WIDE, marks=SLOW),
        (KeepsTheWeight(), Drawn.IID, (-1, 0), PLAIN),
        (OnlyTheWeight(), Drawn.IID, (-1, 0), PLAIN),
    ],
    **by_name,
)
def test_a_planted_bug_is_seen_in_one_round(rule, drawn, parents, pair):
    found = proof(rule, parents, drawn, pair)
    assert not found.exact
    assert found.distance > 1e-3


def test_tokens_by_rule_taken_for_drawn_ones_are_seen():
    assert by_rule(TakesALaw(), (0, 1), (-1, -1), WIDE).distance > 1e-3
