"""The optimiser of what learns, and its rate over the steps."""

from collections.abc import Iterable

import torch
from torch import nn

BETAS = (0.9, 0.95)
DECAY = 0.01


def adamw(parameters: Iterable[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    """That of students; its highest rate is `rate`."""
    return torch.optim.AdamW(parameters, lr=rate, betas=BETAS, weight_decay=DECAY)


def pace(done: float, left: float, warmup: float, cooldown: float) -> float:
    """Share of the highest rate: a rise over `warmup`, then it stays, then falls over `cooldown`.

    Args:
        done: with this step, in the unit of the other three: steps, or tokens.
        left: with this step.
    """
    return min(1.0, done / max(warmup, 1), left / max(cooldown, 1))
