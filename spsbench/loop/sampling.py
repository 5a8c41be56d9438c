"""Logits to laws, and laws to tokens (Chen et al. 2023, section 2 and Algorithm 2)."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spsbench.settings.cell import WarpSettings

Numbers = np.ndarray[Any, np.dtype[Any]]

BLOCK = 256
MANY = 8192  # tokens from which on `sample` looks for a block first, and `Warp` goes row by row
PIECE = 1 << 18  # numbers of a thread at once on a CPU: what is written stays in its cache


@dataclass(frozen=True, slots=True)
class Warp(WarpSettings):
    """The map from logits to laws: temperature, top-k, top-p, min-p; the same for target and draft.

    Temperature 0 is the one-hot law of the argmax, so that greedy decoding is no special case.
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
        """Map [..., V] logits to laws in float32 (float64 stays); NaN or +inf gives a NaN row."""
        rows = logits.reshape(-1, logits.shape[-1])
        few = rows.shape[1] < MANY or not len(rows)
        if few or logits.device.type != "cpu" or logits.requires_grad:
            return self._laws(logits)
        laws = [self._laws(rows[some]) for some in pieces(len(rows), logits)]
        return (laws[0] if len(laws) == 1 else torch.cat(laws)).view(logits.shape)

    def _laws(self, logits: Tensor) -> Tensor:
        x = logits if logits.dtype == torch.float64 else logits.float()
        if self.temperature < torch.finfo(x.dtype).tiny:  # 0, or too small to divide by
            return peaks(x)
        if 0 < self.top_k < x.shape[-1]:  # of logits: a high temperature makes some of them equal
            x = x.masked_fill(x < x.topk(self.top_k).values[..., -1:], -math.inf)
        if self.temperature != 1:
            x = x - x.amax(-1, keepdim=True)  # the peak is 0: a tiny temperature cannot overflow it
            x /= self.temperature
        law = torch.softmax(x, -1)
        law = nucleus(law, self.top_p) if self.top_p < 1 else law
        if self.min_p > 0:  # Nguyen et al. 2024 (arXiv 2407.01082, section 3)
            law = law.where(law >= self.min_p * law.amax(-1, keepdim=True), 0.0)
            law = law / law.sum(-1, keepdim=True)
        return law


def send(values: Tensor, device: torch.device) -> Tensor:
    """Copy `values` to `device` in the order of its queued work, without blocking the host.

    Only pinned memory can be copied while the host goes on; PyTorch keeps it until the copy is
    done. Towards the CPU it waits, because there the values could be read before they have come.
    """
    if values.device.type == "cpu" and device.type == "cuda":
        values = values.pin_memory()
    return values.to(device, non_blocking=device.type != "cpu")


def on_host(values: Tensor) -> list[float] | None:
    """Return [n] `values` as numbers if they are on the host, else None: reading them would wait.

    On the host is a plain tensor on the CPU: under `vmap` one tensor represents many.
    """
    if values.device.type != "cpu":
        return None
    try:
        return values.tolist()
    except RuntimeError:  # what vmap raises
        return None


def peaks(x: Tensor) -> Tensor:
    """Map [..., V] to one-hot laws of the argmax; NaN rows where it is not finite."""
    wide = x.device.type == "cpu" and x.shape[-1] >= MANY and not x.requires_grad
    if wide:  # numpy finds a maximum in a tenth of torch's time
        best = torch.from_numpy(x.numpy().argmax(-1, keepdims=True))
        peak = x.gather(-1, best)
    else:
        peak, best = x.max(-1, keepdim=True)
    laws = torch.zeros_like(x).scatter_(-1, best, 1.0)
    return laws if wide and bool(peak.isfinite().all()) else laws.add_(peak - peak)


