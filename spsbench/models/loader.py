"""Loading of a checked folder to a model in memory, complete and with finite weights."""

import copy
import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import EllipsisType
from typing import Any, cast

import torch
import transformers
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.distributed import DistributedConfig
from transformers.initialization import no_init_weights
from transformers.utils import is_accelerate_available

from spsbench.checkpoints.config import check_shareable
from spsbench.checkpoints.weights import WHOLE, read_headers, stale_names, weight_files
from spsbench.errors import DataError, UsageError
from spsbench.hardware.ranks import missing_ranks, ranks
from spsbench.models.adapters import merge_adapters
from spsbench.models.devices import check_dtype, choose_dtype, find_device, warn_of_memory
from spsbench.models.third_party import open_config, silence, translate_errors
from spsbench.parallel.process_group import join_group, lost_rank_as_error, share_model
from spsbench.settings.execution import Access
from spsbench.settings.models import ModelSpec

log = logging.getLogger(__name__)

LAYER = re.compile(r"\.\d++(?=\.)")  # in the name of a tensor
LARGEST = 65504.0  # float16's; trained weights stay far below it
MORE_LAYERS = "num_nextn_predict_layers"  # in a config: layers that draft

_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)  # what aminmax reads


def load_model(
    folder: Path, spec: ModelSpec, access: Access = Access(), *, mapped: bool = False
) -> PreTrainedModel:
    """Load the model in `folder`: in eval mode, on its device, without gradients, adapters merged.

    `folder` has passed `check_folder`. Of `spec` the id, the revision and the format of weights are
    not read; several ranks each call this, and get their share. `access` says whether pickles are
    read where there are no safetensors. With `mapped` tensors may be parts of the files until
    `materialise` copies them. A warning tells of too little memory. DataError: weights that are
    damaged, not whole, not finite or not read in full, or a model that ranks cannot share.
    UsageError, UnavailableError: no such dtype or device. OutOfMemoryError.
    """
    place = find_device(spec.device)
    size, remote = spec.ranks, spec.trust_remote_code
    check_dtype(spec.dtype)
    files = weight_files(folder, allow_pickle=access.allow_pickle)
    with translate_errors("the model", folder), silence():
        config = open_config(folder, trust_remote_code=remote)
        number = choose_dtype(spec.dtype, place, files)
        wide = torch.promote_types(number, torch.float32) if spec.adapter else number
        if size == 1:
            warn_of_memory(files, number, place)
        options: dict[str, Any] = {
            "dtype": wide,
            "output_loading_info": True,
            "ignore_mismatched_sizes": True,  # `check_complete` names them
        }
        if spec.attention is not None:
            options["attn_implementation"] = spec.attention
        if place.type == "cuda" and size == 1 and not spec.adapter and is_accelerate_available():
            options["device_map"] = {"": place}  # tensor by tensor, without a copy on the host
        kind = plain_class(config)
        if size > 1:
            check_shareable(kind, config, size, folder)
            options["distributed_config"] = DistributedConfig(tp_size=size)
        if kind is None or remote or files[0].suffix != ".safetensors":
            check_transformers_reads(files)
            model, info = AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                local_files_only=True,
                use_safetensors=files[0].suffix == ".safetensors",
                trust_remote_code=remote,
                **options,
            )
        else:
            check_layers(kind, config, files)
            parts = mapped and place.type == "cpu" and size == 1
            tensors = lazy_tensors(files, widen=wide == torch.float32, mapped=parts)
            model, info = kind.from_pretrained(None, config=config, state_dict=tensors, **options)
            if (folder / "generation_config.json").is_file():
                model.generation_config = GenerationConfig.from_pretrained(folder)
        check_complete(info, folder, model)
        model.config.name_or_path = str(folder)
        merge_adapters(model, spec.adapter, number)
        model.requires_grad_(False)
        model = (model.to(place) if size == 1 else model).eval()
        check_sound(model, folder)
    return model


def check_transformers_reads(files: list[Path]) -> None:
    """Raise DataError for a whole file in the shards' folder, or a tensor in two; pickles pass."""
    if files[0].suffix != ".safetensors":
        return
    whole, first = files[0].parent / WHOLE, files[0]
    if whole.is_file() and first != whole:
        raise DataError(
            f"{WHOLE} next to shards ({whole.parent}): expected one of them. Remove what is stale"
        )
    for path in files:
        with safe_open(path, framework="pt") as file:
            if stale := stale_names(path, file.keys()):
                raise DataError(
                    f"{min(stale)} twice ({path}): expected each tensor in one file. Fetch the "
                    "model again"
                )


def plain_class(config: transformers.PreTrainedConfig) -> Any:
    """Return the class that loads tensor by tensor; None: packed weights, or a part of a model."""
    kind = transformers.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    packed = getattr(config, "quantization_config", None) is not None
    plain = isinstance(kind, type) and getattr(kind, "config_class", None) is type(config)
    return kind if plain and not packed else None


