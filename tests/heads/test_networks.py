"""Networks of heads beside an independent computation from the same file, number by number."""

import pytest
import torch

from spsbench.engines.session.cache import PreallocatedCache
from spsbench.heads.families import family_of
from tests.heads import reference, writers
from tests.heads.head_faults import ROWS, in_pieces
from tests.heads.stage import HeadSite
from tests.oracles.models import tiny

pytestmark = pytest.mark.numeric

NEAR = {"rtol": 1e-4, "atol": 1e-5}  # transformers turns and norms in float32
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.fixture(scope="module")
def target():
    return tiny("llama", vocab=20, num_hidden_layers=6)


def numbers(target, n):
    draw = torch.Generator().manual_seed(4)
    shape = ROWS, target.config.hidden_size
    return [torch.randn(shape, generator=draw, dtype=torch.float64) for _ in range(n)]


@pytest.mark.parametrize(
    "more",
    [{}, {"bias": False}, {"rope_scaling": LLAMA3}, {"model_type": "qwen3", "head_dim": 16}],
    ids=["bias", "none", "llama3", "qwen3"],
)
def test_eagle(target, tmp_path, more):
    folder = writers.eagle(tmp_path, target, **more)
    network = HeadSite(folder, target).drafter()._frontier.network
    f, e = numbers(target, 2)
    expected = reference.eagle(*reference.read(folder), f, e)
    torch.testing.assert_close(in_pieces(network, network.fuse([f]), e), expected, **NEAR)
    torch.testing.assert_close(network.scores(f, target.lm_head), f @ target.lm_head.weight.T)


DIALECTS = {
    "eagle": (lambda at, t: writers.eagle3(at, t), "midlayer", {}),
    "specforge": (lambda at, t: writers.specforge(at, t, [0, 2, 4]), "midlayer", {}),
    "3.1": (lambda at, t: writers.eagle31(at, t), "layers.0", {"each": True}),
    "speculators": (
        lambda at, t: writers.speculators(at, t, layers=2, norm_before_fc=True),
        "layers.0",
        {"residual_normed": True, "whole": True},
    ),
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_eagle3(target, tmp_path, dialect):
    write, at, how = DIALECTS[dialect]
    folder = write(tmp_path, target)
    drafter = HeadSite(folder, target).drafter()
    network = drafter._frontier.network
    assert drafter.layers == ((1, 3, 5) if dialect == "specforge" else (2, 3, 3))
    config, tensors = reference.read(folder)
    tensors = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    *hidden, e = numbers(target, 4)
    flat = config.get("transformer_layer_config", config)
    x, logits = reference.eagle3(flat, tensors, at, hidden, e, **how)
    made = in_pieces(network, network.fuse(hidden), e)
    torch.testing.assert_close(made, x, **NEAR)
    torch.testing.assert_close(network.scores(made, target.lm_head), logits, **NEAR)
    tokens = torch.arange(5)
    if "embed_tokens.weight" in tensors:
        embedded = network.embed(tokens, target.get_input_embeddings())
        torch.testing.assert_close(embedded, tensors["embed_tokens.weight"][:5])
    if "d2t" in tensors:
        ids = network.ids
        assert tensors["t2d"].bool()[ids].all()
        assert len(ids.unique()) == writers.DRAFT_VOCAB


@pytest.mark.parametrize("dialect", ["speculators", "MiMo", "Qwen"])
def test_mtp(target, tmp_path, dialect):
    folder = writers.mtp(tmp_path, target, dialect)
    assert family_of(folder) == ("mtp" if dialect == "speculators" else None)
    drafter = HeadSite(folder, target).drafter()
    assert drafter.layers == (6,)
    config, tensors = reference.read(folder)
    _, at, names = writers.MTP[dialect]
    f, e = numbers(target, 2)
    flat = config.get("transformer_layer_config", config)
    expected = reference.mtp(flat, tensors, names, f"{at}.", f, e, dialect == "MiMo")
    network = drafter._frontier.network
    torch.testing.assert_close(in_pieces(network, network.fuse([f]), e), expected, **NEAR)
    torch.testing.assert_close(network.scores(f, target.lm_head), f @ target.lm_head.weight.T)


def test_norm_output_means_one_thing_to_each_writer(target, tmp_path):
    """SpecForge: a norm before the head, or none. speculators: the normed feature is fed back."""
    forged = writers.specforge(tmp_path / "a", target, [1, 2, 3], norm_output=False)
    theirs = writers.speculators(tmp_path / "b", target, norm_output=True)
    x = numbers(target, 1)[0]
    for folder, fed_back in ((forged, False), (theirs, True)):
        network = HeadSite(folder, target).drafter()._frontier.network
        _, tensors = reference.read(folder)
        logits = network.scores(x, target.lm_head)
        torch.testing.assert_close(logits, x @ tensors["lm_head.weight"].T)
        features = network.step(
            x, x, network.rotary.rows(0, ROWS, x.dtype), PreallocatedCache(None), None
        )
        weight = tensors["norm.weight"]
        flat = reference.normed(features / weight, torch.ones_like(weight), 0.0)
        assert torch.allclose(flat, features / weight, rtol=1e-4) == fed_back


def test_embeddings_that_are_the_target_s_are_not_kept_twice(target, tmp_path):
    network = HeadSite(writers.eagle(tmp_path / "a", target), target).drafter()._frontier.network
    # the file is float32, the target float64: equal only if nothing was lost on the way
    own = target.get_input_embeddings().weight
    assert hasattr(network, "embed_tokens") != bool(torch.equal(own.float().double(), own))
