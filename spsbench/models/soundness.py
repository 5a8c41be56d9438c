"""A model that was loaded: all of it is there, and every number is a number."""

from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from transformers import PreTrainedModel

from spsbench.errors import DataError

_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)  # what aminmax reads


def check_complete(info: Mapping[str, Collection[object]], folder: Path) -> None:
    """Refuse a model of which transformers had to make up a part.

    Args:
        info: transformers' loading info.
        folder: for the message.

    Raises:
        DataError: with the name of the first tensor.
    """
    wrong = {
        "lack": info.get("missing_keys", ()),
        "have another shape for": info.get("mismatched_keys", ()),
    }
    for verb, names in wrong.items():
        if names:
            first = min(str(name) for name in names)
            raise DataError(
                f"the weights {verb} {len(names)} tensors, such as {first} ({folder}): expected a "
                "whole causal language model. Fetch the model again, or choose its causal version"
            )


@torch.inference_mode()
def check_finite(model: PreTrainedModel, folder: Path) -> None:
    """Refuse a model with NaN or infinite weights.

    Raises:
        DataError: with the name of the first such tensor.
    """
    tensors = {
        name: tensor
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
        if tensor.dtype in _FLOATS and tensor.numel()
    }
    # The extremes are finite if and only if all numbers are, and need no second copy of a tensor.
    bounds = [torch.stack(torch.aminmax(tensor)).double().cpu() for tensor in tensors.values()]
    for name, bound in zip(tensors, bounds, strict=True):
        if not bool(bound.isfinite().all()):
            raise DataError(
                f"{name} has numbers that are not finite ({folder}): expected finite weights. "
                "Fetch the model again, or choose another --dtype"
            )
