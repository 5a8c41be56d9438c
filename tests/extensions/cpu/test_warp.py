"""Laws by the kernel: those of torch in double precision, up to rounding."""

from dataclasses import dataclass, fields

import pytest
import torch

from spsbench.extensions.cpu.kernels.native import KINDS, missing
from spsbench.extensions.cpu.warp import KernelWarp
from spsbench.loop.sampling import MANY, Warp, peaks

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.skipif(missing(torch.float32) is not None, reason="needs kernels"),
]
dtypes = pytest.mark.parametrize("dtype", KINDS, ids=str)
WARPS = (
    *({"temperature": 0.8}, {"top_p": 0.95}, {"top_p": 0.3}, {"temperature": 2.0, "top_p": 0.9}),
    *({"top_k": 5}, {"top_k": 40, "top_p": 0.8}, {"min_p": 0.1}),
    {"temperature": 0.6, "top_k": 9, "top_p": 0.99, "min_p": 0.02},
)
LEAST = 1e-30  # the kernel's weights end at exp(-87)
SPREADS = {"flat": 0.5, "usual": 3.0, "peaked": 20.0}


def logits_of(size, spread, dtype, rows=3):
    return (torch.randn(rows, size, generator=torch.Generator().manual_seed(size)) * spread).to(
        dtype
    )


@dtypes
@pytest.mark.parametrize("spread", SPREADS.values(), ids=SPREADS)
@pytest.mark.parametrize("size", [1, 15, 16, 700, MANY, MANY + 5, 49152])
def test_laws_are_those_of_torch(size, spread, dtype):
    logits = logits_of(size, spread, dtype)
    for settings in WARPS:
        found, wanted = KernelWarp(**settings)(logits), Warp(**settings)(logits.double())
        assert (found.sum(-1) - 1).abs().max() < 1e-5
        # A token at the edge of a nucleus may be on either side of a sum in another order.
        edge = wanted.where(wanted > 0, 1.0).amin(-1) if settings.get("top_p") else 0.0
        assert ((found - wanted).abs().sum(-1) <= 1e-5 + 3 * edge).all()
        kept = (found > LEAST).sum(-1) - (wanted > LEAST).sum(-1)
        assert kept.abs().max() <= (1 if settings.get("top_p") else 0)


@dtypes
def test_of_equal_tokens_the_first_are_kept(dtype):
    logits = torch.zeros(2, MANY, dtype=dtype)
    logits[1, [7, 4000]] = 3.0
    found = KernelWarp(top_p=0.25)(logits)
    assert found[0].nonzero().flatten().tolist() == list(range(MANY // 4))
    assert found[1, [7, 4000]].min() > found[1, 0] > 0 == found[1, -1]
    assert torch.equal(KernelWarp(top_k=1)(logits)[1] > 0, logits[1] == 3)


@dtypes
@pytest.mark.parametrize("size", [1, 15, 700, MANY, MANY + 5])
def test_greedy_laws_are_those_of_torch(size, dtype):
    """Ties go to the first, as argmax has them; a temperature too small to divide by is 0."""
    logits = logits_of(size, 3.0, dtype, rows=4)
    logits[1], logits[2, size // 2 :] = 0.0, 50.0
    logits[3, : size - 1] = -torch.inf
    for temperature in 0.0, 1e-40:
        wanted = Warp(temperature)(logits)
        assert torch.equal(KernelWarp(temperature)(logits), wanted)
        assert torch.equal(KernelWarp(temperature, top_p=0.5)(logits), wanted)


@dtypes
def test_what_is_no_number_is_no_law(dtype):
    logits = logits_of(MANY, 1.0, dtype, rows=5)
    logits[0, 9], logits[1, 9], logits[2] = torch.nan, torch.inf, -torch.inf
    logits[3, 1:] = -torch.inf
    for settings in ({}, {"temperature": 0.0}, *WARPS):
        found = KernelWarp(**settings)(logits)
        assert found[:3].isnan().all()
        assert torch.equal(found[3], peaks(logits[3].float()))
        assert not found[4].isnan().any()


@dtypes
def test_each_row_is_made_alone(dtype):
    """Whatever lies beside it, in any shape, and with strides between rows."""
    warped, wide = KernelWarp(0.7, top_p=0.9), logits_of(2 * MANY, 4.0, dtype, rows=6)
    logits = wide[:, 3 : MANY + 3]
    laws = warped(logits)
    assert torch.equal(warped(logits[2]), laws[2])
    assert torch.equal(warped(logits[:, None].expand(-1, 2, -1))[:, 1], laws)
    assert warped(logits[:0]).shape == (0, MANY)
    assert torch.equal(warped(wide.T[3 : MANY + 3].T), laws)


def test_what_the_kernel_does_not_take_is_left_to_torch():
    exact = logits_of(MANY, 4.0, torch.float64)
    assert torch.equal(KernelWarp(0.7, top_p=0.9)(exact), Warp(0.7, top_p=0.9)(exact))
    learnt = logits_of(MANY, 4.0, torch.float32).requires_grad_()
    KernelWarp(0.7)(learnt)[0, 0].backward()
    assert learnt.grad is not None


@dataclass(frozen=True)
class FlatWarp(KernelWarp):
    """A warp with one knob more, which no kernel knows."""

    flat: float = 0.0

    def _probs(self, logits):
        return (1 - self.flat) * super()._probs(logits) + self.flat / logits.shape[-1]


@pytest.mark.parametrize("name", [field.name for field in fields(Warp)])
def test_no_field_of_a_warp_is_left_out(name):
    """Neither here, so that each is compared with torch, nor by the kernel."""
    logits = logits_of(MANY, 3.0, torch.float32)
    with_it = [settings for settings in WARPS if name in settings]
    without = [{key: settings[key] for key in settings if key != name} for settings in with_it]
    assert any(
        not torch.equal(KernelWarp(**one)(logits), KernelWarp(**other)(logits))
        for one, other in zip(with_it, without, strict=True)
    )


def test_a_field_that_the_kernel_does_not_know_is_left_to_torch():
    logits = logits_of(MANY, 3.0, torch.float32)
    flat = FlatWarp(0.7, top_p=0.9, flat=0.5)
    assert torch.equal(flat(logits), flat._probs(logits))
    off = FlatWarp(0.7, top_p=0.9)
    assert torch.equal(off(logits), KernelWarp(0.7, top_p=0.9)(logits))
