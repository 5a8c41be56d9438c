"""Getting tensors onto a device without waiting for it: a round reads the device only once."""

import torch
from torch import Tensor


def send(values: Tensor, device: torch.device) -> Tensor:
    """`values` on `device`, in the order of the work queued there; the host does not wait.

    Only pinned memory can be copied while the host goes on; PyTorch keeps it until the copy is
    done. Towards the CPU it waits, because there the values could be read before they have come.
    """
    if values.device.type == "cpu" and device.type == "cuda":
        values = values.pin_memory()
    return values.to(device, non_blocking=device.type != "cpu")


def at_hand(values: Tensor) -> list[float] | None:
    """The numbers of [n] `values` where a look at them waits for nothing, else None.

    They are on the CPU, and one tensor holds them: under `vmap` it stands for many.
    """
    if values.device.type != "cpu":
        return None
    try:
        found: list[float] = values.tolist()
    except RuntimeError:  # what vmap raises
        return None
    return found
