"""Programs of the passes of a drafter's own network: a head's, which is no model.

Each pass is captured once for every number of rows, with the tables and parts of the target that
it reads; its first runs are made by the network's own code as well, and must agree bit for bit.
"""

from collections.abc import Callable, Hashable, Sequence
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from spsbench.engines.replay import MAX_ROWS, NetworkPass, NetworkRollOut
from spsbench.extensions.cpu.replay.graph_capture import CaptureCache, LayerInputs, capture
from spsbench.extensions.cpu.replay.layer_program import (
    Draws,
    Part,
    Program,
    Scratch,
    Segment,
    Weights,
    run,
)
from spsbench.extensions.cpu.replay.layer_replay import CHECKS, parameters_and_buffers
from spsbench.extensions.cpu.replay.merged_products import merged
from spsbench.extensions.cpu.replay.operations import RefusedError
from spsbench.extensions.cpu.warp import WarpInC


class _Pass:
    """The program of one kind of pass."""

    def __init__(self, program: Program, weights: Weights) -> None:
        self.program, self.unchecked = program, CHECKS
        self.parts: Any = (Part * 1)()
        self.segment = Segment(program, weights, self.parts[0])


class NetworkReplay:
    """The programs of a network over parts of a target, shared by all of its drafters.

    Args:
        modules: the network first, and whatever else has weights that its passes read.

    Attributes:
        refused: why a pass is no program.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.modules = modules
        parts = [part for module in modules for part in module.modules()]
        self._weights = Weights([x for part in parts for x in parameters_and_buffers(part)])
        self._passes: dict[Any, _Pass | None] = {}  # by the kind of a pass
        self._scratch = Scratch()
        self._one = Lock()  # pass at a time
        self.refused: str | None = None

    def run(
        self,
        name: Hashable,
        plain: NetworkPass,
        tensors: Sequence[Tensor],
        mask: Any = None,
        cache: Any = None,
    ) -> Tensor:
        """See `engines.replay.NetworkReplay.run`: by a program, where there is one."""
        rooms, m = [] if cache is None else list(cache.layers), len(tensors[0])
        free = all(0 < room.length <= room.capacity - m for room in rooms)
        fits = m <= MAX_ROWS and len(rooms) == (cache is not None) and free
        if not fits or not self._weights.ready() or not self._one.acquire(blocking=False):
            return plain(tensors, mask, cache)
        try:
            return self._run((name, m, mask is None), plain, tensors, mask, cache, rooms)
        finally:
            self._one.release()

    def roll_out(
        self,
        name: Hashable,
        rows: Tensor,
        tables: Sequence[Tensor],
        cache: Any,
        draws: NetworkRollOut,
    ) -> bool:
        """See `engines.replay.NetworkReplay.roll_out`: with a checked program and room for n."""
        network_pass, n = self._passes.get((name, 1, True)), len(draws.ids)
        rooms = [] if cache is None else [cache.layers[0]]
        free = all(0 < room.length <= room.capacity - n for room in rooms)
        if network_pass is None or network_pass.unchecked or not free or not self._weights.ready():
            return False
        if not self._one.acquire(blocking=False):
            return False
        try:
            self._roll_out(network_pass, rows, [draws.ids, *tables, rows], rooms, draws)
        finally:
            self._one.release()
        for room in rooms:
            room.length += n
        return True

    def _roll_out(
        self,
        network_pass: _Pass,
        rows: Tensor,
        inputs: Sequence[Tensor],
        rooms: Any,
        draws: NetworkRollOut,
    ) -> None:
        size, start = rows.stride(0) * rows.itemsize, rows.data_ptr() + draws.start * rows.itemsize
        scratch = self._scratch.address(network_pass.program.scratch)
        places, end = list(map(Tensor.data_ptr, inputs)), rooms[0].length + 1 if rooms else 0
        network_pass.segment.set(scratch, rows.data_ptr() + size, places, rooms, end)
        names = 0 if draws.names is None else draws.names.data_ptr()
        in_c = Draws(
            *(draws.ids.data_ptr(), draws.u.data_ptr(), start, start + size, names),
            *(
                len(draws.ids),
                draws.tokens,
                size,
                rows.dtype == torch.bfloat16,
                WarpInC.of(draws.warp),
            ),
        )
        run(network_pass.parts, in_c, [[x.stride(0) * x.itemsize for x in inputs]])

    def _run(
        self,
        key: Any,
        plain: NetworkPass,
        tensors: Sequence[Tensor],
        mask: Any,
        cache: Any,
        rooms: Any,
    ) -> Tensor:
        end = rooms[0].length + len(tensors[0]) if rooms else 0
        inputs = list(tensors) if mask is None else [*tensors, mask]
        if key not in self._passes:
            self._capture(key, plain, inputs, mask is not None, rooms, end)
        network_pass, result = self._passes[key], None
        if network_pass is not None and network_pass.program.fits(inputs, end):
            program = network_pass.program
            result = torch.empty(program.shape, dtype=program.dtype, device="cpu")
            scratch, places = self._scratch.address(program.scratch), map(Tensor.data_ptr, inputs)
            network_pass.segment.set(scratch, result.data_ptr(), list(places), rooms, end, mask)
            run(network_pass.parts)
            if not network_pass.unchecked:
                for room in rooms:
                    room.length = end
                return result
        out = plain(tensors, mask, cache)  # last: its keys and values stay
        if network_pass is not None and result is not None:
            network_pass.unchecked -= 1
            if not torch.equal(result, out):
                self._refuse(key, "a program of a pass differs from the network's own code")
        return out

    def _capture(
        self,
        key: Any,
        plain: NetworkPass,
        inputs: Sequence[Tensor],
        masked: bool,
        rooms: Any,
        end: int,
    ) -> None:
        """Make a program of a pass, if it can be one."""
        none, span = torch.empty(0), torch.empty(end)
        keys, values = (rooms[0].keys, rooms[0].values) if rooms else (none, none)
        layer_inputs = LayerInputs(inputs, span, span, keys, values, self._weights.state)
        count = len(inputs)

        def captured(*arguments: Tensor) -> Tensor:
            *tensors, last = arguments[:count]
            cache = CaptureCache(*arguments[count : count + 4]) if rooms else None
            return plain(tensors if masked else [*tensors, last], last if masked else None, cache)

        try:
            with merged(self.modules[0], lambda: captured(*layer_inputs.all())):
                self._passes[key] = _Pass(
                    Program(layer_inputs, capture(captured, layer_inputs)), self._weights
                )
        except RefusedError as error:
            self._refuse(key, str(error))
        except Exception as error:  # a plug-in's network may do what cannot be captured
            self._refuse(key, f"a pass cannot be captured ({type(error).__name__})")

    def _refuse(self, key: Any, why: str) -> None:
        self._passes[key], self.refused = None, self.refused or why


def replays_of(network: nn.Module) -> Callable[..., NetworkReplay]:
    """Return a function from parts of a target to the programs of a network over them, cached."""
    replays: dict[tuple[int, ...], NetworkReplay] = {}

    def replay_over(*parts: nn.Module) -> NetworkReplay:
        key = tuple(map(id, parts))  # which live as long as their programs, which hold them
        if key not in replays:
            replays[key] = NetworkReplay([network, *parts])
        return replays[key]

    return replay_over
