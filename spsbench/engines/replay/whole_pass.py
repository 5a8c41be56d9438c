"""Programs of whole passes of a model: before its layers, through them, and after them.

A small model's embedding, rotary tables, masks, norm, head and output records take transformers
longer than its layers take. One pass of each size is recorded: the operations outside of the layers
become programs as a layer does, and what is a function of positions alone (rotary tables, learned
embeddings of positions) becomes a table with a row for each. The first passes are made by the
model's own code as well, and must agree bit for bit; else, and where an operation has no kernel,
that code stays in use, over replayed layers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from spsbench.engines.packing import linear_layers
from spsbench.engines.packing.linear_layers import hooked
from spsbench.engines.replay.graph_capture import (
    VALUES,
    Given,
    Watch,
    asker,
    listed,
    storage_of,
    where,
)
from spsbench.engines.replay.layer_program import FIRST, Part, Program, Segment, Weights, run
from spsbench.engines.replay.layer_replay import (
    CHECKS,
    LayerReplay,
    ReplayedLayer,
    own_tensors,
    signature,
)
from spsbench.engines.replay.operations import RefusedError, Step
from spsbench.engines.session.cache import PreallocatedCache, doubled, number_of
from spsbench.engines.session.masks import Asked

PIECE = 128  # positions of a pass that makes tables, no more than a pass by programs has
LOGITS = -1  # among hidden states
COLLECTS = "transformers.utils.output_capturing"  # the module whose hooks change nothing


class Made(NamedTuple):
    """The output of a pass, as of a model."""

    logits: Tensor  # [1, keep, V]
    hidden_states: Mapping[int, Tensor]  # layer -> [1, m, D]


class Call(NamedTuple):
    """A layer's turn in a pass."""

    layer: ReplayedLayer
    key: Any  # of its program
    tables: Mapping[int, int]  # number of an input -> which table
    mask: str | None  # which mask
    slides: bool  # it has a window
    of_positions: Sequence[int]  # which of the functions of positions that it is given are read