def check_complete(
    info: Mapping[str, Collection[Any]], folder: Path, model: PreTrainedModel | None = None
) -> None:
    """Raise DataError for tensors that are missing, have another shape, or would be left out.

    `info` is transformers' loading info of the weights in `folder`. A tensor is left out where it
    belongs to a module that computes without it, or to a layer beyond those of config.json. Other
    unused ones are counted in a note, as are all of a `model` with packed weights or layers that
    draft. Without a model unused tensors are neither refused nor noted.
    """
    todo = "Fetch the model again, or choose its causal version"
    if missing := info.get("missing_keys", ()):
        first = min(str(name) for name in missing)
        raise DataError(
            f"the weights lack {len(missing)} tensors, such as {first} ({folder}): expected a "
            f"whole causal language model. {todo}"
        )
    if other := info.get("mismatched_keys", ()):
        name, shape, expected_shape = min(other, key=str)
        raise DataError(
            f"{name} has the shape {_shape(shape)} ({folder}): expected {_shape(expected_shape)} "
            f"by config.json, as for {len(other)} tensors in all. {todo}"
        )
    unused = sorted(map(str, info.get("unexpected_keys", ())))
    if model is None or not unused:
        return
    names, kind = [name for name, _ in model.named_parameters()], type(model).__name__
    places = {name.rpartition(".")[0] for name in names} | {LAYER.sub("", name) for name in names}
    both = [name for key in unused for name in (key, f"{model.base_model_prefix}.{key}")]
    lost = [name for name in both if {name.rpartition(".")[0], LAYER.sub("", name)} & places]
    config = model.config
    if lost and not any(getattr(config, key, None) for key in ("quantization_config", MORE_LAYERS)):
        raise DataError(
            f"{len(unused)} tensors are not used by config.json, such as {lost[0]} ({folder}): "
            f"expected those of {kind} alone. Correct config.json"
        )
    log.info(f"note: {kind} does not use {len(unused)} tensors of {folder}, such as {unused[0]}")


def check_layers(kind: Any, config: transformers.PreTrainedConfig, files: Sequence[Path]) -> None:
    """Raise DataError for tensors of other shapes or layers than config.json's, before one is read.

    Only the headers of `files`, safetensors in one folder, are read, and a model of class `kind` is
    made without memory. Layers count as a whole: single tensors that are missing or too many, and
    names that transformers converts, are left to `check_complete` after loading.
    """
    with no_init_weights(), torch.device("meta"):
        model = kind(copy.deepcopy(config))
    stored = {name: header.shape for name, header in read_headers(files).items()}
    described = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    layers, expected_layers = ({_layer(name) for name in names} for names in (stored, described))
    kinds = {LAYER.sub("", name) for name in layers} & {LAYER.sub("", n) for n in expected_layers}
    unequal = {name for name in layers ^ expected_layers if LAYER.sub("", name) in kinds}
    info = {
        "missing_keys": [name for name in described if _layer(name) in unequal],
        "mismatched_keys": [
            (name, shape, described[name])
            for name, shape in stored.items()
            if described.get(name, shape) != shape
        ],
        "unexpected_keys": [name for name in stored if _layer(name) in unequal],
    }
    check_complete(info, files[0].parent, None if getattr(config, MORE_LAYERS, None) else model)


def _layer(name: str) -> str:
    """Return a tensor's name up to its layer's number, as `model.layers.3.`; "": in none."""
    match = LAYER.search(name)
    return name[: match.end() + 1] if match else ""


