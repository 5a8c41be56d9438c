"""A head's distributions, round by round, compared with those from scratch; and wrong heads."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from spsbench.engines.eager import EagerLM
from spsbench.engines.session.cache import PreallocatedCache
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Context, Drafter, Scores
from spsbench.messages import ignore
from spsbench.methods.drafters.head_frontier import HeadFrontier
from spsbench.methods.verifiers.sps import Sps
from tests.decoding import rounds_of
from tests.heads import writers
from tests.heads.stage import Known, scratch

VOCAB, TOKENS, K = 12, 12, 3
PROMPT = [1, 5, 3, 7]
WARP = Warp(1.0, 0, 0.95)
TREE = {"shape": "3x2x1", "siblings": "distinct"}


class Compared(Drafter):
    """A drafter whose distributions are compared with those from scratch."""

    def __init__(self, drafter: Any, laws: Callable[..., Tensor]) -> None:
        self._drafter, self._laws = drafter, laws
        self.drawn, self.tree, self.layers = drafter.drawn, drafter.tree, drafter.layers
        self.worst, self.drafted = 0.0, []

    @property
    def seen(self) -> int:
        return len(self.drafted)

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
            if draft.probs is not None:
                expected = self._laws(tuple(context.tokens), before)
                self.worst = max(self.worst, float((draft.probs[i] - expected).abs().max()))
            self.drafted.append((*context.tokens, *paths[-1]))
        return draft


def compared(site, target, spoil=ignore, engine=EagerLM, rule=None, k=K, **shape):
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


class AnotherLayer(HeadFrontier):
    def __init__(self, *parts):
        super().__init__(*parts)
        self.layers = tuple(layer - 1 for layer in self.layers)


class NotShifted(HeadFrontier):
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
    def settle(self, context):
        if context.last is not None:
            hidden = {n: h.roll(-1, 0) for n, h in context.last.scores.hidden.items()}
            scores = Scores(context.last.scores.logits, hidden)
            context = context._replace(last=context.last._replace(scores=scores))
        super().settle(context)


class PlaceStandsStill(HeadFrontier):
    def _pass(self, features, tokens, places, sees, cache):
        if self._parents:
            places = self.network.rotary(places.positions * 0 + self._read, features.dtype)
        return super()._pass(features, tokens, places, sees, cache)


class NextParent(HeadFrontier):
    def _after(self, nodes):
        return super()._after([max(self._states) if node >= 0 else node for node in nodes])


class SeesAll(HeadFrontier):
    def _pass(self, features, tokens, places, sees, cache):
        return super()._pass(features, tokens, places, None if self._parents else sees, cache)


ROWS = 7


def in_pieces(network, features, embedded):
    """[m, H] through a cache: three rows, then two, then one by one."""
    cache, made, done = PreallocatedCache(None), [], 0
    for m in (3, 2, 1, 1):
        part = slice(done, done + m)
        sees = torch.ones(m, done + m, dtype=torch.bool).tril(done)
        places = network.rotary.rows(done, m, features.dtype)
        made.append(network.step(features[part], embedded[part], places, cache, sees))
        done += m
    return torch.cat(made)


PARALLEL = ("medusa", "mlp", "blockwise", "dflash", "dspark")
FAMILIES = {
    "eagle": writers.eagle,
    "eagle3": writers.eagle3,
    "mtp": writers.mtp,
    "3.1": lambda f, t: writers.speculators(f, t, layers=2, norm_output=True, fc_norm=True),
    "falcon": writers.falcon,
    "medusa": writers.medusa,
    "mlp": writers.mlp,
    "blockwise": writers.blockwise,
    "dflash": writers.dflash,
    "dspark": lambda f, t: writers.block_speculators(f, t, coupling="rnn"),
}


def along(site, target, tokens, text=(1, 5, 3, 7)):
    """The head's logits after `text` and each of `tokens`, and the hidden state it has read."""
    frontier = site.drafter()._frontier
    frontier.narrow = False
    known = Known(target, frontier.layers)
    frontier.begin(text, known.prefill(text))
    frontier.depth(Context(text, Warp(1.0), None), len(tokens) + 1)
    found = [frontier.root(Context(text, Warp(1.0), None))[0]]
    for i, token in enumerate(tokens):
        found.append(frontier.feed(torch.tensor([token]), [i], [i - 1])[0])
    return found, known.hidden(text[:-1])[0][-1]


SLOW = pytest.mark.slow
SOME = [head if head in ("mlp", "dspark") else pytest.param(head, marks=SLOW) for head in PARALLEL]
