"""Distributions against transformers' own warpers; draws at the ends of the unit interval; NaN."""

import math

import numpy as np
import pytest
import torch
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from spsbench.loop import sampling
from spsbench.loop.sampling import MANY, Warp, residual, sample, without_replacement

pytestmark = pytest.mark.numeric

ALMOST_ONE = 1 - 2**-53


def logits(rows=40, vocab=30, seed=0):
    return 3 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


WARPERS = {
    "top_k": (TopKLogitsWarper, (1, 2, 7, 29, 30, 99)),
    "top_p": (TopPLogitsWarper, (0.01, 0.3, 0.9, 0.999)),
    "min_p": (MinPLogitsWarper, (1e-9, 0.05, 0.3, 1.0)),
}


@pytest.mark.parametrize("knob", WARPERS)
def test_each_cut_is_that_of_transformers(knob):
    (theirs, values), x = WARPERS[knob], logits().double()
    for value in values:
        expected = theirs(value)(None, x).softmax(-1)
        torch.testing.assert_close(Warp(**{knob: value})(x), expected, rtol=0, atol=1e-12)


def test_the_order_is_temperature_top_k_top_p_min_p():
    x = logits().double()
    expected = TopPLogitsWarper(0.8)(None, TopKLogitsWarper(6)(None, x / 0.6))
    torch.testing.assert_close(Warp(0.6, 6, 0.8)(x), expected.softmax(-1), rtol=0, atol=1e-12)
    expected = MinPLogitsWarper(0.2)(None, expected).softmax(-1)
    torch.testing.assert_close(Warp(0.6, 6, 0.8, 0.2)(x), expected, rtol=0, atol=1e-12)


KEPT = [  # weights, and the tokens that a warp keeps
    (Warp(min_p=0.4), [0.5, 0.25, 0.125, 0.125], [0, 1]),  # of the likeliest
    (Warp(min_p=0.4), [0.25] * 4, [0, 1, 2, 3]),
    (Warp(top_k=2), [1.0, 3.0, 1.0, 0.5], [0, 1, 2]),  # a tie with the second
    (Warp(top_p=0.6), [1.0] * 4, [0, 1, 2]),  # of equal ones the first
    (Warp(0), [1.0, 2.0, 2.0], [1]),
    (Warp(), [1.0, 0.0], [0]),
]


@pytest.mark.parametrize(("warp", "weights", "kept"), KEPT, ids=str)
def test_which_tokens_are_kept(warp, weights, kept):
    logits = torch.tensor(weights).log().double()
    assert warp(logits).nonzero().flatten().tolist() == kept
    assert torch.equal(warp(torch.stack([logits] * 2))[1], warp(logits))


WITHOUT_MEANING = {
    "temperature": (-1.0, math.nan, math.inf),
    "top_k": (-2,),
    "top_p": (0.0, 1.5),
    "min_p": (1.5,),
}


@pytest.mark.parametrize(
    ("setting", "value"),
    [(name, value) for name, some in WITHOUT_MEANING.items() for value in some],
)
def test_settings_without_a_meaning_are_refused(setting, value):
    with pytest.raises(ValueError):
        Warp(**{setting: value})


@pytest.mark.parametrize("temperature", [0.0, 1e-12, 1e-300])
def test_temperature_towards_zero_is_the_argmax(temperature):
    x = torch.cat([logits(), 1e30 * logits(seed=1)])
    law = Warp(temperature)(x)
    assert torch.equal(law, torch.nn.functional.one_hot(x.argmax(-1), 30).to(law.dtype))