class Recording(Watch):  # type: ignore[no-untyped-call]
    """Recorder of a pass outside of its layers; what cannot be a program is noted, not raised.

    Tensors are functions of positions alone, or of the weights alone, or are computed by operations
    that are written down.

    Args:
        asked: the pass.
        weights: all tensors outside of the layers.
        like: the calls of a recorded pass, for other positions; layers are then not run.
    """

    def __init__(
        self, asked: Asked, weights: Sequence[Tensor], like: Sequence[Call] | None = None
    ) -> None:
        super().__init__(inputs([asked.ids], weights))
        self.masks = asked.named_masks()
        self.positions = {storage_of(asked.positions)}
        self.read: list[Tensor] = []  # functions of positions that operations or layers read
        self.calls: list[Call] = []
        self.states: list[Tensor] = []  # before the first layer, and after each
        self.first = 0  # operations before the first layer
        self.ends: dict[int, int] = {}  # by storage: operations when it was made
        self.constants: list[Tensor] = []
        self.refused: str | None = None
        self._weights = frozenset(map(storage_of, weights))
        self._changing = {storage_of(asked.ids)}
        self._like, self._kept, self.paused = like, list[Any](), False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.paused or self.refused:
            return func(*args, **kwargs)
        given = [storage_of(x) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        if any(each in self.made or each in self._changing for each in given):
            return super().__torch_dispatch__(func, types, args, kwargs)
        out = func(*args, **kwargs)
        self._kept.append(out)  # no address is used again
        if any(each in self.positions for each in given):
            self.positions.update(map(storage_of, tree_leaves(out)))
        return out

    def note(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Write down an operator."""
        try:
            super().note(func, args, kwargs, out)
        except RefusedError as error:
            self.refuse(str(error))

    def _add(self, steps: Sequence[Step], out: Any) -> None:
        super()._add(steps, out)
        self.ends |= {storage_of(made): len(self.steps) for made in tree_leaves(out)}
        for tensor in (each for step in steps for each in step.at if each is not None):
            storage = storage_of(tensor)
            if storage in self.positions:
                self._reads(tensor)
            elif storage not in {*self.made, *self._weights, *self._changing}:
                self.constants += [tensor] if tensor.numel() == 1 else []

    def _reads(self, tensor: Tensor) -> int:
        """Return the number of a function of positions among those that are read."""
        places = [where(each) for each in self.read]
        if where(tensor) not in places:
            self.read.append(tensor)
            return len(places)
        return places.index(where(tensor))

    def refuse(self, why: str) -> None:
        """Note that the pass cannot be a program."""
        self.refused = self.refused or why

    def call(
        self, layer: ReplayedLayer, key: Any, tensors: Sequence[Tensor], run: Callable[[], Any]
    ) -> Any:
        """Return what a layer gives, and note what it is asked."""
        if not self.calls:
            self.first, self.states = len(self.steps), [tensors[0]]
        elif self.first != len(self.steps) or where(tensors[0]) != where(self.states[-1]):
            self.refuse("the model changes hidden states between its layers")
        given = {n: x for n, x in enumerate(tensors) if storage_of(x) in self.positions}
        if self._like is not None:
            call, places = self._like[len(self.calls)], list(given.values())
            if max(call.of_positions, default=-1) >= len(places):
                raise RefusedError("layers are asked otherwise for other positions")
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
        masks = [name for name, each in self.masks.items() if where(each) == mask]
        used = program.used - {0}
        if not used <= given.keys() or (mask is not None and not masks):
            self.refuse("a layer reads what is neither a mask nor a function of positions")
            return out
        tables = {n: self._reads(given[n]) for n in sorted(used)}
        slides = getattr(layer.replay.room(layer.number), "is_sliding", False)
        read = [n for n, number in enumerate(given) if number in used]
        self.calls.append(Call(layer, key, tables, masks[0] if masks else None, slides, read))
        self.states.append(out)
        self._changing.add(storage_of(out))
        self.there.add(storage_of(out))
        return out

    def fixed(self) -> list[float]:
        """Return what is the same in every pass: where weights are read, and constants."""
        places = [x for step in self.steps for x in step.at if x is not None]
        read: list[float] = [
            int(x.storage_offset()) for x in places if storage_of(x) in self._weights
        ]
        reals = [real for step in self.steps for real in step.real]
        return [*read, *reals, *map(float, self.constants)]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record what is called within."""
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


def inputs(tensors: Sequence[Tensor], state: Sequence[Tensor]) -> Given:
    """Return the inputs of operations that have no cache."""
    none = torch.empty(0)
    return Given(tensors, none, none, none, none, state)


class WholePass:
    """The programs of passes of one size.

    Attributes:
        unchecked: passes that are still to be compared with the model's own code.
        forms: width and dtype of each table that is read.
        fixed: what is the same in every pass.
    """

    def __init__(self, recording: Recording, out: Any, asked: Asked, replay: "PassReplay") -> None:
        """Make programs of what was recorded while the model gave `out`.

        Raises:
            RefusedError: an operation is no program, or a result is none's.
        """
        if recording.refused or not recording.calls:
            raise RefusedError(recording.refused or "no layer was asked")
        if not all(x.is_contiguous() for x in recording.read):
            raise RefusedError("functions of positions that are no rows")
        self.unchecked, self.asked, self.calls = CHECKS, asked, recording.calls
        m = len(asked.ids)
        self.forms = [(x.numel() // m, x.dtype) for x in recording.read]
        self.fixed = recording.fixed()
        self._replay, self._recording, self._read = replay, recording, recording.read
        self._outside = Weights([*recording.given.state, *recording.constants])

        hidden = {n: out.hidden_states[n] for n in asked.layers}
        states = [where(x) for x in recording.states]
        self._inner = {n: states.index(where(x)) for n, x in hidden.items() if where(x) in states}
        wanted = {n: x for n, x in hidden.items() if n not in self._inner} | {LOGITS: out.logits}
        ends = {n: recording.ends.get(storage_of(x), 0) for n, x in wanted.items()}
        self._last = sorted(ends, key=ends.__getitem__)
        groups = [list(same) for _, same in groupby(self.calls, lambda call: call[1:])]
        self._parts: Any = (Part * (1 + len(groups) + len(ends)))()
        first, begin, parts = recording.states[0], recording.first, iter(self._parts)
        self._states = (len(states), *first.shape), first.dtype, first.nbytes
        before = self._program(0, begin, first, [asked.ids, *recording.read])
        self._before = Segment(before, self._outside, next(parts))
        self._groups = [Group(calls, replay, next(parts)) for calls in groups]
        self._after: list[Segment] = []
        given = recording.states[-1:]
        for n in self._last:
            program = self._program(begin, ends[n], wanted[n], given)
            self._after.append(Segment(program, self._outside, next(parts)))
            begin, given = ends[n], [*given, wanted[n]]
        programs = [each.program for each in (self._before, *self._groups, *self._after)]
        self._scratch = max(program.scratch for program in programs)
        del self._recording

    def _program(self, begin: int, end: int, made: Tensor, given: Sequence[Tensor]) -> Program:
        """Return some of the operations, which end in `made`, as a program over `given`."""
        recording = self._recording
        own = {at: x for at, x in recording.made.items() if begin < recording.ends[at] <= end}
        listing = listed(recording.steps[begin:end], made, own)
        return Program(inputs(given, self._outside.state), listing)

    def run(self, asked: Asked, end: int) -> Made | None:
        """Return what the model gives, with `end` tokens in the cache after it.

        None: what is asked does not fit the programs.

        Raises:
            RefusedError: tables cannot be made, or the pass depends on where it begins.
            MemoryError: no room for what an operation needs.
            IndexError: an id beyond the embeddings.
        """
        ids = asked.ids
        ready = self._replay.outside.same() and self._outside.ready()
        if not ready or ids.dtype != torch.int64 or not ids.is_contiguous():
            return None
        tables = self._replay.tables.rows(asked, self)
        rows = list(map(Tensor.data_ptr, tables))
        shape, dtype, size = self._states
        states = torch.empty(shape, dtype=dtype, device="cpu")
        at, scratch = states.data_ptr(), self._replay.scratch.address(self._scratch)
        self._before.set(scratch, at, [ids.data_ptr(), *rows])
        masks = asked.named_masks()
        for group in self._groups:
            if not group.begin(scratch, at, rows, masks, asked.cache, end):
                return None
            at += size * len(group.calls)
        made, given = {n: states[at] for n, at in self._inner.items()}, [at]
        for n, segment in zip(self._last, self._after, strict=True):
            program = segment.program
            made[n] = torch.empty(program.shape, dtype=program.dtype, device="cpu")
            segment.set(scratch, made[n].data_ptr(), given)
            given.append(made[n].data_ptr())
        run(self._parts)
        return Made(made.pop(LOGITS), made)


class Group(Segment):
    """Layers that follow each other and run one program."""

    def __init__(self, calls: Sequence[Call], replay: LayerReplay, part: Part) -> None:
        self.calls = calls
        program = replay.programs[calls[0].key]
        if program is None:
            raise RefusedError("a layer is no program")
        self._weights = Weights([x for call in calls for x in call.layer.state])
        self._given = range(1, program.inputs - FIRST)
        super().__init__(program, self._weights, part, len(calls))

    def begin(
        self,
        scratch: int,
        at: int,
        rows: Sequence[int],
        masks: Mapping[str, Tensor],
        cache: Any,
        end: int,
    ) -> bool:
        """Set a pass from the hidden states at `at` on; return whether it can be."""
        call = self.calls[0]
        rooms = [cache.layers[each.layer.number] for each in self.calls]
        mask = None if call.mask is None else masks[call.mask]
        free = all(room.length < end <= room.capacity for room in rooms)
        fits = mask is None or self.program.fits_mask(mask, end - rooms[0].first)
        if not (self._weights.ready() and free and fits):
            return False
        given = [rows[call.tables[n]] if n in call.tables else 0 for n in self._given]
        self.set(scratch, at + self.program.bytes, [at, *given], rooms, end, mask)
        return True


class Outside:
    """The modules of a model outside of its layers.

    Attributes:
        state: their tensors.
    """

    def __init__(self, model: nn.Module, layers: Sequence[nn.Module]) -> None:
        inner = {module for layer in layers for module in layer.modules()}
        outer = [module for module in model.modules() if module not in inner]
        self.state = [x for each in outer for x in own_tensors(each)]
        self._modules, self._settings = [*outer, *layers], list(map(vars, outer))
        self._hooks = [h for m in self._modules for h in (m._forward_hooks, m._forward_pre_hooks)]
        self._before = self._form()

    def same(self) -> bool:
        """Return whether no module was exchanged, or has a hook."""
        hooks = any(self._hooks) and any(map(hooked_by_others, self._modules))
        return not hooks and self._form() == self._before

    def _form(self) -> list[Any]:
        parts = [(own.get("forward"), *own["_modules"].values()) for own in self._settings]
        return [part for each in parts for part in each]


def hooked_by_others(module: nn.Module) -> bool:
    """Return whether the module has hooks other than those that collect hidden states."""
    if not hooked(module):
        return False
    hooks = *module._forward_hooks.values(), *module._forward_pre_hooks.values()
    return any(hook.__module__ != COLLECTS for hook in hooks)


class Tables:
    """Functions of positions alone: a row for each position that texts have reached."""

    def __init__(self, make: Callable[[WholePass, Tensor], Recording]) -> None:
        """`make` records a pass over positions [n]."""
        self._make, self._count = make, 0
        self._rows: list[Tensor] = []  # [count, ...] each
        self._fixed: list[float] = []
        self._forms: list[Any] = []

    def rows(self, asked: Asked, whole: WholePass) -> list[Tensor]:
        """Return the rows of a pass.

        Raises:
            RefusedError: they are no rows, or the pass depends on where it begins.
        """
        start, m = asked.start, len(asked.positions)
        end = int(asked.positions.max()) + 1 if start is None else start + m
        if end > self._count:
            self._grow(whole, doubled(end, self._count))
        if whole.fixed != self._fixed or whole.forms != self._forms:
            raise RefusedError("its course depends on the length of the past")
        which = asked.positions if start is None else slice(start, end)
        return [x[which] for x in self._rows]

    def _grow(self, whole: WholePass, count: int) -> None:
        parts = [self._rows] if self._rows else []
        for new in torch.split(torch.arange(self._count, count), PIECE):
            made = self._make(whole, new)
            parts.append([x.reshape(len(new), -1) for x in made.read])
            self._fixed = made.fixed()
        self._rows = [torch.cat(rows) for rows in zip(*parts, strict=True)]
        self._count, self._forms = count, [(x.shape[1], x.dtype) for x in self._rows]


class PassReplay(LayerReplay):
    """The programs of a model, of its layers and of whole passes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model: Any = model
        self.passes: dict[Any, WholePass | None] = {}  # by the kind of a pass
        self.outside: Outside = Outside(model, [])
        self.tables = Tables(self._of_positions)
        self.why: str | None = None  # a pass runs the model's own code

    def run(self, asked: Asked, span: Tensor) -> Any:
        """Return the logits and the hidden states of a pass, which lengthens the cache to `span`.

        Nobody else may use the model meanwhile: another pass, of a thread or of a hook, runs the
        model's own code.
        """
        if not self.begin(span, asked.cache):
            return asked.of(self.model)
        try:
            return self._run(asked, len(span))
        finally:
            self.end()

    def _run(self, asked: Asked, end: int) -> Any:
        masks = asked.named_masks()
        alike = len(set(map(id, masks.values())))  # kinds of layers may have one mask
        key = len(asked.ids), asked.keep, asked.layers, type(asked.cache), *masks, alike
        if key not in self.passes:
            return self._record(key, asked)
        made, whole = None, self.passes[key]
        try:
            made = None if whole is None else whole.run(asked, end)
        except RefusedError as error:
            self._refuse(key, str(error))
        if whole is None or made is None:
            return asked.of(self.model)
        if not whole.unchecked:
            for call in whole.calls:
                self.room(call.layer.number).length = end
            return made
        out = asked.of(self.model)  # last: its keys and values stay
        whole.unchecked -= 1
        alike = torch.equal(made.logits, out.logits)
        if not alike or not all(torch.equal(x, out.hidden_states[n]) for n, x in made[1].items()):
            self._refuse(key, "a whole pass differs from the model's own code")
        return out

    def _record(self, key: Any, asked: Asked) -> Any:
        if any(map(hooked_by_others, self.model.modules())):
            return asked.of(self.model)
        self.outside = Outside(self.model, [each.layer for each in self.layers])
        if any(x.layout != torch.strided for x in self.outside.state):
            self._refuse(key, "weights in a layout of another library")
            return asked.of(self.model)
        self.recording = recording = Recording(asked, self.outside.state)
        try:
            with recording.watching():
                out = asked.of(self.model)
        finally:
            self.recording = None
        try:
            self.passes[key] = WholePass(recording, out, asked, self)
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
        asked = Asked(ids, positions, whole.asked.masks, cache, 1)
        recording = Recording(asked, self.outside.state, whole.calls)
        before = self.cache, self.recording
        self.cache, self.recording = cache, recording
        try:
            with recording.watching():
                asked.of(self.model)
        finally:
            self.cache, self.recording = before
        if recording.refused:
            raise RefusedError(recording.refused)
        return recording


def attach(model: nn.Module) -> PassReplay | None:
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
