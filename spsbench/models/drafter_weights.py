"""Weights of drafters: heads in known formats, and folders that drafters read themselves."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from spsbench.checkpoints.config import read_config, read_object
from spsbench.checkpoints.weights import read_headers, stale_names
from spsbench.errors import DataError, MissingError, SpsError, UsageError
from spsbench.heads.head import TRAINING, Head, read_head, read_tensors
from spsbench.loop.drafter_context import OwnWeights
from spsbench.models.devices import check_dtype, choose_dtype, find_device, warn_of_memory
from spsbench.models.folder import locate
from spsbench.settings.execution import Access
from spsbench.settings.models import BLOCKS, ModelSpec

log = logging.getLogger(__name__)

FEW = 8  # names in a message
TRAINING_LIMIT = 1 << 20  # bytes


def load_head(
    spec: ModelSpec,
    access: Access,
    *,
    drafter: str,
    overrides: Mapping[str, Any],
    target: tuple[str, Mapping[str, Any]],
) -> Head:
    """Return the head that `spec` names by folder or hub id, its tensors on the device of `spec`.

    `drafter` is the one that is to read it, `overrides` are its arguments, which go before what the
    files say; `target` is the target's name and config. A note says what the head is.
    SpsError: no folder, no head that `drafter` reads, or not one for this target.
    """
    folder = _folder(spec, access, "head")
    head = read_head(
        folder,
        target[1],
        names=(target[0], spec.id),
        drafter=drafter,
        overrides=overrides,
        allow_pickle=access.allow_pickle,
    )
    log.info(f"note: {spec.id} is a head: {head}")
    if spec.weights == BLOCKS:
        log.info(f"note: the head {spec.id} has no GGUF blocks: its weights are those of its files")
    device, number = _place(spec, head.files.paths)
    tensors = {
        parameter: tensor.to(device, number if tensor.is_floating_point() else None)
        for parameter, tensor in read_tensors(head).items()
    }
    noted: dict[str, Any] = {}
    with suppress(SpsError, OSError):  # a file of that name by others says nothing here
        noted = read_object(folder / TRAINING, TRAINING_LIMIT)
    return replace(head, tensors=tensors, kept={}, target_mark=noted.get("target_mark"))


def own_weights(spec: ModelSpec, access: Access) -> OwnWeights:
    """Return the folder of `spec`, its config.json ({} without), and its tensors, on their device.

    Floating point has the draft's dtype, as a model's has: `auto` is float32 on a CPU.
    MissingError: no safetensors. DataError: a tensor is in two files, or they are damaged.
    """
    folder = _folder(spec, access, "drafter's own folder")
    if not (files := sorted(folder.glob("*.safetensors"))):
        raise MissingError(
            f"no tensors ({folder}): expected *.safetensors for the drafter. Check `draft`"
        )
    read_headers(files)
    device, number = _place(spec, files)
    tensors = Tensors(folder)
    for file in files:
        loaded = load_file(file, device=str(device))
        stale = stale_names(file, loaded)
        for name, tensor in loaded.items():
            if name in stale:
                continue
            if name in tensors:
                raise DataError(f"{name} twice ({file}): expected each tensor in one file")
            tensors[name] = tensor.to(number) if tensor.is_floating_point() else tensor
    config = read_config(folder) if (folder / "config.json").is_file() else {}
    return OwnWeights(folder, config, tensors)


def _folder(spec: ModelSpec, access: Access, what: str) -> Path:
    """Return `spec`'s folder, a `what` in errors; SpsError: bad dtype, adapter, random, or none."""
    check_dtype(spec.dtype)
    if spec.adapter:
        raise UsageError(
            f"`adapter` of the {what} {spec.id}: expected a language model with it. Leave it out"
        )
    if spec.random:
        raise UsageError(
            f"random weights for the {what} {spec.id}: expected its tensors. Leave `draft_weights` "
            "out, or name others"
        )
    return locate(spec, access)


def _place(spec: ModelSpec, files: Sequence[Path]) -> tuple[torch.device, torch.dtype]:
    """Return device and dtype of `spec` for the weights in `files`; warn where memory is short."""
    device = find_device(spec.device)
    number = choose_dtype(spec.dtype, device, files)
    warn_of_memory(files, number, device)
    return device, number


class Tensors(dict[str, Tensor]):
    """The tensors of a folder by name; a missing one raises an error that names the folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __missing__(self, name: str) -> Tensor:
        some = ", ".join(sorted(self)[:FEW]) + (", ..." if len(self) > FEW else "")
        raise DataError(
            f"no tensor {name} ({self._folder}): expected it with {some or 'none'}. Check `draft`"
        )
