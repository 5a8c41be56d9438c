"""Round weights to codes by the kernel of `codes.c`: those of `engines.quantization`, sooner."""

import torch
from torch import Tensor

from spsbench.extensions.cpu.kernels.native import kernel, missing


def round_weights(weight: Tensor, group: int, bits: int) -> tuple[Tensor, Tensor] | None:
    """Return the numbers and scales of `weight` [out, in]; None where there is no kernel.

    Raises:
        MemoryError: no room for a row of weights.
    """
    if weight.device.type != "cpu" or missing(weight.dtype) is not None:
        return None
    weight = weight.contiguous()  # of columns, a few of each line would be read
    out, width = weight.shape
    numbers = torch.empty(out, width, dtype=torch.int8)
    scales = torch.empty(out, -(-width // group), dtype=torch.float16)
    sizes = out, width, *weight.stride(), group, bits, torch.get_num_threads()
    places = weight.data_ptr(), numbers.data_ptr(), scales.data_ptr()
    if kernel("codes", weight.dtype)(*places, *sizes):
        raise MemoryError("no memory for a row of weights")
    return numbers, scales
