"""A draft model pruned to a part of its target, whose layers see the newest tokens only."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from spsbench.errors import UsageError
from spsbench.extensions.cpu.fast import Fast
from spsbench.extensions.training.batches import Teacher
from spsbench.extensions.training.students.draft import prune_and_window
from tests.extensions.training import small
from tests.oracles.models import laws, tiny

WINDOW, LONG = 9, 180
CPU = torch.device("cpu")


class Unsaved:
    def save_pretrained(self, folder):
        pass


@pytest.fixture(scope="module")
def target():
    return small.target()


def long_text(seed=1):
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(small.VOCAB, (LONG,), generator=draw).tolist()


def loaded(made, folder):
    """Return the model that `--draft folder` loads, in float64."""
    made._tokenizer = Unsaved()
    made.write(folder, torch.float64)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()


def trained_and_served(made, served):
    """Return [LONG, V] logits of a training step, and of a session that is fed token by token."""
    text = long_text()
    batch = small.batch([(text[:1], text[1:])])
    with torch.no_grad():
        learnt = next(made.predict(batch, Teacher(made.network, small.VOCAB).teach(batch), 1))
    lm = Fast().session(served)
    one_by_one = [lm.append(torch.tensor([token]), 1).logits for token in text[:-1]]
    return learnt.logits, torch.cat(one_by_one), lm


@pytest.mark.parametrize("kind", ["llama", pytest.param("qwen3", marks=pytest.mark.slow)])
def test_what_learns_sees_the_window_that_is_served(kind, tmp_path):
    model = tiny(kind, vocab=small.VOCAB, num_hidden_layers=small.LAYERS)
    made = small.student("draft", model, window=WINDOW, pruned=True)
    learnt, found, lm = trained_and_served(made, loaded(made, tmp_path))
    torch.testing.assert_close(found, learnt, rtol=0, atol=1e-9)
    assert lm._cache.layers[0].length <= lm.windows.held(LONG) < LONG
    config = made.network.config  # a mask that leaves the past open in training is seen
    config.sliding_window = 2 * WINDOW
    assert not torch.allclose(trained_and_served(made, lm.model)[0], found, atol=1e-3)


def test_a_row_learns_nothing_of_what_left_the_window(target):
    """The first tokens change nothing beyond the reach of two layers."""
    made = small.student("draft", target, window=WINDOW)
    text = long_text()
    other = [(token + 1) % small.VOCAB for token in text[:50]] + text[50:]
    one, two = (laws(made.network, each) for each in (text, other))
    reach = 50 + 2 * (WINDOW - 1)
    assert torch.equal(one[reach:], two[reach:])
    assert not torch.equal(one[reach - 1], two[reach - 1])


def halved(model):
    """Return a copy that writes nothing from one half of its heads and channels, at random."""
    draw = torch.Generator().manual_seed(3)
    made = prune_and_window(model, False, 100)
    for layer in made.model.layers:
        heads = torch.randperm(2, generator=draw)[:1].item()
        layer.self_attn.o_proj.weight.data[:, 16 * heads : 16 * heads + 16] = 0
        channels = torch.randperm(48, generator=draw)[:24]
        layer.mlp.down_proj.weight.data[:, channels] = 0
    return made.double()


def test_heads_and_channels_that_write_nothing_are_pruned_first(target):
    whole = halved(target)
    text = long_text()[:60]
    part = prune_and_window(whole, True, None).double()
    sizes = part.config.num_attention_heads, part.config.intermediate_size, part.config.head_dim
    assert sizes == (2, 24, 8)
    torch.testing.assert_close(laws(part, text), laws(whole, text), rtol=0, atol=1e-5)
    assert not torch.allclose(
        laws(prune_and_window(target, True, None).double(), text), laws(target, text), atol=1e-2
    )


@pytest.mark.parametrize("more", [{"kind": "gpt2"}, {"kind": "llama", "mlp_bias": True}], ids=str)
def test_an_architecture_without_a_window_is_refused(more):
    with pytest.raises(UsageError):
        prune_and_window(tiny(more.pop("kind"), vocab=small.VOCAB, **more), False, WINDOW)


def test_an_architecture_that_is_no_llama_is_not_pruned():
    with pytest.raises(UsageError):
        prune_and_window(tiny("gpt2", vocab=small.VOCAB), True, None)