def _shape(sizes: Iterable[int]) -> str:
    return "x".join(map(str, sizes)) or "of one number"


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a tensor: all of it where it is not shared."""
    local = getattr(tensor, "to_local", None)
    return tensor if local is None else cast(torch.Tensor, local())


def _small(tensor: torch.Tensor) -> bool:
    """Return whether the norm proves all numbers finite and not too large; False off the CPU."""
    if tensor.device.type != "cpu":  # where each look waits
        return False
    return bool(torch.linalg.vector_norm(tensor) < LARGEST / 2)  # rounding is far below that


@torch.inference_mode()
def check_sound(model: PreTrainedModel, folder: Path) -> None:
    """Raise DataError for a model with NaN or infinite numbers, or a weight above `LARGEST`.

    Buffers may hold any finite number: some are masks. Of a shared model this rank's part is read.
    """
    learned, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    tensors = {name: local_part(tensor) for name, tensor in (learned | buffers).items()}
    # No number is larger than their norm, which is read faster: mostly that suffices. Else the
    # extremes, which are finite if and only if all numbers are. Neither needs a copy of a tensor.
    tensors = {
        name: tensor
        for name, tensor in tensors.items()
        if tensor.dtype in _FLOATS and tensor.numel() and not _small(tensor)
    }
    bounds = [torch.stack(torch.aminmax(tensor)).double().cpu() for tensor in tensors.values()]
    for name, bound in zip(tensors, bounds, strict=True):
        if not bool(bound.isfinite().all()):
            raise DataError(
                f"{name} has numbers that are not finite ({folder}): expected finite weights. "
                "Fetch the model again, or choose another `dtype`"
            )
        largest = float(bound.abs().max())
        if largest > LARGEST and name in learned:
            raise DataError(
                f"{name} has a weight of {largest:.3g} ({folder}): expected {LARGEST:g} at most, "
                "as training leaves behind. Fetch the model again"
            )


def load_shared(folder: Path, spec: ModelSpec, access: Access) -> PreTrainedModel:
    """Load this rank's share of the model in `folder`, while the other ranks load theirs.

    `folder` has passed `check_folder`, and all ranks see it under this name; `spec` says how many
    they are. Joins them and waits. UsageError: this process is alone, or a device that ranks cannot
    share. LostRankError: another rank ends. Other SpsErrors: as `load_model`.
    """
    if ranks().size == 1:
        raise missing_ranks(str(folder), spec.ranks)
    join_group()
    with lost_rank_as_error():
        model = load_model(folder, replace(spec, device=own_device(spec.device)), access)
    share_model(model)
    return model


def own_device(device: str) -> str:
    """Return this rank's device: transformers uses accelerators for a shared model if it sees any.

    `cuda:N` by the rank's number here, or without GPUs `cpu`. UsageError: `device` is neither
    `auto` nor that kind, without a number.
    """
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    if device not in (kind, "auto"):
        hide = "Hide the accelerators with CUDA_VISIBLE_DEVICES="
        raise UsageError(
            f"`device` {device} with several ranks: expected {kind}, on which ranks share a model "
            f"here. {hide if device == 'cpu' else 'Leave it'}"
        )
    return f"cuda:{ranks().local}" if kind == "cuda" else kind


# Tensors that are read on access, and widened piece by piece. transformers keeps a checkpoint
# mapped until all of it is loaded: with a conversion that is one more copy of the whole model in
# memory. Here it is one piece of one tensor for each reading thread. An engine that packs weights
# reads each once: tensors may be parts of the mapped file until `materialise`, which spares the
# engine a copy in fresh memory that costs more than packing itself.

PIECE = 16 << 20  # bytes of the widened tensor
_NARROW = ("BF16", "F16")
_PARTS: set[int] = set()
"""Addresses of tensors that are parts of files; one too many costs a copy."""


class LazyTensor:
    """A tensor of a file, which safetensors opens as `view`; as float32 when `widen` is set.

    `[...]` reads all of it, slices a part: the share of a rank. `mapped`: the file is mapped.
    """

    def __init__(self, view: Any, *, widen: bool, mapped: bool = False) -> None:
        self._view, self._mapped = view, mapped
        self._widen = widen and view.get_dtype() in _NARROW

    def get_shape(self) -> list[int]:
        """Return the sizes of the tensor's axes."""
        return list(self._view.get_shape())

    def get_dtype(self) -> str:
        """Return the safetensors name of what `[...]` returns."""
        return "F32" if self._widen else str(self._view.get_dtype())

    def __getitem__(self, index: EllipsisType | tuple[slice, ...]) -> Tensor:
        if index is not ...:
            part: Tensor = self._view[index]
            return part.float() if self._widen else part
        shape = self.get_shape()
        if not self._widen or not shape or 0 in shape:
            whole: Tensor = self._view[...]
            if self._mapped:
                _PARTS.add(whole.data_ptr())
            return whole
        wide = torch.empty(shape, dtype=torch.float32)
        rows = max(1, PIECE // wide[0].nbytes)
        for start in range(0, shape[0], rows):
            end = min(start + rows, shape[0])
            wide[start:end] = self._view[start:end]
        return wide


def lazy_tensors(files: list[Path], *, widen: bool, mapped: bool = False) -> dict[str, LazyTensor]:
    """Return name -> unread tensor of safetensors; `widen`: half precision is read as float32.

    Of copies the index decides, else the last file. `mapped`: tensors are parts of mapped files.
    """
    tensors: dict[str, LazyTensor] = {}
    for path in files:
        # Elsewhere read: mapped pages of the file would count as memory of the process.
        how = {} if mapped else {"backend": "pread"}
        file: Any = safe_open(path, framework="pt", **how)
        stale = stale_names(path, file.keys())
        for name in (name for name in file.keys() if name not in stale):  # noqa: SIM118
            tensors[name] = LazyTensor(file.get_slice(name), widen=widen, mapped=mapped)
    return tensors


@torch.no_grad()
def materialise(model: nn.Module) -> None:
    """Copy, in place, the tensors of `model` that are still parts of a file, which may change."""
    for tensor in (*model.parameters(), *model.buffers()):
        # A rank's share is a copy already, and has no address to ask for.
        plain = type(tensor.data) is Tensor and tensor.layout == torch.strided
        if plain and tensor.data_ptr() in _PARTS:
            tensor.data = tensor.data.clone()
    _PARTS.clear()
