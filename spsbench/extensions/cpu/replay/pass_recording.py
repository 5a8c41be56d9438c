"""Recorder of one pass of a model: which operations precede its layers, and which follow them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from spsbench.engines import linear_layers
from spsbench.engines.session.masks import PassInputs
from spsbench.extensions.cpu.replay.graph_capture import (
    VALUES,
    LayerInputs,
    Watch,
    asker,
    storage_of,
    where,
)
from spsbench.extensions.cpu.replay.layer_replay import ReplayedLayer
from spsbench.extensions.cpu.replay.operations import RefusedError, Step


class Call(NamedTuple):
    """A layer's turn in a pass."""

    layer: ReplayedLayer
    key: Any  # of its program
    tables: Mapping[int, int]  # number of an input -> which table
    mask: str | None  # which mask
    slides: bool  # it has a window
    of_positions: Sequence[int]  # which of the functions of positions that it is given are read


class Recording(Watch):  # type: ignore[no-untyped-call]
    """Recorder of a pass outside of its layers; `refused` says why it cannot be a program.

    Tensors are functions of positions alone, or of the weights alone, or are computed by operations
    that are recorded.

    Args:
        request: the pass.
        weights: all tensors outside of the layers.
        like: the calls of a recorded pass, for other positions; layers are then not run.
    """

    def __init__(
        self, request: PassInputs, weights: Sequence[Tensor], like: Sequence[Call] | None = None
    ) -> None:
        super().__init__(cacheless_inputs([request.ids], weights))
        self.masks = request.named_masks()
        self.positions = {storage_of(request.positions)}
        self.read: list[Tensor] = []  # functions of positions that operations or layers read
        self.calls: list[Call] = []
        self.states: list[Tensor] = []  # before the first layer, and after each
        self.first = 0  # operations before the first layer
        self.ends: dict[int, int] = {}  # by storage: operations when it was made
        self.constants: list[Tensor] = []
        self.refused: str | None = None
        self._weights = frozenset(map(storage_of, weights))
        self._changing = {storage_of(request.ids)}
        self._like, self._alive, self.paused = like, list[Any](), False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.paused or self.refused:
            return func(*args, **kwargs)
        storages = [storage_of(x) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        if any(storage in self.outputs or storage in self._changing for storage in storages):
            return super().__torch_dispatch__(func, types, args, kwargs)
        out = func(*args, **kwargs)
        self._alive.append(out)  # no address is used again
        if any(storage in self.positions for storage in storages):
            self.positions.update(map(storage_of, tree_leaves(out)))
        return out

    def record(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Record an operator; `refused` says why it cannot be one of a program."""
        try:
            super().record(func, args, kwargs, out)
        except RefusedError as error:
            self.refuse(str(error))

    def _add(self, steps: Sequence[Step], out: Any) -> None:
        super()._add(steps, out)
        self.ends |= {storage_of(leaf): len(self.steps) for leaf in tree_leaves(out)}
        for tensor in (operand for step in steps for operand in step.at if operand is not None):
            storage = storage_of(tensor)
            if storage in self.positions:
                self._reads(tensor)
            elif storage not in {*self.outputs, *self._weights, *self._changing}:
                self.constants += [tensor] if tensor.numel() == 1 else []

    def _reads(self, tensor: Tensor) -> int:
        """Return the number of a function of positions among those that are read."""
        places = [where(table) for table in self.read]
        if where(tensor) not in places:
            self.read.append(tensor)
            return len(places)
        return places.index(where(tensor))

    def refuse(self, why: str) -> None:
        """Set why the pass cannot be a program, unless it is set."""
        self.refused = self.refused or why

    def call(
        self, layer: ReplayedLayer, key: Any, tensors: Sequence[Tensor], run: Callable[[], Any]
    ) -> Any:
        """Return the result of a layer, and record which inputs it reads."""
        if not self.calls:
            self.first, self.states = len(self.steps), [tensors[0]]
        elif self.first != len(self.steps) or where(tensors[0]) != where(self.states[-1]):
            self.refuse("the model changes hidden states between its layers")
        position_inputs = {n: x for n, x in enumerate(tensors) if storage_of(x) in self.positions}
        if self._like is not None:
            call, places = self._like[len(self.calls)], list(position_inputs.values())
            if max(call.of_positions, default=-1) >= len(places):
                raise RefusedError("layers get other inputs for other positions")
            for n in call.of_positions:
                self._reads(places[n])
            self.calls.append(call)
            self.states = [tensors[0]]
            return tensors[0]
        self.paused = True
        try:
            out = run()
        finally:
            self.paused = False
        program = layer.replay.programs.get(key)
        if program is None or not isinstance(out, Tensor):
            self.refuse(layer.replay.refused or "a layer is no program")
            return out
        mask = None if program.mask is None else where(tensors[program.mask])
        masks = [name for name, candidate in self.masks.items() if where(candidate) == mask]
        used = program.used - {0}
        if not used <= position_inputs.keys() or (mask is not None and not masks):
            self.refuse("a layer reads what is neither a mask nor a function of positions")
            return out
        tables = {n: self._reads(position_inputs[n]) for n in sorted(used)}
        slides = getattr(layer.replay.room(layer.number), "is_sliding", False)
        read = [n for n, number in enumerate(position_inputs) if number in used]
        self.calls.append(Call(layer, key, tables, masks[0] if masks else None, slides, read))
        self.states.append(out)
        self._changing.add(storage_of(out))
        self.input_storages.add(storage_of(out))
        return out

    def fixed(self) -> list[float]:
        """Return the numbers that must be equal in every pass: weights' offsets, and constants."""
        places = [x for step in self.steps for x in step.at if x is not None]
        read: list[float] = [
            int(x.storage_offset()) for x in places if storage_of(x) in self._weights
        ]
        reals = [real for step in self.steps for real in step.real]
        return [*read, *reals, *map(float, self.constants)]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record the operators called inside the context."""
        with _Values(self), self:
            yield


class _Values(TorchFunctionMode):
    """Guard against control flow that depends on values."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.recording = recording

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any | None = None
    ) -> Any:
        looks = getattr(func, "__name__", "") in VALUES and not self.recording.paused
        if looks and asker() != linear_layers.__file__:  # which checks ids
            self.recording.refuse("its course depends on values")
        return func(*args, **(kwargs or {}))


def cacheless_inputs(tensors: Sequence[Tensor], state: Sequence[Tensor]) -> LayerInputs:
    """Return the inputs of operations that have no cache."""
    none = torch.empty(0)
    return LayerInputs(tensors, none, none, none, none, state)
