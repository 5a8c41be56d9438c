"""The tensors of a drafter's own: a folder of safetensors, with or without a config.json."""

from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from spsbench.errors import DataError, MissingError, UsageError
from spsbench.loop.site import OwnWeights
from spsbench.models.description import read_config
from spsbench.models.devices import find_device
from spsbench.models.folder import locate
from spsbench.models.precision import check_dtype, choose, warn_of_memory
from spsbench.models.weights import read_headers
from spsbench.settings.models import ModelSpec

FEW = 8  # names in a message


class Tensors(dict[str, Tensor]):
    """The tensors of a folder by name; one that is not there is an error that names the folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __missing__(self, name: str) -> Tensor:
        some = ", ".join(sorted(self)[:FEW]) + (", ..." if len(self) > FEW else "")
        raise DataError(
            f"no tensor {name} ({self._folder}): expected it beside {some or 'none'}. Check --draft"
        )


def own_weights(spec: ModelSpec, *, offline: bool, allow_pickle: bool) -> OwnWeights:
    """Read the folder that `spec` names, onto its device; no tokenizer is asked for.

    Floating point has the draft's dtype, as a model's has: `auto` is float32 on a CPU.

    Raises:
        MissingError: no folder, or no safetensors in it.
        DataError: a damaged file, or a tensor that two files have.
    """
    check_dtype(spec.dtype)
    if spec.random:
        raise UsageError(
            f"random weights for the drafter's own folder {spec.id}: expected its tensors. Leave "
            "out --random-weights and --draft-weights"
        )
    folder = locate(
        spec,
        offline=offline,
        allow_pickle=allow_pickle,
        trust_remote_code=spec.trust_remote_code,
    )
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise MissingError(
            f"no tensors ({folder}): expected *.safetensors for the drafter. Check --draft"
        )
    read_headers(files)
    device = find_device(spec.device)
    number = choose(spec.dtype, device, files)
    warn_of_memory(files, number, device)
    tensors = Tensors(folder)
    for file in files:
        for name, tensor in load_file(file, device=str(device)).items():
            if name in tensors:
                raise DataError(f"{name} twice ({file}): expected each tensor in one file")
            tensors[name] = tensor.to(number) if tensor.is_floating_point() else tensor
    config = read_config(folder) if (folder / "config.json").is_file() else {}
    return OwnWeights(folder, config, tensors)
