"""What a head drafts from, round by round: as if all were computed anew from the text.

The shipping loop runs over an engine's session; at each round every law of the draft is compared
with `stage.scratch`, which has no cache and takes the target's features for the whole text.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from spsbench.engines.eager import EagerLM
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Context, Drafter, Schedule, Scores
from spsbench.methods.heads.frontier import HeadFrontier
from spsbench.methods.verifiers.recursive import Recursive
from spsbench.methods.verifiers.sps import Sps
from tests.decoding import rounds_of
from tests.heads import writers
from tests.heads.stage import HeadSite, Known, scratch, whole, with_frontier

VOCAB, TOKENS, K = 12, 12, 3
PROMPT = [1, 5, 3, 7]
WARP = Warp(1.0, 0, 0.95)
TREE = {"shape": "3x2x1", "siblings": "distinct"}


@pytest.fixture(scope="module")
def sites(target, tmp_path_factory):
    folder = tmp_path_factory.mktemp("heads")
    made = {
        "eagle": writers.eagle(folder / "eagle", target),
        "eagle3": writers.eagle3(folder / "eagle3", target),
        "mtp": writers.mtp(folder / "mtp", target),
        "3.1": writers.speculators(folder / "s", target, layers=2, norm_output=True, fc_norm=True),
    }
    return {name: HeadSite(path, target) for name, path in made.items()}


class Compared(Drafter):
    """A drafter whose laws are compared with those from scratch."""

    def __init__(self, drafter: Any, laws: Callable[..., Tensor]) -> None:
        self._drafter, self._laws = drafter, laws
        self.drawn, self.tree, self.layers = drafter.drawn, drafter.tree, drafter.layers
        self.worst, self.seen = 0.0, 0

    def begin(self, prompt, prefill):
        self._drafter.begin(prompt, prefill)

    def draft(self, context, k, noise, go_on):
        draft = self._drafter.draft(context, k, noise, go_on)
        tokens = draft.tokens.tolist()
        paths: list[tuple[int, ...]] = []
        for i, token in enumerate(tokens):
            above = i - 1 if draft.parents is None else int(draft.parents[i])
            before = paths[above] if above >= 0 else ()
            paths.append((*before, token))
            expected = self._laws(tuple(context.tokens), before)
            self.worst = max(self.worst, float((draft.probs[i] - expected).abs().max()))
            self.seen += 1
        return draft


def compared(site, target, spoil, engine=EagerLM, rule=None, k=K, **shape):
    plain = site.drafter()
    laws = scratch(plain, Known(target, plain.layers), WARP)
    drafter = site.drafter(**shape)
    spoil(drafter)
    watched = Compared(drafter, laws)
    lm, parts = engine(target, layers=watched.layers), {"verifier": rule or Sps(), "warp": WARP}
    rounds = rounds_of(lm, watched, TOKENS, prompt=PROMPT, k=k, seed=1, **parts)
    accepted = {turn.accepted for turn in rounds}
    assert len(accepted) > 1, "as much was kept in every round"
    return watched


def always(p):
    return torch.tensor(True)


def sound(drafter):
    """Nothing is planted."""


@pytest.mark.parametrize("head", ["eagle", "eagle3", "mtp", "3.1"])
def test_every_law_is_as_from_scratch(sites, target, head):
    seen = compared(sites[head], target, sound)
    assert seen.seen > TOKENS
    assert seen.worst < 1e-12


class Sometimes(Schedule):
    """Drafts in one round of three."""

    def k(self, history):
        return 0 if len(history) % 3 else K


def test_rounds_without_a_draft_spend_no_pass_and_are_read_later(sites, target, monkeypatch):
    site, passes = sites["eagle3"], []
    read = HeadFrontier._take

    def counted(self, hidden, tokens):
        passes.append(len(tokens))
        read(self, hidden, tokens)

    monkeypatch.setattr(HeadFrontier, "_take", counted)
    plain = site.drafter()
    watched = Compared(site.drafter(), scratch(plain, Known(target, plain.layers), WARP))
    lm, how = EagerLM(target, layers=watched.layers), {"verifier": Sps(), "warp": WARP, "seed": 1}
    done = rounds_of(lm, watched, TOKENS, prompt=PROMPT, schedule=Sometimes(), **how)
    assert watched.seen > K
    assert watched.worst < 1e-12
    drafting = sum(turn.drafted > 0 for turn in done)
    assert len(passes) == drafting  # the prompt, then one for each draft but the first
    assert max(passes[1:]) >= 3


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_a_parallel_head_foretells_from_masks(target, tmp_path, tree):
    """Slot i is what masks in place of i drafted tokens and of their features give."""
    site = HeadSite(writers.peagle(tmp_path, target), target)
    network, parts = site.drafter()._frontier.network, site.target()
    known = Known(target, network.layers)

    def laws(text, drafted):
        n, mask = len(drafted), list(network.mask_hidden[0].chunk(3, -1))
        features = torch.cat([network.fuse(known.hidden(text[:-1])), *([network.fuse(mask)] * n)])
        tokens = torch.tensor([*text[1:], *[network.shape.mask_token] * n])
        states = whole(network, features, tokens, parts)
        law = WARP(network.scores(states[-1:], parts.head))[0]
        return law.new_zeros(VOCAB).index_copy(0, network.ids, law)

    watched = Compared(site.drafter(**(TREE if tree else {})), laws)
    rule, lm = Recursive() if tree else Sps(), EagerLM(target, layers=watched.layers)
    more = {"k": 6, "seed": 1}  # of tokens: more than the head was trained for at once
    rounds_of(lm, watched, TOKENS, prompt=PROMPT, verifier=rule, warp=WARP, **more)
    assert watched.seen >= TOKENS
    assert watched.worst < 1e-12


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("head", "siblings"),
    [
        ("eagle", "distinct"),
        *(
            pytest.param(head, siblings, marks=SLOW)
            for head, siblings in (("eagle", "iid"), ("3.1", "distinct"), ("3.1", "iid"))
        ),
    ],
)
def test_every_law_of_a_tree_is_as_from_scratch(sites, target, head, siblings):
    """Each node's law is that after its own path, whatever its siblings are."""
    seen = compared(sites[head], target, sound, rule=Recursive(), **TREE | {"siblings": siblings})
    assert seen.seen > TOKENS
    assert seen.worst < 1e-12


