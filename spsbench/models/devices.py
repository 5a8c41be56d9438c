"""Devices: which there are, what they hold, and what a user's word for one means."""

from typing import NamedTuple

import torch

from spsbench.errors import UnavailableError
from spsbench.hardware.memory import ram


class Device(NamedTuple):
    """A device that can be used now."""

    name: str  # as torch says it: "cpu", "cuda:0", "mps"
    model: str
    total: int  # bytes
    free: int  # bytes


def devices() -> list[Device]:
    """The devices of this machine, the CPU first."""
    total, free = ram()
    found = [Device("cpu", "CPU", total, free)]
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            try:
                free, total = torch.cuda.mem_get_info(index)
            except RuntimeError:  # a device that is lost, or that others use alone
                continue
            found.append(Device(f"cuda:{index}", torch.cuda.get_device_name(index), total, free))
    if torch.backends.mps.is_available():
        total = torch.mps.recommended_max_memory()
        found.append(Device("mps", "Apple GPU", total, total - torch.mps.driver_allocated_memory()))
    return found


def find_device(name: str) -> torch.device:
    """The device called `name`: `cpu`, `cuda`, `cuda:1`, `mps`, `auto` (the best).

    Raises:
        UnavailableError: there is none of that name; the message lists those there are.
    """
    wanted = "cuda:0" if name == "cuda" else name
    if _usable(wanted):
        return torch.device(wanted)
    names = [device.name for device in devices()]
    if name == "auto":
        return torch.device(names[1] if len(names) > 1 else "cpu")
    raise UnavailableError(
        f"no device {name!r} (this machine): expected one of {', '.join(names)}. "
        "Choose with --device"
    )


def _usable(name: str) -> bool:
    """Whether this very device is there; no other one is touched, as asking takes memory of it."""
    kind, _, index = name.partition(":")
    if kind != "cuda" or not index.isdecimal():
        return name == "cpu" or (name == "mps" and torch.backends.mps.is_available())
    if not torch.cuda.is_available() or int(index) >= torch.cuda.device_count():
        return False
    try:
        torch.cuda.mem_get_info(int(index))
    except RuntimeError:
        return False
    return True


def free_bytes(device: torch.device) -> int:
    """Memory that can be had on `device`; 0 when it cannot be told."""
    found = {str(entry.name): entry.free for entry in devices()}
    return found.get(str(device), 0)
