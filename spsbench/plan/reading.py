"""What is in a model, and what memory allows a pass of it: all of its weights, read once."""

from copy import deepcopy
from typing import NamedTuple

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from spsbench.models.boundary import silent


class Weights(NamedTuple):
    """Of a model: how many numbers, and the bytes of those that a pass over one token reads."""

    numbers: int
    read: int


def weights_of(model: PreTrainedModel) -> Weights | None:
    """What is in `model`; None where its shape alone makes no model.

    Counted of an empty model of the same shape: an engine may have packed the weights of this one.
    Input embeddings beside a head of their own are not read, but for one row a token. A mixture of
    experts reads less than this.
    """
    try:
        with torch.device("meta"), silent():
            empty = AutoModelForCausalLM.from_config(deepcopy(model.config), dtype=model.dtype)
    except Exception:  # code of the model's own may do anything
        return None
    every = list(empty.parameters())
    read = sum(weight.nbytes for weight in every)
    inputs, head = empty.get_input_embeddings(), empty.get_output_embeddings()
    if head is not None and head.weight is not inputs.weight:
        read -= inputs.weight.nbytes
    return Weights(sum(weight.numel() for weight in every), int(read))
