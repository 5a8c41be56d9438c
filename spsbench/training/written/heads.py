"""The folder of a head: config.json and safetensors."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from spsbench.errors import WriteError
from spsbench.store.atomic import replace_file

VERSION = "0.3.0"  # of the format


def speculator(kind: str, architecture: str, target: str, k: int) -> dict[str, Any]:
    """What every config.json of vllm-project/speculators begins with."""
    return {
        "architectures": [architecture],
        "speculators_model_type": kind,
        "speculators_version": VERSION,
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": k}],
            "verifier": {"name_or_path": target, "architectures": []},
        },
    }


def write_head(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], dtype: torch.dtype
) -> None:
    """Write a head; the config last, so that half a folder is none.

    Raises:
        WriteError: it could not be written.
    """
    whole = {
        name: tensor.detach().cpu().to(dtype if tensor.is_floating_point() else None).contiguous()
        for name, tensor in tensors.items()
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError.of(error, folder) from error
    replace_file(folder / "model.safetensors", save(whole, {"format": "pt"}))
    named = {**config, "torch_dtype": str(dtype).removeprefix("torch.")}
    replace_file(folder / "config.json", (json.dumps(named, indent=1) + "\n").encode())
