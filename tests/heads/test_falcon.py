"""A head that foretells a block a pass: beside the paper's arithmetic, and round by round.

The texts are those of `test_drafting`; the planted faults are those of blocks.
"""

import json
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from spsbench.errors import UsageError
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Context
from spsbench.methods.drafters.head_frontier import TEXT, BlockFrontier
from spsbench.methods.drafters.heads import Falcon
from spsbench.methods.verifiers.recursive import Recursive
from tests.heads import reference, writers
from tests.heads.head_faults import TREE, compared, sound
from tests.heads.stage import HeadSite, Known, with_frontier

VOCAB = 12
TEXT_READ = (1, 5, 3, 7, 2)


@pytest.fixture(scope="module")
def site(target, tmp_path_factory):
    return HeadSite(writers.falcon(tmp_path_factory.mktemp("falcon"), target), target)


def along(site, target, tokens):
    """The head's logits after the text and each of `tokens`."""
    frontier = site.drafter()._frontier
    known = Known(target, frontier.layers)
    frontier._take(known.hidden(TEXT_READ[:-1]), TEXT_READ[1:])
    found = [frontier.root(Context(TEXT_READ, Warp(1.0), None))[0]]
    for i, token in enumerate(tokens):
        found.append(frontier.feed(torch.tensor([token]), [i], [i - 1])[0])
    return found


@pytest.mark.parametrize(
    ("k", "more"), [(1, {}), (2, {"recurrence": "none"}), (3, {"bias": False})], ids=str
)
def test_the_network_is_the_paper_s(target, tmp_path, k, more):
    """Each block from the tensors of the file and transformers' layer, over all rows."""
    folder = writers.falcon(tmp_path, target, k=k, **more)
    drafted = (2, 9, 4, 6)
    found = along(HeadSite(folder, target), target, drafted)
    values = json.loads((folder / "config.json").read_text())
    tensors = {n: t.double() for n, t in load_file(folder / "model.safetensors").items()}
    f, ids, left = Known(target, (6,)).hidden(TEXT_READ[:-1])[0], list(TEXT_READ[1:]), [*drafted]
    expected = []
    while len(expected) < len(found):
        out = reference.falcon(values, tensors, f, target.get_input_embeddings().weight[ids])
        expected += list(out @ target.lm_head.weight.T)
        f, ids, left = torch.cat([f, out]), ids + left[:k], left[k:]
    torch.testing.assert_close(
        torch.stack(found), torch.stack(expected[: len(found)]), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_every_law_is_as_from_scratch(site, target, tree):
    """Two tokens a pass, three a draft: blocks begin at every place of the text."""
    more = {"rule": Recursive(), **TREE} if tree else {}
    seen = compared(site, target, sound, **more)
    assert seen.seen > VOCAB // 2
    assert seen.worst < 1e-12


def test_a_text_shorter_than_a_block_is_not_drafted_from(site):
    frontier = site.drafter()._frontier
    context = Context((1, 2, 3), Warp(1.0), None)
    assert frontier.depth(context, 9) == 9
    assert frontier.depth(context._replace(tokens=(1, 2)), 9) == 0


def test_a_pass_foretells_a_block(site, target):
    """Six tokens by three passes; no row of the text is written twice."""
    frontier = site.drafter()._frontier
    known, passes, noted = Known(target, frontier.layers), [0], list[int]()
    look, append_kv = frontier.network.foretell, frontier.network.append_kv
    frontier.network.foretell = lambda *a: passes.__setitem__(0, passes[0] + 1) or look(*a)
    frontier.network.append_kv = lambda rows, *a: noted.append(len(rows)) or append_kv(rows, *a)
    try:
        frontier._take(known.hidden(TEXT_READ[:-1]), TEXT_READ[1:])
        frontier.root(Context(TEXT_READ, Warp(1.0), None))
        for i in range(5):
            frontier.feed(torch.tensor([i]), [i], [i - 1])
    finally:
        del frontier.network.foretell, frontier.network.append_kv
    assert passes == [3]
    assert noted == [4, 2, 2]


def test_another_recurrence_is_refused():
    with pytest.raises(UsageError, match="expected text or none"):
        Falcon.plan(recurrence="both")


class AnotherLayer(BlockFrontier):
    """Hidden states of the layer before."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.layers = tuple(layer - 1 for layer in self.layers)


class StateOfDraft(BlockFrontier):
    """The LSTM goes on after the text from where the draft had left it."""

    def _grow(self, nodes):
        super()._grow(nodes)
        self._state = self._blocks[len(self._above) - 1].state


class StateOfText(BlockFrontier):
    """Every block begins its LSTM where the text ended, whatever block is before it."""

    def _grow(self, nodes):
        begun = self._blocks[TEXT].state
        self._blocks = {n: block._replace(state=begun) for n, block in self._blocks.items()}
        super()._grow(nodes)


class BlockKept(BlockFrontier):
    """What was drafted in vain stays in the cache, where later rows see it."""

    def settle(self, context):
        rows = len(self._above) * self.network.block
        self._read += rows
        context = context._replace(tokens=[0] * rows + list(context.tokens))
        super().settle(context)


class Causal(BlockFrontier):
    """Rows of a block do not see those after them."""

    def _places(self, n):
        places, sees = super()._places(n)
        m = len(sees)
        sees[:, -m:] &= torch.ones(m, m).tril().bool()
        return places, sees


class SeesNeighbours(BlockFrontier):
    """Blocks of one depth see each other."""

    def _places(self, n):
        places, sees = super()._places(n)
        return places, sees | True


class SlotBefore(BlockFrontier):
    """Every slot but the first by the law of the one before."""

    def feed(self, tokens, nodes, parents):
        found = super().feed(tokens, nodes, parents)
        at = [self._at[node] for node in nodes]
        rows = [self._blocks[a.block].logits[max(len(a.path) - 1, 0)] for a in at]
        return torch.stack(rows) if at[0].path else found


FAULTS = (AnotherLayer, StateOfDraft, BlockKept, Causal, SlotBefore)


@pytest.mark.parametrize(
    ("fault", "tree"),
    [*((fault, False) for fault in FAULTS), (SeesNeighbours, True), (StateOfText, False)],
)
def test_planted_faults_are_seen(site, target, fault, tree):
    deep = {"k": 5} if fault is StateOfText else {}  # a third block has one before it
    more = {"rule": Recursive(), **TREE} if tree else {}
    assert compared(site, target, with_frontier(fault), **deep, **more).worst > 1e-6
