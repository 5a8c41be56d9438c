"""Many texts at once, by transformers' own generate."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from spsbench.loop.sampling import Warp


@torch.no_grad()
def continued(
    model: PreTrainedModel,
    prompts: Sequence[list[int]],
    *,
    most: int,
    warp: Warp,
    ends: frozenset[int],
    vocab: int,
    seed: int,
) -> list[list[int]]:
    """What a model writes after each of some prompts: the same for the same seed and prompts.

    Args:
        most: tokens of each.
        ends: tokens that end a text; they belong to it.
        vocab: tokens that there are; rows of the model beyond are padding.
    """
    longest = max(map(len, prompts))
    pad = min(ends, default=0)
    ids = torch.tensor([[pad] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    options: dict[str, Any] = {"do_sample": warp.temperature > 0}
    if warp.temperature > 0:
        options |= {"temperature": warp.temperature, "top_p": warp.top_p, "top_k": 0}
    config = GenerationConfig(
        max_new_tokens=most,
        pad_token_id=pad,
        eos_token_id=sorted(ends) or None,
        suppress_tokens=list(range(vocab, _rows(model))) or None,
        **options,
    )
    before, model.generation_config = model.generation_config, GenerationConfig()
    try:
        with torch.random.fork_rng(devices=_devices(model)):
            torch.manual_seed(seed % (1 << 62))
            out = model.generate(
                ids.to(model.device),
                attention_mask=mask.to(model.device),
                generation_config=config,
            )
    finally:
        model.generation_config = before
    return [_cut(row, ends) for row in out[:, longest:].tolist()]


def _cut(row: list[int], ends: frozenset[int]) -> list[int]:
    """Up to the first token that ends a text, itself included."""
    for at, token in enumerate(row):
        if token in ends:
            return row[: at + 1]
    return row


def _rows(model: PreTrainedModel) -> int:
    return int(model.get_output_embeddings().weight.shape[0])


def _devices(model: PreTrainedModel) -> list[Any]:
    return [] if model.device.type == "cpu" else [model.device]
