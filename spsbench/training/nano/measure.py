"""What two models measure on held-out text: losses, and how often the draft would be accepted."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

LM = Callable[[Tensor], Tensor]  # ids [B, T] -> logits [B, T, V]


@dataclass(frozen=True, slots=True)
class Measure:
    """Means over `tokens` positions: losses in nats a token, and the acceptance rate.

    `acceptance` is the mean over positions of sum over x of min(q(x), p(x)) at temperature 1, the
    chance that a draft token is kept (Chen et al. 2023, Algorithm 2). `target_by_position` and
    `draft_by_position` are the losses in `len()` equal stretches of the window.
    """

    tokens: int
    target_loss: float
    draft_loss: float
    acceptance: float
    target_by_position: tuple[float, ...]
    draft_by_position: tuple[float, ...]

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


@torch.no_grad()
def measure(
    target: LM, draft: LM, windows: Tensor, *, skip: int = 0, stretches: int = 1, rows: int = 1
) -> Measure:
    """Measure on windows [N, T + 1], the first `skip` tokens of which are context only.

    `rows` windows are scored at a time.

    Raises:
        ValueError: the positions left do not divide into `stretches`, or none is left.
    """
    positions = windows.shape[1] - 1 - max(skip - 1, 0)
    if positions < 1 or positions % stretches:
        raise ValueError(f"{positions} positions do not divide into {stretches} stretches")
    sums = torch.zeros(3, positions, dtype=torch.float64)  # target, draft, acceptance
    for part in torch.split(windows, rows):
        after = part[:, -positions:, None]  # [B, T', 1]
        q = target(part[:, :-1])[:, -positions:].log_softmax(-1)  # [B, T', V]
        p = draft(part[:, :-1])[:, -positions:].log_softmax(-1)  # [B, T', V]
        sums[0] -= q.gather(2, after).sum((0, 2))
        sums[1] -= p.gather(2, after).sum((0, 2))
        sums[2] += torch.minimum(q, p).exp().sum((0, 2))
    means = sums / len(windows)
    by_position = means[:2].view(2, stretches, -1).mean(-1).tolist()
    target_loss, draft_loss, acceptance = means.mean(1).tolist()
    return Measure(
        tokens=positions * len(windows),
        target_loss=target_loss,
        draft_loss=draft_loss,
        acceptance=acceptance,
        target_by_position=tuple(by_position[0]),
        draft_by_position=tuple(by_position[1]),
    )


def windows(ids: Tensor, length: int) -> Tensor:
    """Consecutive windows [N, length + 1] of ids; each overlaps the next by one token.

    Raises:
        ValueError: the ids hold no window.
    """
    if len(ids) <= length:
        raise ValueError(f"{len(ids)} tokens hold no window of {length + 1}")
    return ids.unfold(0, length + 1, length)
