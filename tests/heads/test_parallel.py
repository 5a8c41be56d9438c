"""Heads that look at the text once a round, or foretell a block: beside the papers' arithmetic."""

import pytest
import torch

from spsbench.errors import DataError, UsageError
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Context
from spsbench.methods.drafters.heads import Falcon
from tests.heads import reference, writers
from tests.heads.head_faults import FAMILIES, along
from tests.heads.stage import HeadSite, Known
from tests.oracles.models import tiny

VOCAB = 12
LONGER = (1, 5, 3, 7, 2)


@pytest.fixture(scope="module")
def sites(target, tmp_path_factory):
    folder = tmp_path_factory.mktemp("heads")
    some = {name: FAMILIES[name] for name in ("medusa", "falcon")}
    return {name: HeadSite(write(folder / name, target), target) for name, write in some.items()}


def equal(found, expected):
    torch.testing.assert_close(torch.stack(list(found)), torch.stack(list(expected)))


@pytest.mark.parametrize(("heads", "layers"), [(3, 2), (5, 1)])
def test_medusa(target, tmp_path, heads, layers):
    folder = writers.medusa(tmp_path, target, heads=heads, layers=layers)
    found, h = along(HeadSite(folder, target), target, (2, 9, 4, 1)[: heads - 1])
    equal(found, reference.medusa(reference.read(folder)[1], layers, h))


def test_medusa_of_some_tokens(target, tmp_path):
    """vLLM's names: no bias, a head over the tokens of `token_map`."""
    folder = writers.medusa(tmp_path, target, dialect="vLLM")
    found, h = along(HeadSite(folder, target), target, ())
    _, tensors = reference.read(folder)
    x = h + torch.nn.functional.silu(tensors["blocks.0.layers.0.weight"] @ h)
    ids = tensors["token_map"].long()
    torch.testing.assert_close(found[0][ids], tensors["lm_heads.0.weight"] @ x)
    assert int(found[0].isfinite().sum()) == len(ids)


def test_a_token_map_that_leaves_the_vocabulary_is_refused(target, tmp_path):
    folder = writers.medusa(tmp_path, tiny("llama", vocab=40), dialect="vLLM")
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace("40", str(VOCAB)))
    with pytest.raises(DataError, match="token_map"):
        HeadSite(folder, target).drafter()


@pytest.mark.parametrize(("tied", "scaled"), [("", True), ("copies", False), ("firsts", True)])
def test_mlp(target, tmp_path, tied, scaled):
    folder = writers.mlp(tmp_path, target, tied=tied, scaled=scaled)
    found, h = along(HeadSite(folder, target), target, (2, 9))
    _, tensors = reference.read(folder)
    if tied == "firsts":
        copies = writers.mlp(tmp_path / "whole", target, tied="copies", scaled=scaled)
        _, tensors = reference.read(copies)
    values = {"n_predict": 3, "inner_dim": writers.INNER, "scale_input": scaled}
    equal(found, reference.mlp(values, tensors, h, [7, 2, 9]))


def test_an_mlp_of_five_stages(target, tmp_path):
    folder = writers.mlp(tmp_path, target, stages=5)
    found, h = along(HeadSite(folder, target), target, (2, 9, 4, 1))
    values = {"n_predict": 5, "inner_dim": writers.INNER, "scale_input": True}
    equal(found, reference.mlp(values, reference.read(folder)[1], h, [7, 2, 9, 4, 1]))


@pytest.mark.parametrize("own_head", [True, False])
def test_blockwise(target, tmp_path, own_head):
    folder = writers.blockwise(tmp_path, target, own_head=own_head)
    found, h = along(HeadSite(folder, target), target, (2, 9))
    _, tensors = reference.read(folder)
    head = tensors["lm_head.weight"] if own_head else target.lm_head.weight
    equal(found, reference.blockwise(tensors, head, h))


