"""A trained EAGLE-3 head as vllm-project/speculators itself reads it: config, tensors, and logits.

That package wants an older transformers than ours, so it is in no environment of this project; with
one that has both: `python -m pytest tests/extensions/training/test_speculators.py`.
"""

import warnings

import pytest
import torch

from tests.extensions.training import small

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    speculators = pytest.importorskip(
        "speculators", reason="vllm-project/speculators is not installed", exc_type=ImportError
    )

from spsbench.extensions.training.batches import Teacher

pytestmark = pytest.mark.filterwarnings("ignore")


def loaded(made, model, folder):
    """The head as that package opens it, its target's embeddings with it."""
    model.save_pretrained(folder / "target")
    made._name = str(folder / "target")
    made.write(folder / "head", torch.float32)
    config = speculators.SpeculatorModelConfig.from_pretrained(str(folder / "head"))
    config.transformer_layer_config._attn_implementation = "eager"
    found = speculators.SpeculatorModel.from_pretrained(str(folder / "head"), config=config)
    found.load_verifier_weights()
    return found.eval()


@pytest.mark.parametrize("known", [15, small.VOCAB])
def test_that_package_reads_what_was_trained(known, model, tmp_path):
    made = small.student("eagle3", model, draft_vocab=known)
    network, found = made.network, loaded(made, model, tmp_path)
    assert type(found).__name__ == "Eagle3DraftModel"
    assert found.config.draft_vocab_size == known
    assert tuple(found.target_layer_ids) == network.layers
    theirs = found.state_dict()
    for name, weight in network.state_dict().items():
        assert torch.equal(theirs[name.replace("stack.0", "layers.0")], weight), name
    if made.ids is not None:
        assert torch.equal(found.d2t + torch.arange(known), made.ids)
        assert found.t2d.nonzero()[:, 0].tolist() == made.ids.tolist()


@torch.no_grad()
def test_that_package_foretells_the_same(model, tmp_path):
    """Its training-time test over a text, beside ours: its row t of pass d is our row t + d."""
    made = small.student("eagle3", model)
    found = loaded(made, model, tmp_path)
    text = small.texts(model, count=1)[0]
    batch = small.batch([text])
    output = Teacher(model, small.VOCAB).teach(batch)
    guesses = list(made.predict(batch, output, 3))

    logits = []
    found.lm_head.register_forward_hook(lambda module, fed, out: logits.append(out[0]))
    rows = batch.ids.shape[1] - 1
    hidden = torch.cat([output.hidden[layer][:, :-1] for layer in made.network.layers], -1)
    found(hidden, batch.ids[:, 1:], torch.zeros(1, rows, dtype=torch.int64), ttt_steps=3)
    assert len(logits) == 3
    for d, guess in enumerate(guesses):
        at = guess.rows - 1 - d  # row r of the batch is told by our row r - 1
        torch.testing.assert_close(logits[d][at], guess.logits, atol=2e-5, rtol=1e-4)
