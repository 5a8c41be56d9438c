"""Heads in packed networks, and over packed targets."""

import pytest
import torch

import spsbench
from spsbench.extensions.cpu.fast import Fast
from tests.extensions.cpu.laid_out import without_compiler
from tests.heads import writers
from tests.heads.head_faults import FAMILIES, ROWS, SOME, VOCAB, along, compared, in_pieces
from tests.heads.stage import FIRST, TEXT, HeadSite
from tests.oracles.models import tiny

pytestmark = pytest.mark.numeric


@pytest.mark.parametrize("kind", FIRST)
def test_a_head_drafts_without_a_compiler(kind, tmp_path):
    with without_compiler(tmp_path):
        pair = spsbench.load(drafter=kind, k=3, temperature=0.0, max_new_tokens=12, offline=True)
        assert pair.generate(TEXT).text == pair.generate(TEXT, k=0).text


@pytest.mark.parametrize("head", SOME)
def test_packed_parallel_heads_compute_the_same(tmp_path, head):
    wide = tiny("llama", VOCAB, num_hidden_layers=6, hidden_size=128, dtype=torch.float32)
    folder = FAMILIES[head](tmp_path, wide)
    plain, packed = HeadSite(folder, wide), HeadSite(folder, wide)
    Fast().pack(packed.drafter()._frontier.network)
    found, again = (torch.stack(along(site, wide, (2, 9))[0]) for site in (plain, packed))
    torch.testing.assert_close(again, found, rtol=1e-4, atol=1e-4)


def test_packed_recurrent_heads_compute_the_same(tmp_path):
    """A head's layers are laid out as a model's where that is faster; the site does it once."""
    target = tiny("llama", vocab=20, num_hidden_layers=6, hidden_size=128, dtype=torch.float32)
    folder = writers.eagle3(tmp_path, target)
    plain, packed = (HeadSite(folder, target).drafter()._frontier.network for _ in range(2))
    Fast().pack(packed)
    *hidden, e = (
        torch.randn(ROWS, 128, generator=torch.Generator().manual_seed(n)) for n in range(4)
    )
    found = []
    for network in plain, packed:
        states = in_pieces(network, network.fuse(hidden), e)
        found += [states, network.scores(states, target.lm_head)]
    torch.testing.assert_close(found[2], found[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found[3], found[1], rtol=1e-4, atol=1e-4)


def test_hidden_states_of_the_fast_engine_are_those_of_the_model(tmp_path):
    target, model = (tiny("llama", vocab=VOCAB, num_hidden_layers=6, scale=1.0) for _ in range(2))
    engine = Fast()
    engine.prepare(model, threads=1)
    seen = compared(
        HeadSite(writers.eagle3(tmp_path, target), target),
        target,
        engine=lambda m, layers: engine.session(model, layers=layers),
    )
    assert seen.worst < 1e-9
