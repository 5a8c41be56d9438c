"""Random numbers, models whose layers are all in one layout, and machines without a compiler."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from spsbench.engines.session.engine_config import EngineConfig
from spsbench.extensions.cpu.fast import pack_and_capture
from spsbench.extensions.cpu.kernels import native, steps
from spsbench.extensions.cpu.packing.panels import LAYOUTS


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal numbers, the same for the same shape."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def laid_out(model: PreTrainedModel, layout: str | None = None) -> EngineConfig:
    """Prepare the model on one thread, in one layout if it is named; return what was chosen."""
    kept = {layout: LAYOUTS[layout]} if layout else LAYOUTS
    with patch.dict(LAYOUTS, kept, clear=True):
        return pack_and_capture(model, previous=EngineConfig(engine="fast", threads=1))


def forget() -> None:
    """Have kernels looked for again."""
    for found in native.kernel, native.load_kernels, steps.in_c, steps.address, steps._record:
        found.cache_clear()
    steps._plans.clear()


@contextmanager
def without_compiler(empty: Path) -> Iterator[None]:
    """A machine without a C compiler, and with an empty cache of kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", "no-such-compiler")
        patch.setenv("XDG_CACHE_HOME", str(empty))
        forget()
        yield
    forget()