@pytest.mark.parametrize("warp", [Warp(), Warp(0), Warp(0.5, 2), Warp(1, 0, 0.5, 0.1)], ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_no_number_stays_none_and_spoils_no_other(warp, bad):
    x = logits(3)
    x[1, 4] = bad
    law = warp(x)
    assert not law[1].sum().isfinite()
    assert torch.equal(law[[0, 2]], warp(x[[0, 2]]))
    assert 0 <= int(sample(law, torch.full((3,), 0.5).double())[1]) < 30


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("u", [0.0, 2**-53, 0.5, ALMOST_ONE])
def test_a_token_of_weight_zero_is_never_drawn(dtype, u):
    generator = torch.Generator().manual_seed(4)
    for _ in range(200):
        law = torch.rand(9, generator=generator, dtype=dtype)
        law[torch.rand(9, generator=generator) < 0.6] = 0
        if law.sum() > 0:
            assert law[sample(law, torch.tensor(u, dtype=torch.float64))] > 0
    for least in 1e-38, torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps:
        tiny = torch.tensor([0, least, 0, least, 0], dtype=dtype)
        assert tiny[sample(tiny, torch.tensor(u, dtype=torch.float64))] > 0


def parallel_sums(law):
    """Prefixes as the threads of a device add them: each takes what stands 1, 2, 4 ... before."""
    sums, ahead = law.double(), 1
    while ahead < sums.shape[-1]:
        sums = torch.cat([sums[..., :ahead], sums[..., ahead:] + sums[..., :-ahead]], -1)
        ahead *= 2
    return sums


def mended(law):
    return sampling._mend_cdf(parallel_sums(law), law)


def test_nor_where_a_device_adds_in_parallel(monkeypatch):
    """Both sides of every step, in sums whose rounding differs from prefix to prefix."""
    generator, wrong = torch.Generator().manual_seed(5), 0
    for _ in range(20):
        law = torch.rand(1, 29, generator=generator, dtype=torch.float64)
        law[torch.rand(1, 29, generator=generator) < 0.7] = 0
        steps = parallel_sums(law)[0]
        edges = torch.cat([steps, torch.nextafter(steps, torch.zeros_like(steps))]) / steps[-1]
        u = edges.clamp(max=ALMOST_ONE)
        laws = law.repeat(len(u), 1)
        monkeypatch.setattr(sampling, "cumulative", mended)
        assert (law[0, sample(laws, u)] > 0).all()
        monkeypatch.setattr(sampling, "cumulative", parallel_sums)
        wrong += int((law[0, sample(laws, u)] == 0).sum())
    assert wrong > 0  # without more ado such sums do draw one


@pytest.mark.parametrize("size", [1, 8, 77])
def test_bits_of_a_mask_are_the_mask(size):
    mask = torch.rand(3, 2, size, generator=torch.Generator().manual_seed(size)) < 0.5
    bits = torch.from_numpy(np.packbits(mask.numpy(), axis=-1, bitorder="little"))
    assert torch.equal(sampling.mask_of_bits(bits, size), mask)


def test_a_draw_inverts_the_distribution_function():
    law = torch.tensor([0.2, 0.0, 0.5, 0.3]).double()
    for u, token in (0, 0), (0.19, 0), (0.21, 2), (0.69, 2), (0.71, 3), (ALMOST_ONE, 3):
        assert int(sample(law, torch.tensor(u).double())) == token
        assert int(sample(7 * law, torch.tensor(u).double())) == token
    rows = sample(law.expand(2, 3, 4), torch.full((2, 3), 0.5).double())
    assert rows.tolist() == [[2] * 3] * 2


def test_the_residual_is_the_positive_part_or_q():
    q, p = (
        torch.tensor([[0.5, 0.3, 0.2]] * 3),
        torch.tensor([[0.2, 0.6, 0.2], [0.0] * 3, [0.0] * 3]),
    )
    p[2] = q[2]
    expected = torch.tensor([[0.3, 0, 0], [0.5, 0.3, 0.2], [0.5, 0.3, 0.2]])
    torch.testing.assert_close(residual(q, p), expected)


@pytest.mark.parametrize("draw", [sample, sampling.sample_by_blocks])
def test_many_tokens_are_searched_block_by_block_with_the_same_result(draw):
    """Within one step of the running sum, and never a token of weight 0."""
    generator = torch.Generator().manual_seed(4)
    laws = torch.rand(3, MANY + 77, generator=generator, dtype=torch.float64) ** 8
    laws = laws.where(torch.rand(laws.shape, generator=generator) < 0.3, 0.0)
    laws[2, :-1] = 0.0
    laws[2, -1] = 0.2
    for u in 0.0, 0.3, 0.77, 1 - 2**-53:
        drawn = draw(laws, torch.full((3,), u, dtype=torch.float64))
        cdf = laws.cumsum(-1)
        wanted = torch.searchsorted(cdf, u * cdf[:, -1:], right=True)[:, 0]
        assert (laws.gather(1, drawn[:, None]) > 0).all()
        between = (
            cdf.gather(1, drawn[:, None])[:, 0]
            - cdf.gather(1, wanted.clamp(max=MANY + 76)[:, None])[:, 0]
        )
        assert between.abs().max() < 1e-9
    assert int(drawn[2]) == MANY + 76


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_one_hot_probs_over_many_tokens_are_those_over_few(dtype):
    """They are found another way: ties, rows that are no numbers, and rows of nothing but zero."""
    warp, wide = Warp(0.0), 9000
    logits = torch.randn(7, wide, generator=torch.Generator().manual_seed(1)).to(dtype)
    logits[1, [5, 70, 8999]] = 100.0
    logits[2, 44], logits[3, 44] = math.nan, math.inf
    logits[4], logits[5, :] = -math.inf, 0.0
    found, full = warp(logits), logits if dtype == torch.float64 else logits.float()
    peak, best = full.max(-1, keepdim=True)
    exact = torch.zeros_like(full).scatter_(-1, best, 1.0) + (peak - peak)
    assert found.dtype == exact.dtype
    torch.testing.assert_close(found, exact, rtol=0, atol=0, equal_nan=True)
    assert found[1].nonzero().tolist() == [[5]]
    assert found[5].nonzero().tolist() == [[0]]
    assert found[2:5].isnan().all()
    assert torch.equal(warp(logits[0]), exact[0])
    assert torch.equal(warp(logits[None, :2]), exact[None, :2])


def test_a_device_and_gradients_have_the_nucleus_of_a_processor():
    """They sort the whole row; no row, and many tokens with a gradient, are not cut in pieces."""
    for law in laws(3, 100, 5), torch.full((1, 100), 0.01):
        sorted_whole = sampling.nucleus(law.clone().requires_grad_(), 0.5).detach()
        torch.testing.assert_close(sampling.nucleus(law.clone(), 0.5), sorted_whole)
    assert Warp(0.7, top_p=0.9)(torch.empty(0, MANY)).shape == (0, MANY)
    assert Warp()(torch.zeros(40, MANY, requires_grad=True)).requires_grad


# Children of one node: independent, or each from what those before it left.


def laws(rows, vocab, seed, zeros=False):
    generator = torch.Generator().manual_seed(seed)
    law = torch.rand(rows, vocab, generator=generator)
    if zeros:
        law *= torch.rand(rows, vocab, generator=generator) < 0.6
        law[:, 0] += 1e-3
    return law / law.sum(-1, keepdim=True)


def uniforms(rows, width):
    return torch.rand(rows, width, dtype=torch.float64, generator=torch.Generator().manual_seed(9))


def test_without_replacement_is_drawing_from_what_is_left():
    for zeros in False, True:
        law, u = laws(400, 50, 2, zeros), uniforms(400, 6)
        drawn, left = without_replacement(law, u), law.clone()
        rows = torch.arange(400)
        for j in range(6):
            assert torch.equal(drawn[:, j], sample(left, u[:, j]))
            assert (left[rows, drawn[:, j]] > 0).all()
            left[rows, drawn[:, j]] = 0


@pytest.mark.parametrize("size", [300, 9000])
def test_a_high_temperature_keeps_k_tokens(size):
    """Ties with the k-th are those of logits: divided by much, different ones become equal."""
    logits = 1 + torch.arange(size).flip(0)[None] * 2.0**-23  # all different, by little
    for temperature in (1.0, 3.0, 1e5, 1e30):
        law = Warp(temperature, top_k=7)(logits)
        assert law.nonzero()[:, 1].tolist() == list(range(7))
        small = Warp(temperature, top_k=7)(torch.cat([logits * 1e-6, torch.ones(1, 1)], -1))
        assert small.count_nonzero() == 7
