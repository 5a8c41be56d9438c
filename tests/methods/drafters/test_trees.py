"""Drafters of trees: what is fed, kept and drawn, and the distribution of the texts."""

from functools import partial

import pytest

from spsbench.audit.exact.tables import TableLM, ToyPair, open_over
from spsbench.loop.decode import decode
from spsbench.loop.guards import plan_of
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Draft, Drafter, Drawn, Limits
from spsbench.methods.drafters.frontier import Frontier
from spsbench.methods.drafters.shaped import ShapedDrafter
from spsbench.methods.drafters.topk import TopkDrafter
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.match import Match
from spsbench.spec import Spec

PAIR = ToyPair(5, 1)
MAKE = {
    "ragged": lambda lm: ShapedDrafter(Frontier(lm), (-1, -1, -1, 0, 0, 2, 3, 5, 5), Drawn.IID),
    **{
        name: partial(open_over, drafter=Spec.parse(spec))
        for name, spec in {
            "top": "tree:shape=3x2x1",
            "iid": "tree:shape=3x2x1,siblings=iid",
            "distinct": "tree:shape=2x3x2,siblings=distinct",
            "topk": "topk:width=3,nodes=7",
            "chains": "chains:n=3,share=true",
            "apart": "chains:n=2",
        }.items()
    },
}
every = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)


class Counted(TableLM):
    """A table that says how many passes it ran, and of how many rows."""

    def __init__(self, *args: object, **more: object) -> None:
        super().__init__(*args, **more)
        self.passes: list[int] = []

    def append(self, tokens, keep, parents=None):
        if keep:
            self.passes.append(len(tokens))
        return super().append(tokens, keep, parents)


class Kept(Drafter):
    """Another drafter, and all that it drafted."""

    def __init__(self, drafter: Drafter, lm: Counted) -> None:
        self.inner, self.lm, self.drawn, self.tree = drafter, lm, drafter.drawn, drafter.tree
        self.limit = drafter.limit
        self.drafts: list[Draft] = []
        self.passes: list[int] = []  # how many there were before each draft
        self.begin = drafter.begin

    def draft(self, *args):
        self.passes.append(len(self.lm.passes))
        self.drafts.append(self.inner.draft(*args))
        return self.drafts[-1]


def run(
    make,
    seed=0,
    *,
    k=3,
    tokens=14,
    verifier=None,
    warp=None,
    nodes=None,
    limit=None,
    draft_limit=None,
):
    """A text over tables that check every token they are fed."""
    text = [0, 1]
    lm = Counted(PAIR.p, 5, text=text, limit=draft_limit)
    drafter = Kept(make(lm), lm)
    rounds = []
    for turn in decode(
        text[:],
        target=TableLM(PAIR.q, 5, text=text, target=True, limit=limit),
        drafter=drafter,
        verifier=verifier or Match(),
        schedule=Constant(k, nodes),
        warp=warp or Warp(),
        noise=PhiloxStream(seed),
        limits=Limits(tokens),
    ):
        text += turn.tokens
        rounds.append(turn)
    return text, rounds, drafter, lm


def paths(draft):
    found = []
    for token, parent in zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


@every
def test_a_depth_costs_one_pass_and_what_was_kept_is_not_fed_again(make):
    accepted = set()
    for seed in range(8):
        text, rounds, drafter, lm = run(make, seed)
        assert len(text) == 16
        for turn, draft, first, last in zip(
            rounds,
            drafter.drafts,
            drafter.passes,
            [*drafter.passes[1:], len(lm.passes)],
            strict=True,
        ):
            accepted.add(turn.accepted)
            n = len(draft.tokens)
            depth = max(map(len, paths(draft)), default=0) if n else 0
            assert turn.depth == depth
            rows = lm.passes[first:last]
            best_first = isinstance(drafter.inner, TopkDrafter)  # may look deeper than it keeps
            assert depth <= len(rows) <= 3 if best_first else depth == len(rows)
            if turn is not rounds[0] and rows:
                assert rows[0] <= 2  # the newest token, and a leaf that was kept
    assert {0, 1, 2} <= accepted


@every
@pytest.mark.parametrize("nodes", [1, 4])
def test_the_nodes_are_bounded(make, nodes):
    _, rounds, drafter, _ = run(make, 3, nodes=nodes)
    assert (
        max(len(draft.tokens) for draft in drafter.drafts)
        == nodes
        == max(r.drafted for r in rounds)
    )


@every
@pytest.mark.parametrize("target", [True, False])
def test_at_the_edge_of_a_context(make, target):
    limits = {"limit": 14} if target else {"draft_limit": 9}
    text, rounds, _, _ = run(make, 1, tokens=40, **limits)
    assert len(text) == (14 if target else 42)
    assert rounds[-1].finish == ("context" if target else "length")
    assert any(turn.drafted for turn in rounds)


def test_the_best_nodes_are_kept_best_first():
    """Against every node of the full tree of that depth, by brute force."""
    text, rounds, drafter, _ = run(MAKE["topk"], 4, warp=Warp(0))
    length = 2
    for turn, draft in zip(rounds, drafter.drafts, strict=True):
        before = tuple(text[:length])
        length += len(turn.tokens)
        if not len(draft.tokens):
            continue
        chance = {(): 1.0}
        for _ in range(max(map(len, paths(draft)))):
            longest = max(map(len, chance))
            for path in [path for path in chance if len(path) == longest]:
                law = PAIR.p((*before, *path))
                chance |= {(*path, x): chance[path] * law[x] for x in range(5)}
        got = [chance[path] for path in paths(draft)]
        assert got == sorted(got, reverse=True)
        every = sorted((v for path, v in chance.items() if path), reverse=True)
        assert got[:3] == pytest.approx(every[:3])  # `width` may hide others


def test_chains_that_share_are_a_trie_and_others_stand_apart():
    shared = False
    for seed in range(12):
        _, _, drafter, _ = run(MAKE["chains"], seed)
        for draft in drafter.drafts:
            found = paths(draft) if len(draft.tokens) else []
            assert len(set(found)) == len(found)
            shared |= 0 < sum(len(path) == 1 for path in found) < 3
        _, _, drafter, _ = run(MAKE["apart"], seed, warp=Warp(2.0))
        for draft in drafter.drafts:
            if len(draft.tokens) == 6:
                assert draft.parents.tolist() == [-1, -1, 0, 1, 2, 3]
    assert shared
    assert plan_of(Spec.parse("chains:share=true")).drawn is Drawn.POINT
    assert plan_of(Spec("chains")).drawn is Drawn.IID


def test_a_sure_distribution_has_one_child():
    for name in "iid", "distinct", "chains", "ragged":
        _, rounds, _, _ = run(MAKE[name], warp=Warp(0))
        assert all(r.drafted == r.depth for r in rounds), name
