"""Load a model whose weights several ranks share: each reads its part."""

import pickle
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from spsbench.distributed.tensor_parallel import channel, request_load, share
from spsbench.errors import UsageError
from spsbench.hardware.ranks import MissingRanksError, ranks
from spsbench.models.loader import load_model


def load_shared(folder: Path, *, size: int, **how: Any) -> PreTrainedModel:
    """Load rank 0's share of the model in `folder` while the other ranks load theirs.

    Args:
        folder: one that `check_folder` has passed; the other ranks must see it under this name.
        size: how many ranks there are.
        how: as `load_model` takes it.

    Raises:
        MissingRanksError: this is the only process.
        UsageError: a device that ranks cannot share.
        SpsError: as of `load_model`.
    """
    if ranks().size == 1:
        raise MissingRanksError(str(folder), size, how["device"])
    how["device"] = _device(how["device"])
    request = {"folder": str(folder), "threads": torch.get_num_threads(), "size": size, **how}
    with channel().exchange():
        request_load(pickle.dumps(request))
        model = load_model(folder, ranks=size, **how | {"device": _mine(how["device"])})
    share(model, size)
    return model


def load_share(request: bytes) -> PreTrainedModel:
    """Load this rank's share of the model that rank 0 asked for."""
    how = pickle.loads(request)  # from rank 0 of the same user's program
    torch.set_num_threads(how.pop("threads"))
    folder, size = Path(how.pop("folder")), how.pop("size")
    how["device"] = _mine(how["device"])
    return load_model(folder, ranks=size, **how)


def _device(asked: str) -> str:
    """Return `cpu` or `cuda`: transformers uses the accelerators for a shared model if it sees any.

    Raises:
        UsageError: another one, or the one that is not used.
    """
    there = "cuda" if torch.cuda.is_available() else "cpu"
    if asked not in (there, "auto"):
        hint = "Hide the accelerators with CUDA_VISIBLE_DEVICES= " if asked == "cpu" else "Leave it"
        raise UsageError(
            f"--device {asked} with --parallel: expected {there}, on which ranks share a model "
            f"here. {hint.rstrip()}"
        )
    return there


def _mine(device: str) -> str:
    return f"cuda:{ranks().local}" if device == "cuda" else device
