"""Passes of a model by programs: recorded once, for passes of every size.

The embedding, all layers and the head are one list of steps; rotary tables and learned embeddings
of positions are tables with a row for each position. The first pass of each size is made by the
model's own code as well, and must agree bit for bit; else, and where an operator has no kernel,
that code stays in use.
"""

from collections.abc import Sequence
from threading import Lock
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from spsbench.engines.eager import context_of, ordinary, rows_of
from spsbench.engines.experts import watch_experts
from spsbench.engines.replay import MAX_ROWS, RollOut
from spsbench.engines.session.cache import PreallocatedCache, doubled
from spsbench.engines.session.masks import FULL, SLIDING, PassInputs, windows_of
from spsbench.extensions.cpu.kernels.steps import RefusedError, Weights, is_read, text_record
from spsbench.extensions.cpu.replay.fused_modules import one_rotation
from spsbench.extensions.cpu.replay.program import Draws, Program, Scratch, Size
from spsbench.extensions.cpu.replay.record import (
    Recorder,
    Recording,
    RecordingCache,
    record,
    tables_at,
)
from spsbench.extensions.cpu.warp import WarpInC

LOGITS = -1  # among the numbers of hidden states
SIZES = Size(16, 16), Size(6, 6), Size(6, 2), Size(9, 4)  # recorded; the last one is a check
PASTS = 3, 5, 4, 8  # tokens before each of them
COLLECTS = "transformers.utils.output_capturing"  # the module whose hooks change nothing


class PassOutput(NamedTuple):
    """The output of a pass, as that of a model."""

    logits: Tensor  # [1, keep, V]
    hidden_states: Any  # layer -> [1, m, D]


