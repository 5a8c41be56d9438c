"""CUDA graphs: work that is recorded once and then started as a whole."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

WARM_UP = 2  # runs before a recording: libraries choose kernels and take memory in the first ones

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
        """Run `work` a few times, then record it; it must bear repetition.

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
                    for _ in range(WARM_UP):
                        work()
                    with torch.cuda.graph(
                        graph, self._pool, self._aside, capture_error_mode="thread_local"
                    ):
                        result = work()
            finally:
                here.wait_stream(self._aside)
            self._pool = graph.pool()
            return Recording(graph, result)
