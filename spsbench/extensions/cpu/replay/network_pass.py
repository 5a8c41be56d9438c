"""Passes of a drafter's own network by programs: a head's, which is no model.

A pass is recorded once for all numbers of rows, with the tables and parts of the target that it
reads; its first run of each size is made by the network's own code as well, and must agree bit for
bit.
"""

from collections.abc import Callable, Hashable, Sequence
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from spsbench.engines.replay import MAX_ROWS, NetworkPass, NetworkRollOut
from spsbench.extensions.cpu.kernels.steps import RefusedError, Weights, is_read, text_record
from spsbench.extensions.cpu.replay.model_pass import tensors_of
from spsbench.extensions.cpu.replay.program import Draws, Program, Scratch, Size
from spsbench.extensions.cpu.replay.record import Recorder, Recording, RecordingCache, record
from spsbench.extensions.cpu.warp import WarpInC

SIZES = Size(16, 16), Size(6, 6), Size(9, 9)  # recorded; the last one is a check
PAST = 3  # tokens before them
RESULT = ""  # the name of the only output


class NetworkReplay:
    """The programs of a network over parts of a target, shared by all of its drafters.

    Args:
        modules: the network first, and whatever else has weights that its passes read.

    Attributes:
        refused: why a pass is no program.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.modules = modules
        self._state = [
            x for module in modules for part in module.modules() for x in tensors_of(part)
        ]
        self._programs: dict[Any, tuple[Program, Weights] | None] = {}  # by the name of a pass
        self._checked: set[Any] = set()  # name, rows, whether there is no mask
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
        if not fits or not self._one.acquire(blocking=False):
            return plain(tensors, mask, cache)
        try:
            if name not in self._programs:
                self._record(name, plain, tensors, rooms)
            return self._run(name, plain, tensors, mask, cache, rooms)
        finally:
            self._one.release()

    def _run(
        self, name: Any, plain: Any, tensors: Sequence[Tensor], mask: Any, cache: Any, rooms: Any
    ) -> Tensor:
        made = self._by_program(name, tensors, mask, rooms)
        if made is None:
            out: Tensor = plain(tensors, mask, cache)
            return out
        kind = name, len(tensors[0]), mask is None
        if kind not in self._checked:
            out = plain(tensors, mask, cache)  # last: its keys and values stay
            self._checked.add(kind)
            if not torch.equal(made, out):
                self._refuse(name, "a program of a pass differs from the network's own code")
            return out
        for room in rooms:
            room.length += len(tensors[0])
        return made

    def _by_program(
        self, name: Any, tensors: Sequence[Tensor], mask: Any, rooms: Any
    ) -> Tensor | None:
        """Return the result of a pass, which does not lengthen the cache; None: it cannot be."""
        m, program_and_weights = len(tensors[0]), self._programs[name]
        end = rooms[0].length + m if rooms else 0
        if program_and_weights is None or not all(x.is_contiguous() for x in tensors):
            return None
        if mask is not None and not (rooms and is_read(mask, m, end, rooms[0].keys.dtype)):
            return None
        program, weights = program_and_weights
        if (places := weights.places()) is None:
            return None
        bound = program.at(Size(m, m))
        result = torch.empty(bound.shapes[RESULT], dtype=program.dtypes[0], device="cpu")
        addresses = list(map(Tensor.data_ptr, (result, *tensors)))[: 1 + program.inputs]
        texts = text_record(m, end, end, mask) if rooms else ()
        past = [number for room in rooms for number in room.addresses]
        scratch = self._scratch.address(bound.scratch)
        program.run(bound, scratch, addresses, places, texts, past)
        return result

    def roll_out(
        self,
        name: Hashable,
        rows: Tensor,
        tables: Sequence[Tensor],
        cache: Any,
        draws: NetworkRollOut,
    ) -> bool:
        """See `engines.replay.NetworkReplay.roll_out`: with a checked program and room for n."""
        program_and_weights, n = self._programs.get(name), len(draws.ids)
        rooms = [] if cache is None else [cache.layers[0]]
        free = all(0 < room.length <= room.capacity - n for room in rooms)
        if program_and_weights is None or (name, 1, True) not in self._checked or not free:
            return False
        program, weights = program_and_weights
        if (places := weights.places()) is None or not self._one.acquire(blocking=False):
            return False
        try:
            self._roll_out(program, places, rows, [draws.ids, *tables, rows], rooms, draws)
        finally:
            self._one.release()
        for room in rooms:
            room.length += n
        return True

    def _roll_out(
        self,
        program: Program,
        places: Sequence[int],
        rows: Tensor,
        inputs: Sequence[Tensor],
        rooms: Sequence[Any],
        draws: NetworkRollOut,
    ) -> None:
        bound, size = program.at(Size(1, 1)), rows.stride(0) * rows.itemsize
        first, end = rows.data_ptr() + draws.start * rows.itemsize, 0
        addresses = [rows.data_ptr() + size, *map(Tensor.data_ptr, inputs)][: 1 + program.inputs]
        strides = [size, *(x.stride(0) * x.itemsize for x in inputs)][: 1 + program.inputs]
        if rooms:
            end = rooms[0].length + 1
        names = 0 if draws.names is None else draws.names.data_ptr()
        in_c = Draws(
            *(draws.ids.data_ptr(), draws.u.data_ptr(), first, first + size, names),
            *(len(draws.ids), draws.tokens, size, rows.dtype == torch.bfloat16),
            WarpInC.of(draws.warp),
        )
        texts = text_record(1, end, end) if rooms else ()
        past = [number for room in rooms for number in room.addresses]
        scratch = self._scratch.address(bound.scratch)
        program.run(bound, scratch, addresses, places, texts, past, in_c, strides)

    def _record(
        self, name: Any, plain: NetworkPass, tensors: Sequence[Tensor], rooms: Sequence[Any]
    ) -> None:
        try:
            recordings = [self._recorded(size.tokens, plain, tensors, rooms) for size in SIZES]
            weights = Weights([*self._state, *recordings[0].constants])
            self._programs[name] = Program(SIZES, recordings, [RESULT]), weights
        except RefusedError as error:
            self._refuse(name, str(error))
        except Exception as error:  # a plug-in's network may do what cannot be recorded
            self._refuse(name, f"a pass cannot be recorded ({type(error).__name__})")

    def _recorded(
        self, m: int, plain: NetworkPass, tensors: Sequence[Tensor], rooms: Sequence[Any]
    ) -> Recording:
        """Record a pass over `m` rows, those of `tensors` again and again."""
        which = torch.arange(m) % len(tensors[0])
        inputs = [x[which].contiguous() for x in tensors]
        cache = RecordingCache(PAST) if rooms else None
        masks = [torch.zeros(1, 1, m, PAST + m, dtype=room.keys.dtype) for room in rooms]
        recorder = Recorder(inputs, None, masks, self._state, cache)
        mask = masks[0] if masks else None
        return record(lambda: {RESULT: plain(inputs, mask, cache)}, recorder)

    def _refuse(self, name: Any, why: str) -> None:
        self._programs[name], self.refused = None, self.refused or why


def replays_of(network: nn.Module) -> Callable[..., NetworkReplay]:
    """Return a function from parts of a target to the programs of a network over them, cached."""
    replays: dict[tuple[int, ...], NetworkReplay] = {}

    def replay_over(*parts: nn.Module) -> NetworkReplay:
        key = tuple(map(id, parts))  # which live as long as their programs, which hold them
        if key not in replays:
            replays[key] = NetworkReplay([network, *parts])
        return replays[key]

    return replay_over
