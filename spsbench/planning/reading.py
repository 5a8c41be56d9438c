"""What is in a model, and what memory allows a pass of it: all of its weights, read once."""

from copy import deepcopy
from typing import NamedTuple

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from spsbench.benchmark.models import measured
from spsbench.loop.timing import Stopwatch
from spsbench.models.third_party import silent

READ = 1 << 30  # bytes, of a device's memory: many times its caches
PASSES = 10


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


def bandwidth_of(device: torch.device) -> float:
    """Bytes a second that memory was seen to deliver; twice looked at where it was disturbed."""
    if device.type != "cpu":
        return device_bandwidth(device)
    found = measured(torch.get_num_threads())
    if found["loaded"]:  # other work can only have lowered it
        found["bandwidth"] = max(found["bandwidth"], measured(torch.get_num_threads())["bandwidth"])
    return float(found["bandwidth"])


def device_bandwidth(device: torch.device, size: int = READ) -> float:
    """The same of a device's own memory: the best of a few sums over `size` bytes."""
    numbers = torch.ones(size // 4, dtype=torch.float32, device=device)
    watch, laps = Stopwatch(device), []
    for _ in range(PASSES):
        with watch.running():
            numbers.sum()
        laps.append(watch.lap())
    return numbers.nbytes / min(laps[1:])
