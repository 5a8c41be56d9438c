"""Several tokens of one law: children of one node, independent or without replacement.

By inverse CDF, like every token here: child j of a node follows its own uniform, and one cumulative
sum a node serves all its children.
"""

import torch
from torch import Tensor

from spsbench.loop.sampling import cumulative, sample
from spsbench.loop.transfer import send


def independent(law: Tensor, u: Tensor) -> Tensor:
    """[R, V] laws and [R, W] uniforms -> [R, W] tokens, each as `sample` would draw it alone."""
    return _found(cumulative(law), send(u, law.device))


def without_replacement(law: Tensor, u: Tensor) -> Tensor:
    """[R, V] laws and [R, W] uniforms -> [R, W] tokens: each follows the law without those before.

    The law of Gumbel top-k (Kool et al. 2019, arXiv 1903.06059, section 2.3) with one uniform a
    token in place of one for each word. Where nothing is left the token means nothing: the caller
    knows by the law how many there can be.
    """
    cdf, u = cumulative(law), send(u, law.device)
    rows = torch.arange(len(law), device=law.device)[:, None]
    total = cdf[:, -1:]
    taken = torch.empty(len(law), 0, dtype=torch.int64, device=law.device)  # in order of drawing
    for j in range(u.shape[1]):
        ordered = taken.sort(1).values  # [R, j] by id
        ends = cdf.gather(1, ordered)
        starts = torch.where(ordered > 0, cdf.gather(1, (ordered - 1).clamp(min=0)), 0.0)
        point = u[:, j : j + 1] * (total - (ends - starts).sum(1, keepdim=True))
        for i in range(j):  # step over what was drawn, from the smallest id on
            start, end = starts[:, i : i + 1], ends[:, i : i + 1]
            point = torch.where(point >= start, torch.maximum(point + (end - start), end), point)
        token = torch.searchsorted(cdf, _below(point, total), right=True).clamp(
            max=law.shape[1] - 1
        )
        repeated = (taken == token).any(1, keepdim=True)
        if law.device.type == "cpu" and bool(repeated.any()):  # a sum that was rounded up
            left = law.clone()
            left[rows, taken] = 0
            token = torch.where(repeated, sample(left, u[:, j])[:, None], token)
        taken = torch.cat([taken, token], 1)
    return taken


def _found(cdf: Tensor, u: Tensor) -> Tensor:
    total = cdf[:, -1:]
    # The clamp only matters for a NaN law, which the loop reports after its one host read.
    found = torch.searchsorted(cdf, _below(u * total, total), right=True)
    return found.clamp(max=cdf.shape[1] - 1)


def _below(point: Tensor, total: Tensor) -> Tensor:
    return torch.minimum(point, torch.nextafter(total, torch.zeros_like(total)))
