"""What memory allows a pass of the target: all of its weights, read once."""

from copy import deepcopy

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from spsbench.models.boundary import silent


def bytes_read(model: PreTrainedModel) -> int | None:
    """Bytes of weights that a pass over one token reads; None where a shape alone makes no model.

    Counted of an empty model of the same shape: an engine may have packed the weights of this one.
    Input embeddings beside a head of their own are left out, since a token reads one row of them.
    A mixture of experts reads less.
    """
    try:
        with torch.device("meta"), silent():
            empty = AutoModelForCausalLM.from_config(deepcopy(model.config), dtype=model.dtype)
    except Exception:  # code of the model's own may do anything
        return None
    total = sum(weight.nbytes for weight in empty.parameters())
    inputs, head = empty.get_input_embeddings(), empty.get_output_embeddings()
    if head is not None and head.weight is not inputs.weight:
        total -= inputs.weight.nbytes
    return int(total)
