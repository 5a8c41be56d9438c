"""The dtype of a model's numbers, and the memory they need."""

import logging
from collections.abc import Sequence
from pathlib import Path

import torch

from spsbench.errors import UsageError
from spsbench.hardware.sizes import in_words
from spsbench.models.devices import free_bytes
from spsbench.models.weights import TensorHeader, read_headers

log = logging.getLogger(__name__)

DTYPES = ("float64", "float32", "bfloat16", "float16")
_STORED = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def check_dtype(dtype: str) -> None:
    """Refuse what is neither `auto` nor one of `DTYPES`.

    Raises:
        UsageError: with the choices.
    """
    if dtype not in ("auto", *DTYPES):
        raise UsageError(
            f"no dtype {dtype!r} (--dtype): expected one of auto, {', '.join(DTYPES)}. Choose one"
        )


def choose(dtype: str, place: torch.device, files: Sequence[Path]) -> torch.dtype:
    """What `dtype` means: `auto` is float32 on a CPU, else what most of the weights are."""
    if dtype == "auto" and place.type == "cpu":
        dtype = "float32"
    if dtype == "auto":
        sizes: dict[str, int] = {}
        for header in _headers(files):
            if header.dtype in _STORED:
                sizes[header.dtype] = sizes.get(header.dtype, 0) + header.numbers
        dtype = _STORED[max(sizes, key=sizes.__getitem__)] if sizes else "bfloat16"
    found: torch.dtype = getattr(torch, dtype)
    return found


def warn_of_memory(files: Sequence[Path], number: torch.dtype, place: torch.device) -> None:
    """Say so when the weights in `files` need more than `place` has free."""
    need = sum(header.numbers for header in _headers(files)) * number.itemsize
    free = free_bytes(place)
    if free and need > free:
        log.info(
            f"warning: the weights of {files[0].parent.name} need {in_words(need)} as "
            f"{str(number).removeprefix('torch.')}, {place} has {in_words(free)} free"
        )


def _headers(files: Sequence[Path]) -> list[TensorHeader]:
    safe = [path for path in files if path.suffix == ".safetensors"]
    return list(read_headers(safe).values())