@pytest.mark.parametrize(
    ("coupling", "window", "from_first"),
    [("", 0, False), ("", 2, False), ("vanilla", 0, True), ("gated", 0, False), ("rnn", 0, False)],
)
def test_blocks(target, tmp_path, coupling, window, from_first):
    """Of speculators: a reduced vocabulary, embeddings and a head of its own."""
    more = {"sample_from_anchor": from_first}
    folder = writers.block_speculators(tmp_path, target, coupling, window, **more)
    found, _ = along(HeadSite(folder, target), target, (2, 9))
    config, tensors = reference.read(folder)
    values = config["transformer_layer_config"]
    hidden = Known(target, (2, 4)).hidden((1, 5, 3))
    e = tensors["embed_tokens.weight"][[7, 1, 1, 1]]
    rows = reference.dflash(values, tensors, hidden, e, (window, 0))
    biases = [torch.zeros(1, dtype=torch.float64)] * 4
    if coupling:
        before = [7, 2, 9, 0] if from_first else [7, 7, 2, 9]
        biases = reference.dspark_bias(tensors, coupling, before, rows)
    logits = [tensors["lm_head.weight"] @ row + b for row, b in zip(rows, biases, strict=True)]
    ids = torch.arange(writers.DRAFT_VOCAB) + tensors["d2t"].long()
    expected = logits[:3] if from_first else logits[1:]
    for own, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(own[ids], wanted, rtol=1e-4, atol=1e-5)
        assert int(own.isfinite().sum()) == len(ids)


def test_blocks_with_the_target_s_head(target, tmp_path):
    """Of z-lab: the target's embeddings and head; layer ids are outputs."""
    folder = writers.dflash(tmp_path, target)
    site = HeadSite(folder, target)
    assert site.drafter().layers == (2, 4)
    found, _ = along(site, target, (2, 9))
    values, tensors = reference.read(folder)
    hidden = Known(target, (2, 4)).hidden((1, 5, 3))
    e = target.get_input_embeddings()(torch.tensor([7, 1, 1, 1])).detach()
    rows = reference.dflash(values, tensors, hidden, e, (0, 0))
    expected = rows[1:] @ target.lm_head.weight.T
    torch.testing.assert_close(torch.stack(found), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("k", "more"), [(1, {}), (2, {"recurrence": "none"}), (3, {"bias": False})], ids=str
)
def test_falcon(target, tmp_path, k, more):
    """Each block from the tensors of the file and transformers' layer, over all rows."""
    folder = writers.falcon(tmp_path, target, k=k, **more)
    drafted = (2, 9, 4, 6)
    found, _ = along(HeadSite(folder, target), target, drafted, LONGER)
    values, tensors = reference.read(folder)
    f, ids, left = Known(target, (6,)).hidden(LONGER[:-1])[0], list(LONGER[1:]), [*drafted]
    expected = []
    while len(expected) < len(found):
        out = reference.falcon(values, tensors, f, target.get_input_embeddings().weight[ids])
        expected += list(out @ target.lm_head.weight.T)
        f, ids, left = torch.cat([f, out]), ids + left[:k], left[k:]
    torch.testing.assert_close(
        torch.stack(found), torch.stack(expected[: len(found)]), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(("head", "least", "depth"), [("medusa", 2, 3), ("falcon", 3, 9)])
def test_a_draft_ends_where_the_heads_do_and_needs_a_text(sites, head, least, depth):
    frontier = sites[head].drafter()._frontier
    for n, most in ((least, depth), (least - 1, 0)):
        assert frontier.depth(Context(tuple(range(n)), Warp(1.0), None), 9) == most


def test_a_pass_foretells_a_block(sites, target):
    frontier = sites["falcon"].drafter()._frontier
    known, passes, noted = Known(target, frontier.layers), [0], list[int]()
    look, append_kv = frontier.network.predict, frontier.network.append_kv
    frontier.network.predict = lambda *a: passes.__setitem__(0, passes[0] + 1) or look(*a)
    frontier.network.append_kv = lambda rows, *a: noted.append(len(rows)) or append_kv(rows, *a)
    try:
        frontier.begin(LONGER, known.prefill(LONGER))
        frontier.root(Context(LONGER, Warp(1.0), None))
        for i in range(5):
            frontier.feed(torch.tensor([i]), [i], [i - 1])
    finally:
        del frontier.network.predict, frontier.network.append_kv
    assert passes == [3]
    assert noted == [4, 2, 2]


def test_another_recurrence_is_refused():
    with pytest.raises(UsageError, match="expected text or none"):
        Falcon.plan(recurrence="both")
