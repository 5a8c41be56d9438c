"""Loading of a checked folder to a model in memory, complete and with finite weights."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedModel,
)
from transformers.distributed import DistributedConfig

from spsbench.errors import DataError
from spsbench.models.config import check_shareable
from spsbench.models.devices import check_dtype, choose, find_device, warn_of_memory
from spsbench.models.lazy import lazy_tensors
from spsbench.models.third_party import silent, translated
from spsbench.models.weights import weight_files

_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)  # what aminmax reads


def load_model(
    folder: Path,
    *,
    device: str,
    dtype: str,
    attention: str | None,
    trust_remote_code: bool,
    allow_pickle: bool,
    ranks: int = 1,
    mapped: bool = False,
) -> transformers.PreTrainedModel:
    """Load the model in `folder`: in eval mode, on its device, without gradients.

    Args:
        folder: one that `check_folder` has passed.
        device: as `find_device` reads it.
        dtype: `auto` (the checkpoint's on an accelerator, float32 on a CPU) or one of `DTYPES`.
        attention: transformers' name of an attention implementation; None = its choice.
        trust_remote_code: run the model's own Python code.
        allow_pickle: read pickled weights where there are no safetensors.
        ranks: how many of them share its weights; each calls this, and reads its share alone.
        mapped: tensors may be parts of the files until `lazy.settle` copies them.

    Raises:
        UnavailableError: no such device.
        UsageError: no such dtype.
        OutOfMemoryError: the memory did not suffice.
        DataError: a model that cannot be loaded, is incomplete, or has numbers that are not finite.
    """
    place = find_device(device)
    check_dtype(dtype)
    files = weight_files(folder, allow_pickle=allow_pickle)
    with translated("the model", folder), silent():
        config = AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trust_remote_code
        )
        number = choose(dtype, place, files)
        if ranks == 1:
            warn_of_memory(files, number, place)
        options: dict[str, Any] = {
            "dtype": number,
            "output_loading_info": True,
            "ignore_mismatched_sizes": True,  # `check_complete` names them
        }
        if attention is not None:
            options["attn_implementation"] = attention
        kind = plain_class(config)
        if ranks > 1:
            check_shareable(kind, config, ranks, folder)
            options["distributed_config"] = DistributedConfig(tp_size=ranks)
        if kind is None or trust_remote_code or files[0].suffix != ".safetensors":
            model, info = AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                local_files_only=True,
                use_safetensors=files[0].suffix == ".safetensors",
                trust_remote_code=trust_remote_code,
                **options,
            )
        else:
            parts = mapped and place.type == "cpu" and ranks == 1
            tensors = lazy_tensors(files, widen=number == torch.float32, mapped=parts)
            model, info = kind.from_pretrained(None, config=config, state_dict=tensors, **options)
            if (folder / "generation_config.json").is_file():
                model.generation_config = GenerationConfig.from_pretrained(folder)
        check_complete(info, folder)
        model.requires_grad_(False)
        model = (model.to(place) if ranks == 1 else model).eval()
        model.config.name_or_path = str(folder)
        check_sound(model, folder)
    return model


def plain_class(config: transformers.PreTrainedConfig) -> Any:
    """Return the class that loads tensor by tensor; None for packed weights and parts of models."""
    kind = transformers.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    packed = getattr(config, "quantization_config", None) is not None
    plain = isinstance(kind, type) and getattr(kind, "config_class", None) is type(config)
    return kind if plain and not packed else None


def check_complete(info: Mapping[str, Collection[Any]], folder: Path) -> None:
    """Refuse a model with tensors that transformers had to initialise.

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
    """Return this rank's part of a tensor: all of it where it is not shared."""
    local = getattr(tensor, "to_local", None)
    return tensor if local is None else cast(torch.Tensor, local())


LARGEST = 65504.0  # of a weight: float16's own; those of trained models stay far below it


def _tensors(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _small(tensor: torch.Tensor) -> bool:
    """Return whether the norm alone proves that all numbers are finite and none too large."""
    if tensor.device.type != "cpu":  # where each look waits
        return False
    return bool(torch.linalg.vector_norm(tensor) < LARGEST / 2)  # rounding is far below that


@torch.inference_mode()
def check_sound(model: PreTrainedModel, folder: Path) -> None:
    """Refuse a model with NaN or infinite weights, or with numbers beyond any training.

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
