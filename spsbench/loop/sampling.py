"""Logits to probabilities, and those to tokens (Chen et al. 2023, section 2 and Algorithm 2)."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from spsbench.settings.cell import WarpSettings

Numbers = np.ndarray[Any, np.dtype[Any]]

BLOCK = 256
MANY = 8192  # tokens from which on `sample` looks for a block first, and `Warp` goes row by row
PIECE = 1 << 18  # numbers of a thread at once on a CPU: what is written stays in its cache


@dataclass(frozen=True, slots=True)
class Warp(WarpSettings):
    """The map from logits to probabilities by temperature, top-k, top-p, min-p, for both models.

    Temperature 0 gives one-hot rows of the argmax, so that greedy decoding is no special case.
    `top_k` 0 is off (ties with the k-th logit are kept); `top_p` 1 and `min_p` 0 are off.
    """

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature is {self.temperature}: expected a number >= 0")
        if self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}: expected 0 (off) or more")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}: expected 0 < top_p <= 1")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p is {self.min_p}: expected 0 <= min_p <= 1")

    def __call__(self, logits: Tensor) -> Tensor:
        """Map [..., V] logits to probs in float32 (float64 stays); NaN or +inf gives a NaN row."""
        rows = logits.reshape(-1, logits.shape[-1])
        few = rows.shape[1] < MANY or not len(rows)
        if few or logits.device.type != "cpu" or logits.requires_grad:
            return self._probs(logits)
        probs = [self._probs(rows[some]) for some in row_slices(len(rows), logits)]
        return (probs[0] if len(probs) == 1 else torch.cat(probs)).view(logits.shape)

    def _probs(self, logits: Tensor) -> Tensor:
        """Map [..., V] logits to probs: top-k, temperature (0: one-hot), top-p, then min-p."""
        x = logits if logits.dtype == torch.float64 else logits.float()
        if self.temperature < torch.finfo(x.dtype).tiny:  # 0, or too small to divide by
            return peaks(x)
        if 0 < self.top_k < x.shape[-1]:  # by logits: a high temperature makes some probs equal
            x = x.masked_fill(x < x.topk(self.top_k).values[..., -1:], -math.inf)
        if self.temperature != 1:
            x = x - x.amax(-1, keepdim=True)  # the peak is 0: a tiny temperature cannot overflow it
            x /= self.temperature
        probs = torch.softmax(x, -1)
        probs = nucleus(probs, self.top_p) if self.top_p < 1 else probs
        if self.min_p > 0:  # Nguyen et al. 2024 (arXiv 2407.01082, section 3)
            probs = probs.where(probs >= self.min_p * probs.amax(-1, keepdim=True), 0.0)
            probs = probs / probs.sum(-1, keepdim=True)
        return probs


def send(values: Tensor, device: torch.device) -> Tensor:
    """Return `values` on `device`, copied in order of its queued work without blocking the host.

    Only pinned memory can be copied while the host goes on, so host values for a GPU are pinned
    first; PyTorch keeps them until the copy is done. Towards the CPU the host waits, because there
    the values could be read before they have come.
    """
    if values.device.type == "cpu" and device.type == "cuda":
        values = values.pin_memory()
    return values.to(device, non_blocking=device.type != "cpu")


def send_mask(mask: Tensor, device: torch.device) -> Tensor:
    """Copy a [..., V] bool mask of the host to `device`: to another one as bits, an eighth."""
    if device.type == mask.device.type:
        return mask
    bits = torch.from_numpy(np.packbits(mask.numpy(), axis=-1, bitorder="little"))
    return mask_of_bits(send(bits, device), mask.shape[-1])


def mask_of_bits(bits: Tensor, size: int) -> Tensor:
    """Return [..., size] bool of [..., ceil(size / 8)] uint8, whose lowest bits come first."""
    shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return (bits[..., None] >> shifts & 1).flatten(-2)[..., :size].bool()


def host_numbers(values: Tensor) -> list[float] | None:
    """Return [n] `values` as numbers if they are on the host; None: reading them would wait.

    None also under `vmap`, where one tensor on the CPU represents many.
    """
    if values.device.type != "cpu":
        return None
    try:
        return values.tolist()
    except RuntimeError:  # what vmap raises
        return None


def peaks(x: Tensor) -> Tensor:
    """Map [..., V] to one-hot rows of the argmax; NaN rows where the maximum is not finite."""
    wide = x.device.type == "cpu" and x.shape[-1] >= MANY and not x.requires_grad
    if wide:  # numpy finds a maximum in a tenth of torch's time
        best = torch.from_numpy(x.numpy().argmax(-1, keepdims=True))
        peak = x.gather(-1, best)
    else:
        peak, best = x.max(-1, keepdim=True)
    probs = torch.zeros_like(x).scatter_(-1, best, 1.0)
    return probs if wide and bool(peak.isfinite().all()) else probs.add_(peak - peak)


def row_slices(n: int, probs: Tensor) -> Iterator[slice]:
    """Yield slices that cover `n` rows as wide as `probs`: `PIECE` numbers a thread; a GPU: one."""
    threads = torch.get_num_threads()
    step = n if probs.device.type != "cpu" else max(1, PIECE // probs.shape[-1]) * threads
    for start in range(0, n, max(step, 1)):
        yield slice(start, min(start + step, n))


@dataclass(frozen=True, slots=True)
class ProcessedWarp:
    """A warp of logits that are processed before: (logits) -> logits, both [..., V]."""

    process: Callable[[Tensor], Tensor]
    warp: Callable[[Tensor], Tensor]

    def __call__(self, logits: Tensor) -> Tensor:
        """Map [..., V] logits to probs."""
        return self.warp(self.process(logits))


def confidence_probs(warp: Callable[[Tensor], Tensor], logits: Tensor, probs: Tensor) -> Tensor:
    """Return [..., V] probs that measure confidence: `probs`, or at temperature 0 those at 1.

    `probs` are `warp(logits)`. They are returned as they are unless `warp` is a `Warp` of
    temperature 0, perhaps inside a `ProcessedWarp`: then the softmax of `logits`, processed by the
    latter, is. A one-hot row is certain whatever the logits are. Both depend on the prefix alone.
    """
    if isinstance(warp, ProcessedWarp):
        return confidence_probs(warp.warp, warp.process(logits), probs)
    if isinstance(warp, Warp) and warp.temperature == 0:
        return logits.softmax(-1, dtype=probs.dtype)
    return probs


def nucleus(probs: Tensor, top_p: float) -> Tensor:
    """Keep the smallest set of likeliest tokens of [..., V] with mass >= `top_p`, and rescale.

    Holtzman et al. 2020, section 3.1. A token stays when the mass before it is below `top_p`, so
    the likeliest always stays; of equal tokens the one with the smaller id comes first. On a CPU
    contiguous `probs` that need no gradient are overwritten.
    """
    if probs.device.type == "cpu" and probs.numel() and not probs.requires_grad:  # as numpy needs
        probs = probs.contiguous()
        for row in probs.view(-1, probs.shape[-1]).numpy():
            _keep_nucleus(row, top_p)
        return probs
    ordered, ids = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    kept = torch.zeros_like(probs).scatter_(-1, ids, ordered * (before < top_p))
    return kept / kept.sum(-1, keepdim=True)


def _keep_nucleus(probs: Numbers, top_p: float) -> None:
    """Overwrite a row [V] by its `nucleus`, from the few tokens that can be in it; NaN stays."""
    # All tokens below this share have less than 1 - top_p together: none is in the nucleus.
    ids = np.flatnonzero(probs > 0.5 * (1 - top_p) / len(probs))
    some = probs[ids]
    falling = np.sort(some)[::-1]  # ten times as fast as a stable order of ids
    before = falling.cumsum(dtype=np.float64).astype(probs.dtype) - falling
    last = int(np.count_nonzero(before < probs.dtype.type(top_p))) - 1
    probs.fill(0 if len(ids) else np.nan)
    if len(ids):
        above, equal = some > falling[last], np.flatnonzero(some == falling[last])
        above[equal[: last + 1 - np.count_nonzero(above)]] = True
        probs[ids[above]] = some[above] / some[above].sum()


def sample(probs: Tensor, u: Tensor) -> Tensor:
    """Draw [...] int64 tokens from [..., V] weights by inverse CDF, with [...] uniforms in [0, 1).

    The weights need not sum to 1. A token of weight 0 is never drawn, whatever the rounding. A row
    of zeros, or with NaN, gives some valid id.
    """
    if probs.device.type == "cpu" and probs.shape[-1] >= MANY:
        rows, points = probs.detach().reshape(-1, probs.shape[-1]).numpy(), u.flatten().tolist()
        with np.errstate(all="ignore"):  # NaN: the loop reports it after its one host read
            drawn = [_draw_by_block(row, point) for row, point in zip(rows, points, strict=True)]
        return torch.tensor(drawn, dtype=torch.int64).view(probs.shape[:-1])
    u = send(u, probs.device)
    return sample_by_blocks(probs, u) if probs.shape[-1] >= MANY else _invert(probs, u)[0]


def sample_by_blocks(probs: Tensor, u: Tensor) -> Tensor:
    """Draw as `sample` does from many weights on any device: first the block, then the token.

    The host reads nothing. One long running sum would be the work of one of many multiprocessors.
    """
    blocks = pad(probs, (0, -probs.shape[-1] % BLOCK)).view(*probs.shape[:-1], -1, BLOCK)
    block, cdf, point = _invert(blocks.sum(-1, dtype=torch.float64), u)
    at = block.unsqueeze(-1)
    before = cdf.gather(-1, (at - 1).clamp(min=0)).where(at > 0, 0.0)
    share = (point - before) / (cdf.gather(-1, at) - before)
    within = blocks.gather(-2, at.unsqueeze(-1).expand(*at.shape, BLOCK)).squeeze(-2)
    drawn = at.squeeze(-1) * BLOCK + _invert(within, share.squeeze(-1))[0]
    return drawn.clamp(max=probs.shape[-1] - 1)


def _invert(weights: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return [...] inverse-CDF indices, [..., n] running sums, and [..., 1] u * total, < total."""
    cdf = cumulative(weights)
    total = cdf[..., -1:]
    below = torch.nextafter(total, torch.zeros_like(total))
    point = torch.minimum(u.unsqueeze(-1) * total, below)
    at = torch.searchsorted(cdf, point, right=True).squeeze(-1)
    # The clamp only matters for a NaN row, which the loop reports after its one host read.
    return at.clamp(max=weights.shape[-1] - 1), cdf, point


