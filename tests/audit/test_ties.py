"""Where two greedy texts part: rounding, or a bug."""

import torch

from spsbench.audit.statistical.comparison import Compared, GreedyKind
from spsbench.audit.statistical.forward import Scorer
from spsbench.audit.statistical.greedy import after_block, compare
from tests.oracles.models import tiny

PROMPT = [1, 5, 2]


def last_logits(model, text):
    return torch.from_numpy(scorer(model).logits(text, [0])[-1]).float()


def scorer(model):
    return Scorer(model, 12, reload=False)


def part(model, *texts_and_k):
    return compare(scorer(model), PROMPT, *texts_and_k)


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


def test_the_second_best_token_far_behind_is_a_bug():
    model = tiny("llama")
    ars = greedy(model, 4)
    second = int(last_logits(model, [*PROMPT, *ars[:2]]).topk(2).indices[1])
    found = part(model, ars, [*ars[:2], second], 4)
    assert found.kind == "bug"


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


def test_both_ways_of_scoring_are_those_of_the_reference_up_to_rounding():
    model = tiny("llama")
    text = torch.tensor([*PROMPT, *greedy(model, 6)])
    reference = last_logits(model, text.tolist())
    for size in (1, 2, 5, 65):
        assert torch.allclose(after_block(model, text, size), reference, atol=1e-5)