def test_a_tree_that_grows_has_the_likeliest_paths(sites, target):
    site = sites["eagle3"]
    plain = site.drafter()
    known = Known(target, plain.layers)
    laws, text = scratch(plain, known, Warp(1.0)), (1, 5, 3, 7)
    best = site.drafter(width=VOCAB, depth=2, nodes=9)
    prefill = dict(zip(plain.layers, known.hidden(text[:-1]), strict=True))
    best.begin(text, Scores(torch.empty(0, VOCAB), prefill))
    draft = best.draft(Context(text, Warp(1.0), None), 4, PhiloxStream(0).round(0), always)
    paths = []
    for token, above in zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True):
        paths.append((*(paths[above] if above >= 0 else ()), token))
    first = laws(text, ())
    chances = {(a,): float(first[a]) for a in range(VOCAB)}
    for a in range(VOCAB):
        chances |= {(a, b): float(first[a] * p) for b, p in enumerate(laws(text, (a,)))}
    wanted = sorted(chances, key=chances.__getitem__)[-9:]
    assert sorted(paths) == sorted(wanted)


class AnotherLayer(HeadFrontier):
    """Hidden states of the layer before."""

    def __init__(self, *parts):
        super().__init__(*parts)
        self.layers = tuple(layer - 1 for layer in self.layers)


class NotShifted(HeadFrontier):
    """The embedding of a token beside its own features, not of the next."""

    def begin(self, prompt, prefill):
        self._last = prompt[0]
        super().begin(prompt, prefill)

    def _take(self, hidden, tokens):
        shifted, self._last = [self._last, *tokens[:-1]], tokens[-1]
        super()._take(hidden, shifted)


class GuessesKept(HeadFrontier):
    """The head's own features stay for what was accepted; only the newest rows are read."""

    def settle(self, context):
        new = len(context.tokens) - 1 - self._read
        if new > 1 and context.last is not None:
            self._read += min(new - 1, len(self._parents))
        rows = len(context.tokens) - 1 - self._read
        if context.last is not None and new:
            hidden = {n: h[new - rows : new] for n, h in context.last.scores.hidden.items()}
            scores = Scores(context.last.scores.logits, hidden)
            context = context._replace(last=context.last._replace(scores=scores))
        super().settle(context)


class RejectedKept(HeadFrontier):
    """What was drafted in vain stays in the cache, where later rows see it."""

    def settle(self, context):
        self._read += len(self._parents)
        context = context._replace(tokens=[0] * len(self._parents) + list(context.tokens))
        super().settle(context)


class RowOfAnother(HeadFrontier):
    """The features of the row after the one that was kept."""

    def settle(self, context):
        if context.last is not None:
            hidden = {n: h.roll(-1, 0) for n, h in context.last.scores.hidden.items()}
            scores = Scores(context.last.scores.logits, hidden)
            context = context._replace(last=context.last._replace(scores=scores))
        super().settle(context)


class PlaceStandsStill(HeadFrontier):
    """Every drafted token at the place of the first."""

    def _pass(self, features, tokens, places, sees, cache):
        if self._parents:
            places = self.network.rotary(places.positions * 0 + self._read, features.dtype)
        return super()._pass(features, tokens, places, sees, cache)


class NextParent(HeadFrontier):
    """A node's features are those after its parent's neighbour."""

    def _before(self, parents):
        return super()._before([max(self._states) if p >= 0 else p for p in parents])


class SeesAll(HeadFrontier):
    """Nodes of one depth see each other, and each other's parents."""

    def _pass(self, features, tokens, places, sees, cache):
        return super()._pass(features, tokens, places, None if self._parents else sees, cache)


def offsets_as_ids(drafter):
    network = drafter._frontier.network
    network.ids = network.ids - torch.arange(len(network.ids))


FAULTS = (AnotherLayer, NotShifted, GuessesKept, RejectedKept, RowOfAnother, PlaceStandsStill)


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(sites, target, fault):
    assert compared(sites["eagle"], target, with_frontier(fault)).worst > 1e-6


@pytest.mark.parametrize(
    "fault",
    [
        NextParent,
        SeesAll,
        *(pytest.param(fault, marks=SLOW) for fault in FAULTS if fault is not GuessesKept),
    ],
)
def test_planted_faults_are_seen_in_trees(sites, target, fault):
    """Of kept rows along a path, of parents, of what a node sees."""
    seen = compared(sites["eagle"], target, with_frontier(fault), rule=Recursive(), **TREE)
    assert seen.worst > 1e-6


def test_offsets_taken_for_ids_are_seen(sites, target):
    site = sites["eagle3"]
    kept = site.drafter()._frontier.network.ids
    try:
        assert compared(site, target, offsets_as_ids).worst > 1e-6
    finally:
        site.drafter()._frontier.network.ids = kept