def cumulative(probs: Tensor) -> Tensor:
    """Return [..., V] running sums in double precision, without a step where a weight is 0."""
    cdf = probs.double().cumsum(-1)
    return cdf if probs.device.type == "cpu" else _mend_cdf(cdf, probs)


def _draw_by_block(weights: Numbers, u: float) -> int:
    """Draw as `sample` does from one row of many tokens: first the block, then the token within it.

    Ten times as fast as one long running sum: sums use all lanes of a processor, those one.
    """
    sums = np.add.reduceat(weights, np.arange(0, len(weights), BLOCK))
    block, u_in_block = _place(sums, u)
    return block * BLOCK + _place(weights[block * BLOCK : (block + 1) * BLOCK], u_in_block)[0]


def _place(weights: Numbers, u: float) -> tuple[int, float]:
    """Draw an index of [n] weights by `u`; return it, and where in its weight `u` falls, 0 to 1."""
    cdf = weights.cumsum(dtype=np.float64)
    point = min(u * cdf[-1], np.nextafter(cdf[-1], 0))
    at = min(int(cdf.searchsorted(point, "right")), len(cdf) - 1)
    below = cdf[at - 1] if at else 0.0
    return at, (point - below) / (cdf[at] - below)


def _mend_cdf(cdf: Tensor, probs: Tensor) -> Tensor:
    """Return `cdf` without the errors of a parallel prefix sum: steps at weight 0, and steps down.

    A CPU adds in sequence, so a weight of 0 changes nothing. A device adds in blocks, each prefix
    in its own order, so that neighbours differ by rounding even across a weight of 0.
    """
    return torch.where(probs > 0, cdf, 0.0).cummax(-1).values


def residual(q: Tensor, p: Tensor | None) -> Tensor:
    """Return [..., V] (q - p)+, unscaled, for the recovered token; q itself where that is 0.

    It is 0 only where q = p up to rounding: a rejection there is a rounding event. With p = 0
    (nothing was drafted, None) it is q: the bonus token is this case, not another one.
    """
    if p is None:
        return q
    excess = (q - p).clamp(min=0)
    return torch.where(excess.sum(-1, keepdim=True) > 0, excess, q)


def row(x: Tensor, index: Tensor) -> Tensor:
    """Return `x[index]` for a [] index, without the host read of plain indexing."""
    return x.index_select(0, index[None])[0]


def without_replacement(probs: Tensor, u: Tensor) -> Tensor:
    """Draw [R, W] tokens, column by column, from what is left of [R, V] probs, by [R, W] uniforms.

    W is 1 or more. A row with fewer than W possible tokens ends in arbitrary ones: the caller knows
    their number from the distribution.
    """
    left, drawn = probs.clone(), []
    for j in range(u.shape[1]):
        drawn.append(sample(left, u[:, j])[:, None])
        left.scatter_(1, drawn[-1], 0.0)
    return torch.cat(drawn, 1)
