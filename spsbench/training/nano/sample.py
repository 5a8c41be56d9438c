"""Text of the target itself: continuations drawn at temperature 1, in batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.no_grad()
def continuations(model: Any, prompts: Tensor, tokens: int, generator: torch.Generator) -> Tensor:
    """Prompts [B, T] and what `model` (of transformers) goes on with: ids [B, T + tokens].

    Every token is drawn from the model's whole law. The end token does not stop a row: as in the
    training stream, another document follows it.
    """
    rows, cache, fed = prompts, None, prompts
    for _ in range(tokens):
        output = model(input_ids=fed, past_key_values=cache, use_cache=True, logits_to_keep=1)
        law = output.logits[:, -1].softmax(-1)  # [B, V]
        fed = torch.multinomial(law, 1, generator=generator)  # [B, 1]
        rows, cache = torch.cat([rows, fed], 1), output.past_key_values
    return rows
