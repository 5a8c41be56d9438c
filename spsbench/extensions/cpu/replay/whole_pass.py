"""Programs of whole passes of a model: before its layers, through them, and after them.

A small model's embedding, rotary tables, masks, norm, head and output records take transformers
longer than its layers take. One pass of each size is recorded: the operations outside of the layers
become programs as a layer does, and what is a function of positions alone (rotary tables, learned
embeddings of positions) becomes a table with a row for each. The first passes are made by the
model's own code as well, and must agree bit for bit; else, and where an operation has no kernel,
that code stays in use, over replayed layers.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from spsbench.engines.eager import context_of
from spsbench.engines.replay import RollOut
from spsbench.engines.session.cache import PreallocatedCache, doubled, number_of
from spsbench.engines.session.masks import PassInputs
from spsbench.extensions.cpu.replay.graph_capture import have_addresses, listed, storage_of, where
from spsbench.extensions.cpu.replay.layer_program import (
    FIRST,
    Draws,
    Part,
    Program,
    Segment,
    Weights,
    run,
)
from spsbench.extensions.cpu.replay.layer_replay import (
    CHECKS,
    LayerReplay,
    ReplayedLayer,
    parameters_and_buffers,
    signature,
)
from spsbench.extensions.cpu.replay.operations import RefusedError
from spsbench.extensions.cpu.replay.pass_recording import Call, Recording, cacheless_inputs
from spsbench.extensions.cpu.replay.prefill import PassOutput, Prefill, hooked_by_others
from spsbench.extensions.cpu.warp import WarpInC

PIECE = 128  # positions of a pass that makes tables, no more than a pass by programs has
LOGITS = -1  # among hidden states


class WholePass:
    """The programs of passes of one size.

    Attributes:
        unchecked: passes that are still to be compared with the model's own code.
        forms: width and dtype of each table that is read.
        fixed: what is the same in every pass.
    """

    def __init__(
        self, recording: Recording, out: Any, request: PassInputs, replay: "PassReplay"
    ) -> None:
        """Make programs of what was recorded while the model gave `out`.

        Raises:
            RefusedError: an operation is no program, or a result is none's.
        """
        if recording.refused or not recording.calls:
            raise RefusedError(recording.refused or "no layer was called")
        if not all(x.is_contiguous() for x in recording.read):
            raise RefusedError("functions of positions that are no rows")
        self.unchecked, self.request, self.calls = CHECKS, request, recording.calls
        m = len(request.ids)
        self.forms = [(x.numel() // m, x.dtype) for x in recording.read]
        self.fixed = recording.fixed()
        self._replay, self._recording, self._read = replay, recording, recording.read
        self._outside = Weights([*recording.inputs.state, *recording.constants])

        hidden = {n: out.hidden_states[n] for n in request.layers}
        states = [where(x) for x in recording.states]
        self._inner = {n: states.index(where(x)) for n, x in hidden.items() if where(x) in states}
        results = {n: x for n, x in hidden.items() if n not in self._inner} | {LOGITS: out.logits}
        ends = {n: recording.ends.get(storage_of(x), 0) for n, x in results.items()}
        self._last = sorted(ends, key=ends.__getitem__)
        groups = [list(same) for _, same in groupby(self.calls, lambda call: call[1:])]
        self._parts: Any = (Part * (1 + len(groups) + len(ends)))()
        first, begin, parts = recording.states[0], recording.first, iter(self._parts)
        self._states = (len(states), *first.shape), first.dtype, first.nbytes
        before = self._program(0, begin, first, [request.ids, *recording.read])
        self._before = Segment(before, self._outside, next(parts))
        self._groups = [Group(calls, replay, next(parts)) for calls in groups]
        self._after: list[Segment] = []
        program_inputs = recording.states[-1:]
        for n in self._last:
            program = self._program(begin, ends[n], results[n], program_inputs)
            self._after.append(Segment(program, self._outside, next(parts)))
            begin, program_inputs = ends[n], [*program_inputs, results[n]]
        programs = [segment.program for segment in (self._before, *self._groups, *self._after)]
        self._scratch = max(program.scratch for program in programs)
        del self._recording

    def _program(self, begin: int, end: int, result: Tensor, inputs: Sequence[Tensor]) -> Program:
        """Return some of the operations, which end in `result`, as a program over `inputs`."""
        recording = self._recording
        outputs = {
            at: x for at, x in recording.outputs.items() if begin < recording.ends[at] <= end
        }
        listing = listed(recording.steps[begin:end], result, outputs)
        return Program(cacheless_inputs(inputs, self._outside.state), listing)

    def run(
        self, request: PassInputs, end: int, rolled: RollOut | None = None
    ) -> PassOutput | None:
        """Return the model's output, with `end` tokens in the cache after the pass.

        None: the request does not fit the programs. With `rolled` there is a pass for each of
        `request.ids` [n], which are drawn; the logits are those of all, [n, 1, 1, V'].

        Raises:
            RefusedError: tables cannot be made, or the pass depends on where it begins.
            MemoryError: no room for what an operation needs.
            IndexError: an id beyond the embeddings.
        """
        ids = request.ids
        ready = self._replay.outside.same() and self._outside.ready()
        if not ready or ids.dtype != torch.int64 or not ids.is_contiguous():
            return None
        tables = self._replay.tables.rows(request, self)
        rows = list(map(Tensor.data_ptr, tables))
        shape, dtype, size = self._states
        states = torch.empty(shape, dtype=dtype, device="cpu")
        at, scratch = states.data_ptr(), self._replay.scratch.address(self._scratch)
        self._before.set(scratch, at, [ids.data_ptr(), *rows])
        masks = request.named_masks()
        for group in self._groups:
            more = 0 if rolled is None else len(ids) - 1
            if not group.begin(scratch, at, rows, masks, request.cache, end, more):
                return None
            at += size * len(group.calls)
        results, addresses = {n: states[at] for n, at in self._inner.items()}, [at]
        for n, segment in zip(self._last, self._after, strict=True):
            program = segment.program
            result_shape = program.shape if rolled is None else (len(ids), *program.shape)
            results[n] = torch.empty(result_shape, dtype=program.dtype, device="cpu")
            segment.set(scratch, results[n].data_ptr(), addresses)
            addresses.append(results[n].data_ptr())
        if rolled is None:
            run(self._parts)
        else:
            self._roll_out(
                request, rolled, results[LOGITS], [x.stride(0) * x.itemsize for x in tables]
            )
        return PassOutput(results.pop(LOGITS), results)

    def _roll_out(
        self, request: PassInputs, rolled: RollOut, logits: Tensor, strides: list[int]
    ) -> None:
        """Run passes one after another; from one to the next, tables are read `strides` on."""
        size = logits.stride(0) * logits.itemsize
        every = [
            [request.ids.itemsize, *strides],
            *(g.select_by_input(strides) for g in self._groups),
            [0],
        ]
        draws = Draws(
            *(request.ids.data_ptr(), rolled.u.data_ptr(), rolled.logits.data_ptr()),
            *(logits.data_ptr(), 0, len(request.ids), rolled.vocab, size),
            *(logits.dtype == torch.bfloat16, WarpInC.of(rolled.warp)),
        )
        run(self._parts, draws, every)


class Group(Segment):
    """Layers that follow each other and run one program."""

    def __init__(self, calls: Sequence[Call], replay: LayerReplay, part: Part) -> None:
        self.calls = calls
        program = replay.programs[calls[0].key]
        if program is None:
            raise RefusedError("a layer is no program")
        self._weights = Weights([x for call in calls for x in call.layer.state])
        self._input_numbers = range(1, program.inputs - FIRST)
        super().__init__(program, self._weights, part, len(calls))

    def begin(
        self,
        scratch: int,
        at: int,
        rows: Sequence[int],
        masks: Mapping[str, Tensor],
        cache: Any,
        end: int,
        more: int,
    ) -> bool:
        """Set a pass from the hidden states at `at` on; return whether it and `more` can be."""
        call = self.calls[0]
        rooms = [cache.layers[call.layer.number] for call in self.calls]
        mask = None if call.mask is None else masks[call.mask]
        free = all(room.length < end <= room.capacity - more for room in rooms)
        fits = mask is None or self.program.fits_mask(mask, end - rooms[0].first)
        if not (self._weights.ready() and free and fits):
            return False
        addresses = [at, *self.select_by_input(rows)[1:]]
        self.set(scratch, at + self.program.bytes, addresses, rooms, end, mask)
        return True

    def select_by_input(self, values: Sequence[int]) -> list[int]:
        """Return the value of the table that each input reads; 0 for those that read none."""
        tables = self.calls[0].tables
        return [0, *(values[tables[n]] if n in tables else 0 for n in self._input_numbers)]


class Outside:
    """The modules of a model outside of its layers.

    Attributes:
        state: their tensors.
    """

    def __init__(self, model: nn.Module, layers: Sequence[nn.Module]) -> None:
        inner = {module for layer in layers for module in layer.modules()}
        outer = [module for module in model.modules() if module not in inner]
        self.state = [x for module in outer for x in parameters_and_buffers(module)]
        self._modules, self._settings = [*outer, *layers], list(map(vars, outer))
        self._hooks = [h for m in self._modules for h in (m._forward_hooks, m._forward_pre_hooks)]
        self._before = self._form()

    def same(self) -> bool:
        """Return whether no module was exchanged, or has a hook."""
        hooks = any(self._hooks) and any(map(hooked_by_others, self._modules))
        return not hooks and self._form() == self._before

    def _form(self) -> list[Any]:
        parts = [
            (settings.get("forward"), *settings["_modules"].values()) for settings in self._settings
        ]
        return [part for modules in parts for part in modules]


class Tables:
    """Functions of positions alone: a row for each position that texts have reached."""

    def __init__(
        self, make: Callable[[WholePass, Tensor], Recording], most: int | None = None
    ) -> None:
        """`make` records a pass over positions [n]; there are no more than `most`."""
        self._make, self._most, self._count = make, most, 0
        self._rows: list[Tensor] = []  # [count, ...] each
        self._fixed: list[float] = []
        self._forms: list[Any] = []

    def rows(self, request: PassInputs, whole: WholePass) -> list[Tensor]:
        """Return the rows of a pass.

        Raises:
            RefusedError: they are no rows, or the pass depends on where it begins.
        """
        start, m = request.start, len(request.positions)
        end = int(request.positions.max()) + 1 if start is None else start + m
        if end > self._count:
            self._grow(whole, doubled(end, self._count, self._most))
        if whole.fixed != self._fixed or whole.forms != self._forms:
            raise RefusedError("its course depends on the length of the past")
        which = request.positions if start is None else slice(start, end)
        return [x[which] for x in self._rows]

    def _grow(self, whole: WholePass, count: int) -> None:
        parts = [self._rows] if self._rows else []
        for new in torch.split(torch.arange(self._count, count), PIECE):
            recording = self._make(whole, new)
            parts.append([x.reshape(len(new), -1) for x in recording.read])
            self._fixed = recording.fixed()
        self._rows = [torch.cat(rows) for rows in zip(*parts, strict=True)]
        self._count, self._forms = count, [(x.shape[1], x.dtype) for x in self._rows]


class PassReplay(LayerReplay):
    """The programs of a model, of its layers and of whole passes."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model: Any = model
        self.passes: dict[Any, WholePass | None] = {}  # by the kind of a pass
        self.outside: Outside = Outside(model, [])
        self.tables = Tables(self._of_positions, context_of(model))
        self.why: str | None = None  # a pass runs the model's own code
        self._prefill: Prefill | None = None

    def prefill(self, request: PassInputs, span: Tensor) -> Any:
        """Return the output of a pass over many tokens, or over the first of a text."""
        if not self.layers or not self._one.acquire(blocking=False):
            return request.of(self.model)
        try:
            self._prefill = self._prefill or Prefill(self.model, self)
            return self._prefill.run(request, span)
        finally:
            self.end()

    def run(self, request: PassInputs, span: Tensor) -> Any:
        """Return the logits and the hidden states of a pass, which lengthens the cache to `span`.

        Nobody else may use the model meanwhile: another pass, of a thread or of a hook, runs the
        model's own code.
        """
        if not self.begin(span, request.cache):
            return request.of(self.model)
        try:
            return self._run(request, len(span))
        finally:
            self.end()

    def roll_out(self, request: PassInputs, span: Tensor, rolled: RollOut) -> Tensor | None:
        """Return the logits [n, V'] of a roll-out, whose tokens are left in `request.ids`.

        The cache has room for n more than `span` - 1 tokens. None: there is no checked program.
        """
        whole, end = self.passes.get((1, 1, (), type(request.cache), 0)), len(span)
        if whole is None or whole.unchecked or not self.begin(span, request.cache):
            return None
        try:
            output = whole.run(request, end, rolled)
        except RefusedError:  # an ordinary pass will say why
            return None
        finally:
            self.end()
        if output is None:
            return None
        self._lengthen(whole, request.cache, end + len(request.ids) - 1)
        return output.logits.flatten(0, 2)

    def attach(self, model: PreTrainedModel) -> "PassReplay | None":
        """Put replays in front of the layers of another model; None when it has no list of them."""
        return attach(model)

    def _lengthen(self, whole: WholePass, cache: Any, end: int) -> None:
        for call in whole.calls:
            cache.layers[call.layer.number].length = end

    def _run(self, request: PassInputs, end: int) -> Any:
        masks = request.named_masks()
        alike = len(set(map(id, masks.values())))  # kinds of layers may have one mask
        key = len(request.ids), request.keep, request.layers, type(request.cache), *masks, alike
        if key not in self.passes:
            return self._record(key, request)
        output, whole = None, self.passes[key]
        try:
            output = None if whole is None else whole.run(request, end)
        except RefusedError as error:
            self._refuse(key, str(error))
        if whole is None or output is None:
            return request.of(self.model)
        if not whole.unchecked:
            self._lengthen(whole, request.cache, end)
            return output
        out = request.of(self.model)  # last: its keys and values stay
        whole.unchecked -= 1
        alike = torch.equal(output.logits, out.logits)
        if not alike or not all(torch.equal(x, out.hidden_states[n]) for n, x in output[1].items()):
            self._refuse(key, "a whole pass differs from the model's own code")
        return out

    def _record(self, key: Any, request: PassInputs) -> Any:
        if any(map(hooked_by_others, self.model.modules())):
            return request.of(self.model)
        self.outside = Outside(self.model, [replayed.layer for replayed in self.layers])
        if not have_addresses(self.outside.state):
            self._refuse(key, "weights in a layout of another library")
            return request.of(self.model)
        self.recording = recording = Recording(request, self.outside.state)
        try:
            with recording.watching():
                out = request.of(self.model)
        finally:
            self.recording = None
        try:
            self.passes[key] = WholePass(recording, out, request, self)
        except RefusedError as error:
            self._refuse(key, str(error))
        except Exception as error:  # foreign code may give anything
            self._refuse(key, f"a pass cannot be recorded ({type(error).__name__})")
        return out

    def _refuse(self, key: Any, why: str) -> None:
        self.passes[key], self.why = None, self.why or why

    def _of_positions(self, whole: WholePass, positions: Tensor) -> Recording:
        """Record a pass over positions [n], without layers."""
        ids, cache = torch.zeros(len(positions), dtype=torch.int64), PreallocatedCache()
        request = PassInputs(ids, positions, whole.request.masks, cache, 1)
        recording = Recording(request, self.outside.state, whole.calls)
        before = self.cache, self.recording
        self.cache, self.recording = cache, recording
        try:
            with recording.watching():
                request.of(self.model)
        finally:
            self.cache, self.recording = before
        if recording.refused:
            raise RefusedError(recording.refused)
        return recording


def attach(model: PreTrainedModel) -> PassReplay | None:
    """Put replays in front of the layers of `model`; None when it has no list of layers."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) > 1]
    lists = [m for m in lists if all(type(layer) is type(m[0]) for layer in m)]
    if not lists:
        return None
    replay = PassReplay(model)
    kinds: dict[Any, int] = {}  # a number is looked up faster than what it stands for
    for layer in max(lists, key=len):
        if (number := number_of(layer)) is not None:
            kind = kinds.setdefault(signature(layer), len(kinds))
            layer.forward = ReplayedLayer(layer, number, kind, replay)
            replay.layers.append(layer.forward)
    return replay
