"""The tensors of a drafter's own: a folder of safetensors, with or without a config.json."""

from collections.abc import Callable

from safetensors.torch import load_file

from spsbench.errors import DataError, MissingError
from spsbench.loop.site import OwnWeights
from spsbench.models.description import read_config
from spsbench.models.devices import find_device
from spsbench.models.folder import locate
from spsbench.models.weights import read_headers
from spsbench.settings.models import ModelSpec


def own_weights(
    spec: ModelSpec, *, offline: bool, allow_pickle: bool, say: Callable[[str], None]
) -> OwnWeights:
    """Read the folder that `spec` names, onto its device; no tokenizer is asked for.

    Raises:
        MissingError: no folder, or no safetensors in it.
        DataError: a damaged file, or a tensor that two files have.
    """
    folder = locate(
        spec,
        offline=offline,
        allow_pickle=allow_pickle,
        trust_remote_code=spec.trust_remote_code,
        say=say,
    )
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise MissingError(
            f"no tensors ({folder}): expected *.safetensors for the drafter. Check --draft"
        )
    read_headers(files)
    device = str(find_device(spec.device))
    tensors = {}
    for file in files:
        for name, tensor in load_file(file, device=device).items():
            if name in tensors:
                raise DataError(f"{name} twice ({file}): expected each tensor in one file")
            tensors[name] = tensor
    config = read_config(folder) if (folder / "config.json").is_file() else {}
    return OwnWeights(folder, config, tensors)
