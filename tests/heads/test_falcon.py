"""A head that foretells a block a pass: beside the paper's arithmetic, and round by round.

The texts are those of `test_drafting`.
"""

import json

import pytest
import torch
from safetensors.torch import load_file

from spsbench.errors import UsageError
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Context
from spsbench.methods.drafters.heads import Falcon
from spsbench.methods.verifiers.recursive import Recursive
from tests.heads import reference, writers
from tests.heads.head_faults import TREE, along, compared, sound
from tests.heads.stage import HeadSite, Known

VOCAB = 12
TEXT_READ = (1, 5, 3, 7, 2)


@pytest.fixture(scope="module")
def site(target, tmp_path_factory):
    return HeadSite(writers.falcon(tmp_path_factory.mktemp("falcon"), target), target)


@pytest.mark.parametrize(
    ("k", "more"), [(1, {}), (2, {"recurrence": "none"}), (3, {"bias": False})], ids=str
)
def test_the_network_is_the_paper_s(target, tmp_path, k, more):
    """Each block from the tensors of the file and transformers' layer, over all rows."""
    folder = writers.falcon(tmp_path, target, k=k, **more)
    drafted = (2, 9, 4, 6)
    found, _ = along(HeadSite(folder, target), target, drafted, TEXT_READ)
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
    look, append_kv = frontier.network.predict, frontier.network.append_kv
    frontier.network.predict = lambda *a: passes.__setitem__(0, passes[0] + 1) or look(*a)
    frontier.network.append_kv = lambda rows, *a: noted.append(len(rows)) or append_kv(rows, *a)
    try:
        frontier._take(known.hidden(TEXT_READ[:-1]), TEXT_READ[1:])
        frontier.root(Context(TEXT_READ, Warp(1.0), None))
        for i in range(5):
            frontier.feed(torch.tensor([i]), [i], [i - 1])
    finally:
        del frontier.network.predict, frontier.network.append_kv
    assert passes == [3]
    assert noted == [4, 2, 2]


def test_another_recurrence_is_refused():
    with pytest.raises(UsageError, match="expected text or none"):
        Falcon.plan(recurrence="both")
