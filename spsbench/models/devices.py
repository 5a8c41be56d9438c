"""Devices, the dtype of a model on one, and the memory that weights need."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from spsbench.checkpoints.weights import TensorHeader, read_headers
from spsbench.errors import UnavailableError, UsageError
from spsbench.hardware.files import in_words
from spsbench.hardware.memory import ram
from spsbench.settings.models import DTYPES

log = logging.getLogger(__name__)
_STORED = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}


class Device(NamedTuple):
    """A device that can be used now."""

    name: str  # as torch says it: "cpu", "cuda:0", "mps"
    model: str
    total: int  # bytes
    free: int  # bytes


def devices() -> list[Device]:
    """Return the devices of this machine that can be used: CPU, GPUs by number, Apple's GPU."""
    total, free = ram()
    usable = [Device("cpu", "CPU", total, free)]
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            try:
                free, total = torch.cuda.mem_get_info(index)
            except RuntimeError:  # a device that is lost, or that others use alone
                continue
            usable.append(Device(f"cuda:{index}", torch.cuda.get_device_name(index), total, free))
    if torch.backends.mps.is_available():
        total, taken = torch.mps.recommended_max_memory(), torch.mps.driver_allocated_memory()
        usable.append(Device("mps", "Apple GPU", total, total - taken))
    return usable


def find_device(name: str) -> torch.device:
    """Return the device `cpu`, `cuda:1`, `mps`, or `auto` (the first GPU, else the CPU).

    `cuda` is `cuda:0`. UnavailableError: no such device. cuDNN's attention is switched off in
    torch: it plans anew, for tens of ms, at each new number of keys.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
    device_name = "cuda:0" if name == "cuda" else name
    if _usable(device_name):
        return torch.device(device_name)
    names = [device.name for device in devices()]
    if name == "auto":
        return torch.device(names[1] if len(names) > 1 else "cpu")
    raise UnavailableError(
        f"no device {name!r} (this machine): expected one of {', '.join(names)}. "
        "Choose with `device`"
    )


def _usable(name: str) -> bool:
    """Return whether this device exists, without touching others, which would take their memory."""
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


def card_of(device: str) -> str | None:
    """Return the name of the GPU that `device`, as of `find_device`, is here; None: it is none."""
    if not device.startswith(("cuda", "auto")) or not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_name(0 if device == "auto" else device)


def free_bytes(device: torch.device) -> int:
    """Return the free memory on `device`; 0 when it is unknown."""
    return next((usable.free for usable in devices() if usable.name == str(device)), 0)


def check_dtype(dtype: str) -> None:
    """Raise UsageError for a dtype that is neither `auto` nor one of `DTYPES`."""
    if dtype not in ("auto", *DTYPES):
        raise UsageError(
            f"no dtype {dtype!r} (`dtype`): expected one of auto, {', '.join(DTYPES)}. Choose one"
        )


def choose_dtype(dtype: str, place: torch.device, files: Sequence[Path]) -> torch.dtype:
    """Return torch's `dtype`: `auto` is float32 on a CPU, else that of most weights in `files`.

    bfloat16 where no header tells, as of pickles. `dtype` has passed `check_dtype`.
    """
    if dtype == "auto" and place.type == "cpu":
        dtype = "float32"
    if dtype == "auto":
        sizes: dict[str, int] = {}
        for header in _headers(files):
            if header.dtype in _STORED:
                sizes[header.dtype] = sizes.get(header.dtype, 0) + header.numbers
        dtype = _STORED[max(sizes, key=sizes.__getitem__)] if sizes else "bfloat16"
    stored_dtype: torch.dtype = getattr(torch, dtype)
    return stored_dtype


def warn_of_memory(files: Sequence[Path], number: torch.dtype, place: torch.device) -> None:
    """Log a warning if the weights in `files` need more memory than `place` has free, if known."""
    need = sum(header.numbers for header in _headers(files)) * number.itemsize
    free = free_bytes(place)
    if free and need > free:
        log.info(
            f"warning: the weights of {files[0].parent.name} need {in_words(need)} as "
            f"{str(number).removeprefix('torch.')}, {place} has {in_words(free)} free"
        )


def _headers(files: Sequence[Path]) -> list[TensorHeader]:
    return list(read_headers([path for path in files if path.suffix == ".safetensors"]).values())
