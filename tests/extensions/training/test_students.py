"""What a student foretells while it learns is what its drafter foretells from the same folder."""

import pytest
import torch

from spsbench.errors import DataError, UsageError
from spsbench.extensions.training.acceptance import measure_acceptance
from spsbench.extensions.training.batches import Teacher
from spsbench.extensions.training.students.draft import open_start
from spsbench.extensions.training.students.eagle import unroll_mask
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Context, Scores
from tests.extensions.training import small
from tests.heads.released import released
from tests.heads.stage import HeadSite
from tests.variants import first

pytestmark = pytest.mark.numeric


def led(kind, made, model, text, path):
    """By the drafter in rounds: [places][depth] logits of the tokens of a text, led along it."""
    from spsbench.plugins import plug_in
    from spsbench.spec import Spec

    site = HeadSite(small.folder(kind, made, path), model)
    drafter = plug_in("drafters", Spec(kind)).open(site)
    ids = text[0] + text[1]
    with torch.inference_mode():
        out = model(input_ids=torch.tensor([ids]), output_hidden_states=True, use_cache=False)
    found = []
    for place in range(len(text[0]), len(ids)):
        hidden = {layer: out.hidden_states[layer][0, : place - 1] for layer in drafter.layers}
        front = drafter._frontier
        drafter.begin(ids[:place], Scores(out.logits[0, :0], hidden))
        context = Context(ids[:place], Warp(), None, None)
        front.settle(context)
        front.depth(context, 3)
        laws = [front.root(context)[0]]
        for d in range(min(3, len(ids) - place) - 1):
            laws.append(front.feed(torch.tensor([ids[place + d]]), [d], [d - 1])[0])
        found.append(laws)
    return found


@pytest.mark.parametrize("kind", first(3, small.KINDS[1:]))
def test_a_head_learns_what_it_drafts(kind, model, texts, tmp_path):
    made = small.student(kind, model)
    batch = small.batch(texts[:3])
    output = Teacher(model, small.VOCAB).teach(batch)
    with torch.no_grad():
        guesses = list(made.predict(batch, output, 3))
    wide = batch.ids.shape[1]
    for number, text in enumerate(texts[:3]):
        expected = led(kind, made, model, text, tmp_path / str(number))
        checked = 0
        for d, guess in enumerate(guesses):
            for row, logits in zip(guess.rows.tolist(), guess.logits, strict=True):
                place = row - number * wide + 1 - d  # where its round begins
                if row // wide != number or not 0 <= place - len(text[0]) < len(expected):
                    continue
                theirs = expected[place - len(text[0])][d]
                torch.testing.assert_close(logits, theirs, atol=2e-5, rtol=1e-4)
                checked += 1
        assert checked > 25


def test_a_row_sees_the_text_before_its_draft_and_the_draft():
    """Row 3 after a draft of two tokens: rows 0 and 1 of the target, then its own two."""
    found = unroll_mask(2, 5, 2, torch.device("cpu"))[3].view(3, 10)
    assert [row.nonzero()[:, 0].tolist() for row in found] == [[0, 1], [2], [3]]


def test_the_target_itself_is_kept_whole(model, texts):
    """A student that is the target has acceptance 1 at every depth, and tau K + 1."""
    made = small.student("draft", model)
    made.network = model
    found = measure_acceptance(made, Teacher(model, small.VOCAB), [small.batch(texts[:6])], Warp())
    assert [round(share.value, 5) for share in found.alpha] == [1.0] * 8
    assert found.tau(8) == pytest.approx(9.0, abs=1e-4)


def test_reach_is_what_rounds_keep_by_enumeration(model):
    """Over all texts of two tokens, weighed by q: the chance that a draft of two is kept whole.

    A draft x is kept whole with chance prod min(1, q/p), so the sum over drafts of prod min(p, q).
    """
    made = small.student("draft", model)
    made.most = made.depth = 2
    pairs = [([3, 1, 4], [a, b]) for a in range(small.VOCAB) for b in range(small.VOCAB)]
    batch = small.batch(pairs)
    with torch.no_grad():
        q, p = (
            each(input_ids=batch.ids, use_cache=False).logits.softmax(-1)
            for each in (model, made.network)
        )
    a, b, each = batch.ids[:, 3], batch.ids[:, 4], torch.arange(len(pairs))
    least = q[:, 2:4].minimum(p[:, 2:4])
    wanted = float((least[each, 0, a] * least[each, 1, b]).sum())
    weight = q[each, 2, a] * q[each, 3, b]
    chances = [
        measure_acceptance(made, Teacher(model, small.VOCAB), [small.batch([pair])], Warp())
        .reach[1]
        .value
        for pair in pairs[:: small.VOCAB + 1]
    ]
    # the estimate at a text: coin of its first token, overlap at its second
    coin = (p[each, 2, a] / q[each, 2, a]).clamp(max=1)
    overlap = least[:, 1].sum(-1)
    found = (coin * overlap)[:: small.VOCAB + 1]
    torch.testing.assert_close(torch.tensor(chances), found, atol=1e-5, rtol=1e-4)
    assert float((weight * coin * overlap).sum()) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("kind", ["eagle3", "medusa"])
def test_a_head_cannot_know_more_tokens_than_its_target(kind, model):
    with pytest.raises(UsageError):
        small.student(kind, model, draft_vocab=small.VOCAB + 1)


def test_a_start_with_pickled_weights_is_not_given_random_ones(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(DataError):
        open_start(tmp_path, 0, None, 8)


@pytest.mark.parametrize("target", ["deepseek_v3", "qwen3_5_text"])
def test_a_prediction_layer_begins_as_the_targets_last_one_of_its_kind(target, tmp_path):
    """Latent attention with experts, and a gated layer whose norms count from zero."""
    model = released(tmp_path / "target", target, plant=False).float()
    model.requires_grad_(True)
    made = small.student("mtp", model)
    layer = {name: w for name, w in made.network.released().items() if name.startswith("layer.")}
    assert layer
    for name, weight in model.model.layers[-1].state_dict().items():
        own = made.network.layer.layer.state_dict()[name]
        assert torch.equal(own, weight), name
    text = small.batch([([3, 1, 4], [1, 5, 2, 6, 5, 3])])
    guesses = list(made.predict(text, Teacher(model, small.VOCAB).teach(text), 2))
    sum(guess.logits.sum() for guess in guesses).backward()
    assert all(weight.grad is not None for weight in made.network.fc.parameters())
    with torch.no_grad():
        again = HeadSite(small.folder("mtp", made, tmp_path / "head"), model)
    assert again.drafter()._frontier.network.released().keys() == made.network.released().keys()
