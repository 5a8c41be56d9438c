"""A model that was loaded: all of it is there, and every number is a number."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import torch
from transformers import PreTrainedModel

from spsbench.errors import DataError
from spsbench.hardware.cache_home import keep_newest, own_folder

LARGEST = 65504.0  # of a weight: float16's own; those of trained models stay far below it
LARGE = 64 * 2**20  # bytes of weights
MOST = 256  # models that were found sound
_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)  # what aminmax reads


def check_complete(info: Mapping[str, Collection[Any]], folder: Path) -> None:
    """Refuse a model of which transformers had to make up a part.

    Args:
        info: transformers' loading info.
        folder: for the message.

    Raises:
        DataError: with the name of the first tensor.
    """
    todo = "Fetch the model again, or choose its causal version"
    if missing := info.get("missing_keys", ()):
        first = min(str(name) for name in missing)
        raise DataError(
            f"the weights lack {len(missing)} tensors, such as {first} ({folder}): expected a "
            f"whole causal language model. {todo}"
        )
    if other := info.get("mismatched_keys", ()):
        name, found, wanted = min(other, key=str)
        raise DataError(
            f"{name} has the shape {_shape(found)} ({folder}): expected {_shape(wanted)} by "
            f"config.json, as for {len(other)} tensors in all. {todo}"
        )


def _shape(sizes: Iterable[int]) -> str:
    return "x".join(map(str, sizes)) or "of one number"


def own(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank has of a tensor: all of it where it is not shared."""
    local = getattr(tensor, "to_local", None)
    return tensor if local is None else cast(torch.Tensor, local())


def _tensors(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _small(tensor: torch.Tensor) -> bool:
    """Whether the norm alone proves that all numbers are finite and none too large."""
    if tensor.device.type != "cpu":  # where each look waits
        return False
    return bool(torch.linalg.vector_norm(tensor) < LARGEST / 2)  # rounding is far below that


def check_sound_once(model: PreTrainedModel, folder: Path, stamped: str | None) -> None:
    """As `check_sound`; a large model whose files were found sound before is not read for it.

    Args:
        model: any.
        folder: for the message.
        stamped: its files as they are, of `origins.stamp`; None: nothing is known of them.
    """
    large = stamped is not None and sum(t.nbytes for _, t in _tensors(model)) > LARGE
    places = own_folder("sound") if large else None
    mark = None if places is None else places / str(stamped)
    if mark is not None and mark.exists():
        return
    check_sound(model, folder)
    if mark is not None:
        with suppress(OSError):  # it will be read again
            mark.touch()
            keep_newest(mark.parent.iterdir(), MOST)


@torch.inference_mode()
def check_sound(model: PreTrainedModel, folder: Path) -> None:
    """Refuse a model with NaN or infinite weights, or with some that no training leaves behind.

    Buffers may hold any finite number: some are masks.

    Raises:
        DataError: with the name of the first such tensor.
    """
    learned = {name for name, _ in model.named_parameters()}
    tensors = {
        name: tensor
        for name, tensor in ((name, own(t)) for name, t in _tensors(model))
        if tensor.dtype in _FLOATS and tensor.numel()
    }
    # No number is larger than their norm, which is read faster: mostly that settles it. Else the
    # extremes, which are finite if and only if all numbers are. Neither needs a copy of a tensor.
    tensors = {name: tensor for name, tensor in tensors.items() if not _small(tensor)}
    bounds = [torch.stack(torch.aminmax(tensor)).double().cpu() for tensor in tensors.values()]
    for name, bound in zip(tensors, bounds, strict=True):
        if not bool(bound.isfinite().all()):
            raise DataError(
                f"{name} has numbers that are not finite ({folder}): expected finite weights. "
                "Fetch the model again, or choose another --dtype"
            )
        largest = float(bound.abs().max())
        if largest > LARGEST and name in learned:
            raise DataError(
                f"{name} has a weight of {largest:.3g} ({folder}): expected {LARGEST:g} at most, "
                "as training leaves behind. Fetch the model again"
            )