def pieces(n: int, law: Tensor) -> Iterator[slice]:
    """Split `n` rows as wide as `law` into slices that fit a CPU's caches; one slice elsewhere."""
    threads = torch.get_num_threads()
    step = n if law.device.type != "cpu" else max(1, PIECE // law.shape[-1]) * threads
    for start in range(0, n, max(step, 1)):
        yield slice(start, min(start + step, n))


def unsharpened(warp: Callable[[Tensor], Tensor], logits: Tensor, law: Tensor) -> Tensor:
    """Return the [..., V] law by which confidence is measured: `law`, at temperature 0 that of 1.

    A one-hot law is certain whatever the logits are. Both laws depend on the prefix alone.
    """
    if isinstance(warp, Warp) and warp.temperature == 0:
        return logits.softmax(-1, dtype=law.dtype)
    return law


def nucleus(law: Tensor, top_p: float) -> Tensor:
    """Keep the smallest set of likeliest tokens of [..., V] with mass >= `top_p`, and rescale.

    Holtzman et al. 2020, section 3.1. A token stays when the mass before it is below `top_p`, so
    the likeliest always stays; of equal tokens the one with the smaller id comes first. On a CPU
    `law` is overwritten.
    """
    if law.device.type == "cpu" and law.numel() and not law.requires_grad:  # numpy takes no others
        law = law.contiguous()
        for row in law.view(-1, law.shape[-1]).numpy():
            _keep_nucleus(row, top_p)
        return law
    ordered, ids = law.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    kept = torch.zeros_like(law).scatter_(-1, ids, ordered * (before < top_p))
    return kept / kept.sum(-1, keepdim=True)


def _keep_nucleus(law: Numbers, top_p: float) -> None:
    """Make [V] its `nucleus`, from the few tokens that can be in it."""
    # All tokens below this share have less than 1 - top_p together: none is in the nucleus.
    ids = np.flatnonzero(law > 0.5 * (1 - top_p) / len(law))
    some = law[ids]
    falling = np.sort(some)[::-1]  # ten times as fast as a stable order of ids
    before = falling.cumsum(dtype=np.float64).astype(law.dtype) - falling
    last = int(np.count_nonzero(before < law.dtype.type(top_p))) - 1
    law.fill(0 if len(ids) else np.nan)
    if len(ids):
        above, equal = some > falling[last], np.flatnonzero(some == falling[last])
        above[equal[: last + 1 - np.count_nonzero(above)]] = True
        law[ids[above]] = some[above] / some[above].sum()


def sample(law: Tensor, u: Tensor) -> Tensor:
    """Draw [...] tokens from [..., V] weights by inverse CDF, with [...] uniforms in [0, 1).

    A token of weight 0 is never drawn, whatever the rounding.
    """
    if law.device.type == "cpu" and law.shape[-1] >= MANY:
        rows, points = law.detach().reshape(-1, law.shape[-1]).numpy(), u.flatten().tolist()
        with np.errstate(all="ignore"):  # a NaN law: the loop reports it after its one host read
            drawn = [_draw(row, point) for row, point in zip(rows, points, strict=True)]
        return torch.tensor(drawn, dtype=torch.int64).view(law.shape[:-1])
    cdf = cumulative(law)
    total = cdf[..., -1:]
    below = torch.nextafter(total, torch.zeros_like(total))
    point = torch.minimum(send(u, law.device).unsqueeze(-1) * total, below)
    # The clamp only matters for a NaN law, which the loop reports after its one host read.
    return torch.searchsorted(cdf, point, right=True).squeeze(-1).clamp(max=law.shape[-1] - 1)


def cumulative(law: Tensor) -> Tensor:
    """Return [..., V] running sums in double precision, without a step where a weight is 0."""
    cdf = law.double().cumsum(-1)
    return cdf if law.device.type == "cpu" else _mended(cdf, law)


def _draw(weights: Numbers, u: float) -> int:
    """Draw as `sample` does from one row of many tokens: first the block, then the token within it.

    Sums use all lanes of a processor, running sums one, so that this is ten times faster than one
    long running sum.
    """
    sums = np.add.reduceat(weights, np.arange(0, len(weights), BLOCK))
    block, u_in_block = _place(sums, u)
    return block * BLOCK + _place(weights[block * BLOCK : (block + 1) * BLOCK], u_in_block)[0]


def _place(weights: Numbers, u: float) -> tuple[int, float]:
    """Draw one of [n] weights; return it, and how far into it `u` falls, as a share."""
    cdf = weights.cumsum(dtype=np.float64)
    point = min(u * cdf[-1], np.nextafter(cdf[-1], 0))
    at = min(int(cdf.searchsorted(point, "right")), len(cdf) - 1)
    below = cdf[at - 1] if at else 0.0
    return at, (point - below) / (cdf[at] - below)


def _mended(cdf: Tensor, law: Tensor) -> Tensor:
    """Remove from `cdf` the errors of a parallel prefix sum: steps at weight 0, and steps down.

    A CPU adds in sequence, so a weight of 0 changes nothing. A device adds in blocks, each prefix
    in its own order, so that neighbours differ by rounding even across a weight of 0.
    """
    return torch.where(law > 0, cdf, 0.0).cummax(-1).values


def residual(q: Tensor, p: Tensor | None) -> Tensor:
    """Return [..., V] (q - p)+, the unscaled law of the recovered token; q itself where that is 0.

    It is 0 only where q = p up to rounding: a rejection there is a rounding event. With p = 0
    (nothing was drafted, None) it is q: the bonus token is this case, not another one.
    """
    if p is None:
        return q
    excess = (q - p).clamp(min=0)
    return torch.where(excess.sum(-1, keepdim=True) > 0, excess, q)


def row(x: Tensor, index: Tensor) -> Tensor:
    """Return `x[index]` for a [] index without a host read, which plain indexing would cause."""
    return x.index_select(0, index[None])[0]


def without_replacement(law: Tensor, u: Tensor) -> Tensor:
    """Draw [R, W] tokens from [R, V] laws without replacement, with [R, W] uniforms.

    A row with fewer than W possible tokens ends in arbitrary ones: the caller knows their number
    from the law.
    """
    left, drawn = law.clone(), []
    for j in range(u.shape[1]):
        drawn.append(sample(left, u[:, j])[:, None])
        left.scatter_(1, drawn[-1], 0.0)
    return torch.cat(drawn, 1)
