"""Where two greedy texts part: rounding, or a bug."""

import pytest
import torch

from spsbench.audit.statistical.comparison import Compared, GreedyKind
from spsbench.audit.statistical.forward import Scorer
from spsbench.audit.statistical.greedy import after_block, compare_greedy
from tests.oracles.models import tiny
from tests.stateful_models import Oracle, stateful

PROMPT = [1, 5, 2]


def last_logits(model, text):
    return torch.from_numpy(scorer(model).logits(text, [0])[-1]).float()


def scorer(model):
    return Scorer(model, 12, reload=False)


def part(model, *texts_and_k):
    return compare_greedy(scorer(model), PROMPT, *texts_and_k)


def greedy(model, n):
    text = list(PROMPT)
    for _ in range(n):
        text.append(int(last_logits(model, text).argmax()))
    return text[len(PROMPT) :]


def test_equal_texts_are_identical_and_an_early_end_is_a_bug():
    model = tiny("llama")
    ars = greedy(model, 6)
    assert part(model, ars, ars, 4).kind == "identical"
    for shorter in (ars[:3], []):
        assert part(model, ars, shorter, 4) == Compared("", GreedyKind.BUG)


def test_a_wrong_token_is_a_bug():
    model = tiny("llama")
    ars = greedy(model, 6)
    for at in range(6):
        sps = [*ars[:at], (ars[at] + 1) % 12, *ars[at + 1 :]]
        found = part(model, ars, sps, 4)
        assert (found.position, found.tokens) == (at, (ars[at], sps[at]))
        assert found.kind == "bug"
        assert found.gap > found.tolerance


def with_twins(model, token, twin, apart=0.0):
    """The row of `twin` is that of `token`, but for a shift."""
    with torch.no_grad():
        head = model.lm_head.weight
        head[twin] = head[token] * (1 - apart)
    return model


def test_rounding_between_equal_logits_is_a_tie():
    # In bfloat16 one step and one block differ by more than two rows that are nearly the same.
    precise = tiny("llama", dtype=torch.float32, tie_word_embeddings=False)
    twin = ((best := greedy(precise, 1)[0]) + 1) % 12
    model = with_twins(precise, best, twin, apart=1e-6).to(torch.bfloat16)
    found = part(model, [best], [twin], 2)
    assert found.kind == "tie"
    assert found.gap <= found.tolerance
    assert model.dtype == torch.bfloat16


def test_a_third_token_is_no_tie_however_near():
    model = tiny("llama", dtype=torch.float32, tie_word_embeddings=False)
    best = greedy(model, 1)[0]
    others = [token for token in range(12) if token != best][:2]
    for twin in others:
        model = with_twins(model, best, twin, apart=1e-6)
    model = model.to(torch.bfloat16)
    row = last_logits(model, PROMPT)
    first, second = row.topk(2).indices.tolist()
    third = ({best, *others} - {first, second}).pop()
    found = part(model, [first], [third], 2)
    assert found.kind == "bug"


# Models with states: references are fed one by one, so that no bug passes as a tie. In Nemotron-H,
# passes over several tokens have another distribution than passes over one.

STATES_PROMPT = [1, 5, 2, 7, 7, 3, 9, 0]
TEXT = [4, 4, 8, 1, 10, 2, 6]


def cacheless(model, text):
    with torch.inference_mode():
        return model(torch.tensor([text]), use_cache=False).logits[0, -1].float().cpu()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_scorer_of_a_model_with_states_feeds_one_by_one(dtype):
    model = stateful("nemotron_h", dtype=dtype)
    rows = torch.from_numpy(Scorer(model, 12, reload=False).logits(STATES_PROMPT, TEXT))
    known = Oracle(model.float(), STATES_PROMPT).rows([*STATES_PROMPT, *TEXT[:-1]])
    assert (rows - known).abs().max() < 1e-4
    assert (rows[-1] - cacheless(model, [*STATES_PROMPT, *TEXT[:-1]])).abs().max() > 5e-4


def logits_one_by_one(model):
    """Logits after the text, fed one by one."""
    rows = Scorer(model, 12, reload=False).logits(STATES_PROMPT, [*TEXT, 0])
    return torch.from_numpy(rows[-1]).float()


def test_a_divergence_within_the_distance_of_two_probs_is_a_bug():
    model = stateful("nemotron_h", dtype=torch.float32)
    text = torch.tensor([*STATES_PROMPT, *TEXT])
    best = int(logits_one_by_one(model).argmax())
    twin = (best + 1) % 12
    with torch.no_grad():
        model.lm_head.weight[twin] = model.lm_head.weight[best] * (1 - 1e-4)
    row = logits_one_by_one(model)
    gap = float((row[best] - row[twin]).abs())
    assert 0 < gap < float((row - cacheless(model, text.tolist())).abs().max())
    scorer = Scorer(model, 12, reload=False)
    found = compare_greedy(scorer, STATES_PROMPT, [*TEXT, best], [*TEXT, twin], 3)
    assert found.kind == "bug"
    assert found.tolerance < gap


def test_steps_and_blocks_of_a_session_are_the_reference_up_to_rounding():
    model, text, start = (
        stateful("jamba"),
        torch.tensor([*STATES_PROMPT, *TEXT]),
        len(STATES_PROMPT) - 1,
    )
    known = logits_one_by_one(model)
    for size in 1, 2, 5, 21:
        assert torch.allclose(after_block(model, text, size, start), known, atol=1e-5)