class ModelPass:
    """Runs the passes of one model, for all sessions over it.

    Attributes:
        refused: why passes, of some kind or of all, run the model's own code.
        counts: passes by the model's own code, and by programs.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model: Any = ref(model)  # which lives as long as its sessions, not as its programs
        self._dtype = model.dtype
        self.refused: str | None = None
        self.counts = [0, 0]
        self._one = Lock()  # pass at a time
        self._scratch = Scratch()
        self._recordings: list[Recording] | None = []  # None: they cannot be programs
        self._programs: dict[Any, Program] = {}  # by their outputs
        self._agrees: dict[Any, bool] = {}  # by the kind of a pass: program and own code
        self._weights = Weights([])
        self._forms: dict[int, tuple[Tensor, Tensor]] = {}  # of keys and values, without tokens
        self._outside = Outside(model)
        self._windows = windows_of(model)
        mapped = self._windows is not None and self._windows.mapped
        self._kinds = (FULL, SLIDING) if mapped else ("",)  # of masks

    def attach(self, model: PreTrainedModel) -> "ModelPass":
        """Return what runs the passes of another model."""
        return ModelPass(model)

    def run(self, request: PassInputs, end: int) -> Any:
        """Return the logits and the hidden states of a pass, which lengthens the cache to `end`.

        The first pass runs the model's own code: a first prompt does not wait for recordings.
        Nobody else may use the programs meanwhile: another pass, of a thread or of a hook, runs the
        model's own code.
        """
        waits = self.counts == [0, 0] or self._recordings is None
        if waits or not self._one.acquire(blocking=False):
            return self._own(request)
        try:
            if self._outside.same():
                return self._run(request, end, self._recordings or self._record())
        except RefusedError as error:
            self._recordings, self.refused = None, str(error)
        finally:
            self._one.release()
        return self._own(request)

    def _own(self, request: PassInputs) -> Any:
        self.counts[0] += 1
        return request.of(self._model())

    def _run(self, request: PassInputs, end: int, recordings: list[Recording]) -> Any:
        size = Size(len(request.ids), request.keep)
        of_size = size if size.tokens <= MAX_ROWS else None
        kind = type(request.cache), request.layers, request.masks is None, of_size
        checked = self._agrees.get(kind)
        if checked is False:
            return self._own(request)
        outputs = *request.layers, *([] if checked and request.unread else [LOGITS])
        if outputs not in self._programs:
            self._programs[outputs] = Program(SIZES, recordings, outputs)
        made = self._by_program(self._programs[outputs], size, request, end)
        if made is None:
            return self._own(request)
        if checked:
            self.counts[1] += 1
            self._lengthen(request.cache, end)
            logits = made.pop(LOGITS, None)
            if logits is None:
                logits = torch.empty(1, 0, rows_of(self._model()), dtype=self._dtype)
            return PassOutput(logits, made)
        out = self._own(request)  # last: its keys and values stay
        own = {n: out.logits if n == LOGITS else out.hidden_states[n] for n in made}
        self._agrees[kind] = all(torch.equal(made[n], own[n]) for n in made)
        if not self._agrees[kind]:
            self.refused = "a program of a pass differs from the model's own code"
        return out

    def _lengthen(self, cache: Any, end: int) -> None:
        for number in self._forms:
            cache.layers[number].length = end

    def roll_out(self, request: PassInputs, end: int, rolled: RollOut) -> Tensor | None:
        """Return the logits [n, V'] of a roll-out, whose tokens are left in `request.ids`.

        The cache has room for n more than `end` - 1 tokens. None: there is no checked program.
        """
        program, size = self._programs.get((LOGITS,)), Size(1, 1)
        agrees = self._agrees.get((type(request.cache), (), True, size))
        if program is None or not agrees or not self._one.acquire(blocking=False):
            return None
        try:
            if not self._outside.same():
                return None
            outputs = self._by_program(program, size, request, end, rolled)
        finally:
            self._one.release()
        if outputs is None:
            return None
        self._lengthen(request.cache, end + len(request.ids) - 1)
        return outputs[LOGITS].flatten(0, 2)

    def _by_program(
        self,
        program: Program,
        size: Size,
        request: PassInputs,
        end: int,
        rolled: RollOut | None = None,
    ) -> dict[int, Tensor] | None:
        """Return the outputs, of all passes of a roll-out; None: the request does not fit.

        The cache is not lengthened.
        """
        ids, weights = request.ids, self._weights.places()
        if weights is None or ids.dtype != torch.int64 or not ids.is_contiguous():
            return None
        rooms = self._rooms(request.cache, end if rolled is None else end + len(ids) - 1)
        texts = None if rooms is None else self._texts(program, rooms, request, size.tokens, end)
        if rooms is None or texts is None:
            return None
        bound, passes = program.at(size), () if rolled is None else (len(ids),)
        outputs = {
            name: torch.empty((*passes, *shape), dtype=dtype, device="cpu")
            for (name, shape), dtype in zip(bound.shapes.items(), program.dtypes, strict=True)
        }
        tensors = [*outputs.values(), ids, *self._tables.rows(request)]
        addresses = list(map(Tensor.data_ptr, tensors))
        places = [number for room in rooms for number in room.addresses]
        scratch = self._scratch.address(bound.scratch)
        of_pass = bound, scratch, addresses, weights, texts, places
        if rolled is None:
            program.run(*of_pass)
            return outputs
        logits, strides = outputs[LOGITS], [x.stride(0) * x.itemsize for x in tensors]
        draws = Draws(
            *(ids.data_ptr(), rolled.u.data_ptr(), rolled.logits.data_ptr()),
            *(logits.data_ptr(), 0, len(ids), rolled.vocab, logits.stride(0) * logits.itemsize),
            *(logits.dtype == torch.bfloat16, WarpInC.of(rolled.warp)),
        )
        program.run(*of_pass, draws, strides)
        return outputs

    def _rooms(self, cache: Any, end: int) -> Sequence[Any] | None:
        """Return the layers' parts of the cache; None: they have no room for `end` tokens."""
        if type(cache) is PreallocatedCache:
            while len(cache.layers) <= max(self._forms):
                cache.layers.append(cache.layer_class_to_replicate())
            for number, form in self._forms.items():
                layer = cache.layers[number]
                if not layer.is_initialized:
                    layer.lazy_initialization(*form)
                if layer.capacity < end:
                    layer.widen(doubled(end, layer.capacity, layer.most))
        rooms = [cache.layers[number] for number in self._forms]
        return rooms if all(room.length < end <= room.capacity for room in rooms) else None

    def _texts(
        self, program: Program, rooms: Sequence[Any], request: PassInputs, m: int, end: int
    ) -> list[int] | None:
        """Return the records of texts, for each kind of mask; None: a mask does not fit."""
        if (texts := getattr(rooms[0], "texts", None)) is not None:
            return list(texts) * len(program.layers)
        masks, numbers = request.named_masks(), list[int]()
        for name, layer in zip(self._kinds, program.layers, strict=True):
            room, mask = rooms[max(layer, 0)], masks.get(name)
            seen = end - room.first
            if mask is not None:
                if not is_read(mask, m, seen, self._dtype):
                    return None
            elif self._windows is not None and m > 1:  # own code has another kernel for its mask
                return None
            numbers += text_record(m, end, seen, mask)
        return numbers

    def _record(self) -> list[Recording]:
        """Record passes of a few sizes over a cache of their own, and return them.

        Raises:
            RefusedError: they cannot be programs.
        """
        model = self._model()
        state = [x for module in model.modules() for x in tensors_of(module)]
        positions = [
            torch.arange(before, before + size.tokens)
            for size, before in zip(SIZES, PASTS, strict=True)
        ]
        try:
            with watch_experts(), one_rotation(model):  # experts are counted once
                passes = zip(SIZES, positions, strict=True)
                recordings = [self._recorded(size.kept, at, state) for size, at in passes]
                self._weights = Weights([*state, *recordings[0].constants])
                self._tables = Tables(recordings[0], positions[0], context_of(model))
                self._recordings = recordings
                return recordings
        except RefusedError:
            raise
        except Exception as error:  # foreign code may do anything
            raise RefusedError(f"a pass cannot be recorded ({type(error).__name__})") from error

    def _recorded(self, kept: int, positions: Tensor, state: Sequence[Tensor]) -> Recording:
        m, end = len(positions), int(positions[-1]) + 1
        ids, cache = ordinary(rows_of(self._model()), m), RecordingCache(end - m)
        masks = [torch.zeros(1, 1, m, end, dtype=self._dtype) for _ in self._kinds]
        given: Any = masks[0] if len(masks) == 1 else dict(zip(self._kinds, masks, strict=True))

        def body() -> dict[int, Tensor]:
            out = PassInputs(ids, positions, given, cache, kept, (0,)).of(self._model())
            return dict(enumerate(out.hidden_states)) | {LOGITS: out.logits}

        recording = record(body, Recorder([ids], positions, masks, state, cache))
        self._forms = {
            n: (keys[:, :, :0].clone(), values[:, :, :0].clone())
            for n, (keys, values) in cache.past.items()
        }
        return recording


class Outside:
    """The modules of a model outside of its layers, and the layers: those that a pass looks at."""

    def __init__(self, model: nn.Module) -> None:
        modules = list(model.modules())
        lists = [module for module in modules if isinstance(module, nn.ModuleList)]
        layers: Any = max(lists, key=len, default=())
        within = {part for layer in layers for part in list(layer.modules())[1:]}
        outer = [module for module in modules if module not in within]
        self._hooks = [h for m in outer for h in (m._forward_hooks, m._forward_pre_hooks)]
        self._settings = [vars(module) for module in outer]
        self._before, self._harmless = self._form(), list[int]()

    def same(self) -> bool:
        """Return whether no module was exchanged, or has a hook other than transformers' own."""
        counts = list(map(len, self._hooks))
        if counts != self._harmless:
            hooks = [hook for hooks in self._hooks for hook in hooks.values()]
            if any(hook.__module__ != COLLECTS for hook in hooks):
                return False
            self._harmless = counts
        return self._form() == self._before

    def _form(self) -> list[Any]:
        parts = [(x.get("forward"), *x["_modules"].values()) for x in self._settings]
        return [part for of_module in parts for part in of_module]


class Tables:
    """Functions of positions alone: a row for each position that texts have reached.

    Raises:
        RefusedError: they are no rows.
    """

    def __init__(self, recording: Recording, positions: Tensor, most: int | None) -> None:
        """Take them from the recording of a pass over `positions`; there are at most `most`."""
        count = len(positions)
        if any(not x.is_contiguous() or x.numel() % count for x in recording.tables):
            raise RefusedError("functions of positions that are no rows")
        self._recording, self._positions, self._most = recording, positions, most
        self._count, self._rows = 0, list[Tensor]()

    def rows(self, request: PassInputs) -> list[Tensor]:
        """Return the rows of a pass."""
        start, m = request.start, len(request.positions)
        end = int(request.positions.max()) + 1 if start is None else start + m
        if end > self._count:
            self._grow(doubled(end, self._count, self._most))
        which = request.positions if start is None else slice(start, end)
        return [x[which] for x in self._rows]

    def _grow(self, count: int) -> None:
        parts, piece = [self._rows] if self._rows else [], len(self._positions)
        for start in range(self._count, count, piece):
            positions = (start + torch.arange(piece)).clamp(max=count - 1)
            made = tables_at(self._recording, self._positions, positions)
            parts.append([x.reshape(piece, -1)[: count - start].clone() for x in made])
        self._rows = [torch.cat(rows) for rows in zip(*parts, strict=True)]
        self._count = count


def tensors_of(module: nn.Module) -> list[Tensor]:
    """Return each parameter and buffer of a module, without those of its parts."""
    tensors = *module._parameters.values(), *module._buffers.values()
    return [tensor for tensor in tensors if tensor is not None]
