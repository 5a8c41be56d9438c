"""What a student is shown of its own answers while it learns (glancing).

Falcon's Coupled Sequential Glancing Distillation (arXiv 2412.12639, section 3.2), after the
glancing of Qian et al. 2021 (arXiv 2008.07905, section 3.2).
"""

import torch
from torch import Tensor

MOST = 0.4  # share of what was foretold wrongly, at the beginning


def glanced(wrong: Tensor, done: float, draw: torch.Generator) -> Tensor:
    """Which slots of some blocks are shown: the first ones of a block, never all of it.

    N = lambda d slots in all, where d counts what is wrong (the Hamming distance of the drafter's
    tokens from the target's) and lambda falls from 0.4 to 0. Blocks are drawn, and of each how many
    of its slots; so what is shown is a beginning, from which the rest of the block is to be told.

    Args:
        wrong: [n, k] bool, slots whose likeliest token is not the target's; on the host.
        done: share of the training that is over.
        draw: of blocks and lengths.

    Returns:
        [n, k] bool.
    """
    blocks, k = wrong.shape
    left = int(MOST * (1 - done) * int(wrong.sum())) if k > 1 else 0
    shown = torch.zeros(blocks, k, dtype=torch.bool)
    for block in torch.randperm(blocks, generator=draw).tolist():
        if left <= 0:
            break
        length = min(left, int(torch.randint(1, k, (), generator=draw)))
        shown[block, :length] = True
        left -= length
    return shown
