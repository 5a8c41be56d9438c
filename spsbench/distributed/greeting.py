"""How a worker that runs models introduces itself."""

from collections.abc import Mapping
from pathlib import Path

import torch

from spsbench.distributed.environment import environment, machine
from spsbench.distributed.protocol import Hello
from spsbench.distributed.same import place
from spsbench.methods.site import forget
from spsbench.settings.models import ModelSpec


def greeting(
    folders: Mapping[ModelSpec, Path], *, threads: int | None, beside: int, device: str
) -> Hello:
    """Begin anew with this many threads, and say what is here; no model is loaded.

    Raises:
        SpsError: a model's file cannot be read.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    forget()
    return Hello(place(), environment(folders), machine(beside, device))
