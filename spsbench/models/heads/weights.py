"""Tensors of drafters: of heads in a known format, and of folders that drafters read."""

import hashlib
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from spsbench.errors import DataError, MissingError, SpsError, UsageError
from spsbench.loop.drafter_context import OwnWeights
from spsbench.models.config import read_config, read_object
from spsbench.models.devices import check_dtype, choose, find_device, warn_of_memory
from spsbench.models.folder import locate
from spsbench.models.heads.checkpoint import Checkpoint
from spsbench.models.heads.description import Description
from spsbench.models.heads.reading import described, tell
from spsbench.models.weights import read_headers, stale_names
from spsbench.settings.execution import Access
from spsbench.settings.models import BLOCKS, ModelSpec

log = logging.getLogger(__name__)

FEW = 8  # names in a message
TRAINING = "training.json"  # beside a head that `sps train` wrote
LARGE = 1 << 20


@dataclass(frozen=True, slots=True)
class Head:
    """A head with its weights. `kept` caches what is made of them."""

    description: Description
    tensors: Mapping[str, Tensor]  # by parameter of its network
    kept: dict[str, Any] = field(default_factory=dict)
    target_mark: str | None = None  # `mark_of` the target that it was trained for, where known


def head_weights(
    spec: ModelSpec,
    access: Access,
    *,
    family: str,
    answers: Mapping[str, Any],
    target: tuple[str, Mapping[str, Any]],
) -> Head:
    """Read the head that `spec` names, for the drafter `family`; no tokenizer is asked for.

    Args:
        spec: folder or hub id, device and dtype.
        access: as for models.
        family: the drafter that is to read it.
        answers: arguments of that drafter, which settle what the files leave open.
        target: name and config of the target.
    """
    check_dtype(spec.dtype)
    if spec.random:
        raise UsageError(
            f"random weights for the head {spec.id}: expected its tensors. Leave out "
            "`random_weights` and `draft_weights`"
        )
    folder = locate(spec, access)
    files, description = described(
        folder,
        target[1],
        names=(target[0], spec.id),
        family=family,
        answers=answers,
        allow_pickle=access.allow_pickle,
    )
    tell(description, spec.id)
    if spec.weights == BLOCKS:
        log.info(f"note: the head {spec.id} has no GGUF blocks: its weights are those of its files")
    device = find_device(spec.device)
    number = choose(spec.dtype, device, files.files)
    warn_of_memory(files.files, number, device)
    read = by_name(files, set(description.names.values()))
    tensors = {}
    for parameter, name in description.names.items():
        tensor = read[name]
        check_finite(tensor, name, folder)
        tensors[parameter] = tensor.to(device, number if tensor.is_floating_point() else None)
    noted: dict[str, Any] = {}
    with suppress(SpsError, OSError):  # a file of that name by others says nothing here
        noted = read_object(folder / TRAINING, LARGE)
    return Head(description, tensors, target_mark=noted.get("target_mark"))


def mark_of(model: nn.Module) -> str | None:
    """Return a hash of the last norm of `model` in bfloat16, which further training changes."""
    norms = [weight for weight in model.parameters() if weight.ndim == 1]
    if not norms:
        return None
    bits = norms[-1].detach().to("cpu", torch.bfloat16).contiguous().view(torch.uint8)
    return hashlib.sha256(bits.numpy().tobytes()).hexdigest()[:16]


def own_weights(spec: ModelSpec, access: Access) -> OwnWeights:
    """Read the folder that `spec` names, onto its device; no tokenizer is asked for.

    Floating point has the draft's dtype, as a model's has: `auto` is float32 on a CPU.
    """
    check_dtype(spec.dtype)
    if spec.random:
        raise UsageError(
            f"random weights for the drafter's own folder {spec.id}: expected its tensors. Leave "
            "out `random_weights` and `draft_weights`"
        )
    folder = locate(spec, access)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise MissingError(
            f"no tensors ({folder}): expected *.safetensors for the drafter. Check `draft`"
        )
    read_headers(files)
    device = find_device(spec.device)
    number = choose(spec.dtype, device, files)
    warn_of_memory(files, number, device)
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


class Tensors(dict[str, Tensor]):
    """The tensors of a folder by name; a missing one raises an error that names the folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __missing__(self, name: str) -> Tensor:
        some = ", ".join(sorted(self)[:FEW]) + (", ..." if len(self) > FEW else "")
        raise DataError(
            f"no tensor {name} ({self._folder}): expected it beside {some or 'none'}. Check `draft`"
        )


def by_name(files: Checkpoint, names: set[str]) -> dict[str, Tensor]:
    """Load the tensors `names` of a checkpoint."""
    tensors: dict[str, Tensor] = {}
    for path in files.files:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as opened:
                present = names & set(opened.keys())
                present -= stale_names(path, present)
                tensors |= {name: opened.get_tensor(name) for name in present}
            continue
        try:
            held = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # whatever an unpickler raises
            raise DataError(
                f"{path.name} cannot be read ({path}): expected bare tensors. Convert it to "
                "safetensors"
            ) from error
        tensors |= {name: held[name].detach() for name in names & held.keys()}
    return tensors


def check_finite(tensor: Tensor, name: str, folder: Path) -> None:
    """Refuse NaN and infinite numbers."""
    if not tensor.is_floating_point() or not tensor.numel():
        return
    if not bool(torch.stack(torch.aminmax(tensor)).isfinite().all()):
        raise DataError(
            f"{name} has numbers that are not finite ({folder}): expected finite weights. Fetch "
            "the head again"
        )
