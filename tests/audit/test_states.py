"""Audits of models with states: references are fed one by one, so that no bug passes as a tie.

Nemotron-H is the case: transformers' passes over several tokens have another law than its passes
over one, and the distance of the two would excuse what is far from rounding.
"""

import pytest
import torch

from spsbench.audit.statistical.forward import Scorer
from spsbench.audit.statistical.greedy import after_block, compare
from tests.stateful_models import Oracle, stateful

PROMPT = [1, 5, 2, 7, 7, 3, 9, 0]
TEXT = [4, 4, 8, 1, 10, 2, 6]


def cacheless(model, text):
    with torch.inference_mode():
        return model(torch.tensor([text]), use_cache=False).logits[0, -1].float()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_scorer_feeds_one_by_one(dtype):
    model = stateful("nemotron_h", dtype=dtype)
    rows = torch.from_numpy(Scorer(model, 12, reload=False).logits(PROMPT, TEXT))
    known = Oracle(model.float(), PROMPT).rows([*PROMPT, *TEXT[:-1]])
    assert (rows - known).abs().max() < 1e-4
    assert (rows[-1] - cacheless(model, [*PROMPT, *TEXT[:-1]])).abs().max() > 5e-4


def last_logits(model):
    """Logits after the text, fed one by one."""
    rows = Scorer(model, 12, reload=False).logits(PROMPT, [*TEXT, 0])
    return torch.from_numpy(rows[-1]).float()


def test_weights_of_mixers_are_narrow_again_after_a_score():
    model = stateful("mamba", dtype=torch.bfloat16)
    before = {name: weight.dtype for name, weight in model.named_parameters()}
    Scorer(model, 12, reload=False).logits(PROMPT, TEXT)
    assert {name: weight.dtype for name, weight in model.named_parameters()} == before


def test_a_divergence_within_the_distance_of_two_laws_is_a_bug():
    model = stateful("nemotron_h", dtype=torch.float32)
    text = torch.tensor([*PROMPT, *TEXT])
    best = int(last_logits(model).argmax())
    twin = (best + 1) % 12
    with torch.no_grad():
        model.lm_head.weight[twin] = model.lm_head.weight[best] * (1 - 1e-4)
    row = last_logits(model)
    gap = float((row[best] - row[twin]).abs())
    assert 0 < gap < float((row - cacheless(model, text.tolist())).abs().max())
    scorer = Scorer(model, 12, reload=False)
    found = compare(scorer, PROMPT, [*TEXT, best], [*TEXT, twin], 3)
    assert found.kind == "bug"
    assert found.tolerance < gap


def test_steps_and_blocks_of_a_session_are_the_reference_up_to_rounding():
    model, text, start = stateful("jamba"), torch.tensor([*PROMPT, *TEXT]), len(PROMPT) - 1
    known = last_logits(model)
    for size in 1, 2, 5, 21:
        assert torch.allclose(after_block(model, text, size, start), known, atol=1e-5)
