"""Layers as programs: what they ask of torch, by one call in C for as many as follow each other.

To find an operator, to look at its inputs and to make room for its result takes torch longer than a
small kernel takes. A program knows all of that beforehand.
"""

from collections.abc import Sequence
from ctypes import c_int, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

from spsbench.engines.kernels.native import library
from spsbench.engines.packing.memory import ALIGNED
from spsbench.engines.replay.ahead import Ready
from spsbench.engines.replay.binding import FIRST, Bound, Operation
from spsbench.engines.replay.graph_capture import Given, Listing


class Scratch:
    """Memory for what operations make, the same for all programs of a model."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8, device="cpu")

    def address(self, size: int) -> int:
        """Of so many bytes; what was there may be lost."""
        if len(self._memory) < size + ALIGNED:
            self._memory = torch.empty(size + ALIGNED, dtype=torch.uint8, device="cpu")
        start = self._memory.data_ptr()
        return start + -start % ALIGNED


class Program:
    """The operations of layers of one kind, for passes of one length.

    It is called as a trace of a layer is.
    """

    def __init__(self, given: Given, listing: Listing, scratch: Scratch) -> None:
        """`listing` was written down over what is given; it needs `scratch` while it runs.

        Raises:
            RefusedError: an operation reads what is not given.
        """
        bound = Bound(given, listing)
        steps, made = listing.steps, listing.result
        self._steps = (Operation * len(steps))(*(bound.step(step) for step in steps))
        self._scratch, self._size = scratch, bound.scratch
        self._tensors, self._each = len(given.tensors), FIRST + len(given.tensors)
        self._each += len(given.state)
        self._mask, self._forms = bound.mask, bound.forms()
        self._shape, self._dtype = tuple(made.shape), made.dtype
        found: Any = library()
        self._run = found.run_layers
        self._run.argtypes = [c_void_p, c_int64, c_void_p, c_void_p, *[c_int64] * 5, c_int]

    def fits(self, tensors: Sequence[Tensor], seen: int) -> bool:
        """Whether a pass with these inputs, whose layers see so many keys, is one of its kind."""
        for number, shape, stride, dtype in self._forms:
            x = tensors[number]
            if x.shape != shape or x.stride() != stride or x.dtype != dtype:
                return False
        if self._mask is None:
            return True
        mask = tensors[self._mask]
        shape = 1, 1, self._shape[1], seen
        return mask.shape == shape and mask.stride(3) == 1 and mask.dtype == self._dtype

    def __call__(self, *given: Tensor) -> Tensor:
        """The hidden states [1, m, D] after one layer."""
        count = self._tensors
        span, seen, keys, values = given[count : count + 4]
        room = keys.data_ptr(), values.data_ptr(), keys.shape[2]
        layers = [(list(map(Tensor.data_ptr, given[count + 4 :])), room)]
        return self._over(layers, given[:count], len(span), len(seen))[0]

    def through(
        self,
        layers: Sequence[Ready],
        tensors: Sequence[Tensor],
        end: int,
        seen: int,
    ) -> Tensor:
        """The hidden states [L, 1, m, D] after each of some layers, each over those before.

        Args:
            layers: one or more.
            tensors: what `fits`; hidden states first.
            end: tokens in the cache after the pass.
            seen: how many of them are read.

        Raises:
            MemoryError: no room for what an operation needs.
        """
        places = [(weights, room.addresses) for _, weights, room in layers]
        return self._over(places, tensors, end, seen)

    def _over(
        self,
        layers: Sequence[tuple[Sequence[int], tuple[int, int, int]]],
        tensors: Sequence[Tensor],
        end: int,
        seen: int,
    ) -> Tensor:
        made = torch.empty(len(layers), *self._shape, dtype=self._dtype, device="cpu")
        start, step = made.data_ptr(), made[0].nbytes
        x, *others = [tensor.data_ptr() for tensor in tensors]
        scratch = self._scratch.address(self._size)
        bases: list[int] = []
        for weights, (keys, values, _) in layers:
            bases += 0, scratch, start, keys, values, x, *others
            bases += weights
            x, start = start, start + step
        mask_step = 0 if self._mask is None else tensors[self._mask].stride(2)
        failed = self._run(
            self._steps,
            len(self._steps),
            (c_int64 * len(bases))(*bases),
            (c_int64 * len(layers))(*(room for _, (_, _, room) in layers)),
            self._each,
            len(layers),
            end,
            seen,
            mask_step,
            torch.get_num_threads(),
        )
        if failed:
            raise MemoryError("no memory for the operations of a layer")
        return made
