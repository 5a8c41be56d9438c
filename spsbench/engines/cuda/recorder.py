"""CUDA graphs: work that is recorded once and then started as a whole."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch

Result = TypeVar("Result")


class Recording(Generic[Result]):
    """A graph and what it writes, which the next replay overwrites."""

    def __init__(self, graph: torch.cuda.CUDAGraph, result: Result) -> None:
        # The result is held as long as the graph: no other recording may be given its memory.
        self._graph, self._result = graph, result

    def replay(self) -> Result:
        """Do it again, with what its operands hold now."""
        self._graph.replay()
        return self._result


class Recorder:
    """Records on one stream and in one pool of memory, for graphs that never run at once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._aside: Any = None
        self._pool: Any = None

    def record(self, work: Callable[[], Result]) -> Recording[Result]:
        """Run `work` twice, then record it; it must bear repetition.

        In the first run libraries choose kernels and take memory. In the second waiting for the
        device is an error, so that a recording that cannot succeed is not begun: before torch 2.12
        one that failed left the allocator unable to free memory, and to record anything after it.

        Raises:
            RuntimeError: it waits for the device, or does what else a graph cannot.
        """
        with torch.cuda.device(self._device):
            here = torch.cuda.current_stream()
            self._aside = self._aside or torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._aside.wait_stream(here)
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.stream(self._aside):  # left even where a failed recording stays
                    work()
                    with no_waiting():
                        work()
                    with torch.cuda.graph(
                        graph, self._pool, self._aside, capture_error_mode="thread_local"
                    ):
                        result = work()
            finally:
                here.wait_stream(self._aside)
            self._pool = graph.pool()
            return Recording(graph, result)


@contextmanager
def no_waiting() -> Iterator[None]:
    """Here an operator that makes the host wait raises a RuntimeError."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says once that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
