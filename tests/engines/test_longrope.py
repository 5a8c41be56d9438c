"""Two sets of rotary factors: the text is that of transformers on either side of the border."""

import copy

import pytest
import torch
from transformers import GenerationConfig, Phi3Config

from spsbench.audit.exact.draft_kinds import FixedDrafter
from spsbench.engines import eager
from spsbench.engines.eager import EagerLM
from spsbench.engines.session.longrope import open_at_border
from spsbench.methods.drafters.model import ModelDrafter
from spsbench.methods.verifiers.match import Match
from spsbench.plugins import make
from spsbench.registry import entries
from spsbench.spec import Spec
from tests.decoding import output, rounds_of
from tests.oracles import models
from tests.oracles.models import laws, tiny
from tests.variants import first

pytestmark = pytest.mark.numeric

BORDER, VOCAB = 20, 24


@pytest.fixture(scope="module")
def pair():
    """A tiny Phi-3 whose two sets differ much, and a noisy copy of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(models.ROTARY, "phi3", Phi3Config)
        patch.setattr(eager, "PREFILL_CHUNK", 7)  # so that prompts go in chunks
        rope = {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "factor": 3.2,
            "short_factor": [1.0] * 4,
            "long_factor": [7.0, 5.0, 3.0, 2.0],
            "original_max_position_embeddings": BORDER,
        }
        given = {"rope_parameters": rope, "original_max_position_embeddings": BORDER}
        made = [tiny("phi3", vocab=VOCAB, context=64, noise=x, **given) for x in (0.0, 0.2)]
        yield made[0], made[1]


def theirs(model, prompt, new):
    config = GenerationConfig(max_new_tokens=new, do_sample=False, pad_token_id=0)
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    return out[0, len(prompt) :].tolist()


def ours(engine, models, prompt, new, k, tree):
    target, draft = (engine.session(model) for model in models)
    drafter = ModelDrafter(draft)
    if tree:
        drafter = FixedDrafter([3, 5, 7, 9, 3, 5], [-1, -1, 0, 0, 1, 2])
    return output(rounds_of(target, drafter, new, prompt=prompt, k=k, verifier=Match()))


@pytest.mark.parametrize("engine", [entry.name for entry in entries("engines")])
@pytest.mark.parametrize("length", first(2, (BORDER - 8, BORDER + 1, BORDER, BORDER + 9)))
def test_the_text_is_that_of_transformers(pair, length, engine):
    opened, prepared = make("engines", Spec(engine)), [copy.deepcopy(model) for model in pair]
    for model in prepared:
        opened.prepare(model, threads=1)
    prompt, new = [(5 * i + 3) % VOCAB for i in range(length)], 16
    wanted = theirs(pair[0], prompt, new)
    for k, tree in (0, False), (4, False), (3, True):
        assert ours(opened, prepared, prompt, new, k, tree) == wanted


def test_a_row_is_that_of_a_text_that_ends_with_it(pair):
    """Blocks and trees across the border, with rejections that lead back before it."""
    model = pair[0]

    def alone(text):
        return laws(model, text)[-1]

    lm = open_at_border(lambda: EagerLM(model, layers=(1,)), model)
    text = [(7 * i + 1) % VOCAB for i in range(BORDER - 3)]
    lm.append(torch.tensor(text), keep=0)
    for back in 1, 4, 2, 0, 5:
        block = [(11 * back + 3 * i) % VOCAB for i in range(6)]
        scores = lm.append(torch.tensor(block), keep=6)
        rows = [alone(text + block[: i + 1]) for i in range(6)]
        torch.testing.assert_close(scores.logits, torch.stack(rows))
        assert scores.hidden[1].shape == (6, 32)
        lm.commit(len(text) + 6 - back if back < 4 else len(text))
        text = (text + block)[: lm.length][: BORDER - 2]
        lm.commit(len(text))
    nodes, parents = [3, 5, 7, 9, 3, 5], [-1, -1, 0, 0, 1, 2]
    scores = lm.append(torch.tensor([8, *nodes]), 7, torch.tensor(parents))
    paths = [[8]]
    for node, parent in zip(nodes, parents, strict=True):
        paths.append([*paths[parent + 1], node])
    truth = torch.stack([alone(text + path) for path in paths])
    torch.testing.assert_close(scores.logits, truth)
    for cut in 1, 2, 4:  # and in two passes, of which each may lie on either side
        lm.commit(len(text))
        first = lm.append(torch.tensor([8, *nodes[:cut]]), 1 + cut, torch.tensor(parents[:cut]))
        rest = lm.append(torch.tensor(nodes[cut:]), 6 - cut, torch.tensor(parents))
        torch.testing.assert_close(torch.cat([first.logits, rest.logits]), truth)
        assert rest.hidden[1].shape == (6 - cut, 32)
    lm.commit(len(text) + 1, [0, 2, 5])
    after = lm.append(torch.tensor([4]), keep=1).logits[0]
    torch.testing.assert_close(after, alone([*text, 8, 3, 7, 5, 4]))
