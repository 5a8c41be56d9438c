"""CUDA graphs without CUDA: what ran between begin and end of a recording, run again by `replay`.

As in a graph, what Python decided is frozen, every operator finds its operands where they were, and
results are written over the old ones; reading a value while recording is refused.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from spsbench.engines.cuda import static
from tests.simulated_device import READS, tensors_in


class TapeGraph:
    """In place of `torch.cuda.CUDAGraph`."""

    def __init__(self) -> None:
        self.steps: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self.replays = 0

    def pool(self) -> str:
        return "the pool"

    def replay(self) -> None:
        self.replays += 1
        for func, args, kwargs, results in self.steps:
            again = func(*args, **kwargs)
            for old, new in zip(results, tensors_in(again), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class Recording(TorchDispatchMode):
    """Notes every operator."""

    def __init__(self, graph: TapeGraph) -> None:
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__.split(".")[0] in READS | {"item"}:
            raise RuntimeError("operation not permitted when stream is capturing")
        out = func(*args, **(kwargs or {}))
        self.graph.steps.append((func, args, kwargs or {}, list(tensors_in(out))))
        return out


class NoWaiting(TorchDispatchMode):
    """`torch.cuda.set_sync_debug_mode`: in mode "error", reading a value is one."""

    def __init__(self) -> None:
        super().__init__()
        self.mode: str | int = 0

    def set(self, mode: str | int) -> None:
        if (mode == "error") != (self.mode == "error"):
            if mode == "error":
                self.__enter__()
            else:
                self.__exit__(None, None, None)
        self.mode = mode

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__.split(".")[0] in READS | {"item"}:
            raise RuntimeError("called a synchronizing CUDA operation")
        return func(*args, **(kwargs or {}))


class Stream:
    def wait_stream(self, other: object) -> None:
        pass


@contextmanager
def recorded(
    graph: TapeGraph, pool: object, stream: object, capture_error_mode: str
) -> Iterator[None]:
    try:
        with Recording(graph):
            yield
    except RuntimeError as error:  # what ends the recording says less
        raise RuntimeError("operation failed due to a previous error during capture") from error


def record_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on passes are recorded and replayed on the CPU."""
    waiting = NoWaiting()
    stand_ins: dict[str, object] = {
        "get_sync_debug_mode": lambda: waiting.mode,
        "set_sync_debug_mode": waiting.set,
        "CUDAGraph": TapeGraph,
        "graph": recorded,
        "Stream": Stream,
        "current_stream": lambda: Stream(),
        "stream": lambda stream: nullcontext(),
        "device": lambda device: nullcontext(),
    }
    owners = {(torch.cuda, name): value for name, value in stand_ins.items()}
    for (owner, name), value in {(static, "records"): lambda device: True, **owners}.items():
        monkeypatch.setattr(owner, name, value)
