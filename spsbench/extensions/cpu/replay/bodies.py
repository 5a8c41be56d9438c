"""Bodies whose passes are programs: a model, and a head's network, which is none.

Rotary tables and learned embeddings of positions are tables with a row for each position. Whoever
exchanges a module of the model, or hooks one, has its own code back. A network's pass is recorded
with the tables and the parts of the target that it reads.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from threading import Lock
from types import SimpleNamespace
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from transformers import PreTrainedModel

from spsbench.engines.eager import context_of, logits_width, ordinary
from spsbench.engines.experts import watch_experts
from spsbench.engines.replay import MAX_ROWS, NetworkPass, RollOut
from spsbench.engines.session.cache import PreallocatedCache, grow_capacity
from spsbench.engines.session.masks import FULL, SLIDING, PassInputs, windows_of
from spsbench.extensions.cpu.kernels.steps import UncoveredPassError, is_read, text_record
from spsbench.extensions.cpu.replay.fused_modules import one_rotation
from spsbench.extensions.cpu.replay.program import Operands, Size
from spsbench.extensions.cpu.replay.record import Recorder, Recording, RecordingCache, record
from spsbench.extensions.cpu.replay.replay import BodyReplay

LOGITS = -1  # among the numbers of hidden states
SIZES = Size(16, 16), Size(6, 6), Size(6, 2), Size(9, 4)  # recorded; the last one is a check
PASTS = 3, 5, 4, 8  # tokens before each of them
COLLECTS = "transformers.utils.output_capturing"  # the module whose hooks change nothing


class ModelRequest(NamedTuple):
    """A pass of a model, after which its cache has `end` tokens."""

    inputs: PassInputs
    end: int
    size: Size

    @property
    def kind(self) -> Hashable:
        size = self.size if self.size.tokens <= MAX_ROWS else None
        return type(self.inputs.cache), self.inputs.layers, self.inputs.masks is None, size

    def outputs(self, is_checked: bool) -> tuple[int, ...]:
        return *self.inputs.layers, *([] if is_checked and self.inputs.unread else [LOGITS])


class ModelBody:
    """A model: the embedding, all layers and the head are one list of steps."""

    sizes: Sequence[Size] = SIZES

    def __init__(self, model: PreTrainedModel) -> None:
        self._model: Any = ref(model)  # which lives as long as its sessions, not as its programs
        self._dtype = model.dtype
        self._has_run = False
        self.weights: Sequence[Tensor] = ()
        self._cache_forms: dict[int, tuple[Tensor, Tensor]] = {}  # keys and values of no tokens
        self._mask_layers = list[int]()  # by kind of mask: a layer that uses it; -1: none
        self._outside = Outside(model)
        self._windows = windows_of(model)
        mapped = self._windows is not None and self._windows.mapped
        self._mask_kinds = (FULL, SLIDING) if mapped else ("",)

    def run(self, request: ModelRequest) -> Mapping[Any, Tensor]:
        self._has_run = True
        out = request.inputs.of(self._model())
        return {LOGITS: out.logits} | {n: out.hidden_states[n] for n in request.inputs.layers}

    def takes(self, request: ModelRequest) -> bool:
        """Return whether the model is as it was; False for the first pass, which is not to wait."""
        return self._has_run and self._outside.same()

    def operands(self, request: ModelRequest, passes: int) -> Operands | None:
        """Return what the pass reads and writes; None: no program makes it.

        The cache is widened for `passes`, of which the requested one is the first.
        """
        inputs = request.inputs
        if inputs.ids.dtype != torch.int64 or not inputs.ids.is_contiguous():
            return None
        cache_layers = self._cache_layers(inputs.cache, request.end + passes - 1)
        texts = None if cache_layers is None else self._texts(cache_layers, request)
        if cache_layers is None or texts is None:
            return None
        return Operands([inputs.ids], self._tables.rows(inputs), cache_layers, texts, request.end)

    def _cache_layers(self, cache: Any, end: int) -> Sequence[Any] | None:
        """Return layers that have keys, of one text widened; None: no room for `end` tokens."""
        if type(cache) is PreallocatedCache:
            while len(cache.layers) <= max(self._cache_forms):
                cache.layers.append(cache.layer_class_to_replicate())
            for number, form in self._cache_forms.items():
                layer = cache.layers[number]
                if not layer.is_initialized:
                    layer.lazy_initialization(*form)
                if layer.capacity < end:
                    layer.widen(grow_capacity(end, layer.capacity, layer.most))
        layers = [cache.layers[number] for number in self._cache_forms]
        return layers if all(layer.length < end <= layer.capacity for layer in layers) else None

    def _texts(self, cache_layers: Sequence[Any], request: ModelRequest) -> list[int] | None:
        """Return the numbers of a text record for each kind of mask; None: one cannot be read."""
        if (texts := getattr(cache_layers[0], "texts", None)) is not None:
            return list(texts) * len(self._mask_layers)
        masks, numbers, m = request.inputs.masks, list[int](), request.size.tokens
        for name, number in zip(self._mask_kinds, self._mask_layers, strict=True):
            layer = cache_layers[max(number, 0)]
            mask = masks.get(name) if isinstance(masks, Mapping) else masks
            seen = request.end - layer.first
            if mask is not None:
                if not is_read(mask, m, seen, self._dtype):
                    return None
            elif self._windows is not None and m > 1:  # own code has another kernel for its mask
                return None
            numbers += text_record(m, request.end, seen, mask)
        return numbers

    def record(self, request: ModelRequest) -> list[Recording]:
        """Return recordings of the model's pass at each size; keep its weights and tables."""
        model = self._model()
        self.weights = [*model.parameters(), *model.buffers()]
        pairs = zip(SIZES, PASTS, strict=True)
        positions = [torch.arange(before, before + size.tokens) for size, before in pairs]
        with watch_experts(), one_rotation(model):  # experts are counted once
            passes = zip(SIZES, positions, strict=True)
            recordings = [self._record_size(size.kept, at) for size, at in passes]
        self._tables = PositionTables(recordings[0], positions[0], context_of(model))
        self._mask_layers = recordings[0].layers
        return recordings

    def _record_size(self, kept: int, positions: Tensor) -> Recording:
        """Record a pass at `positions`, logits for its last `kept`; keep the forms of its cache."""
        m, end = len(positions), int(positions[-1]) + 1
        ids, cache = ordinary(logits_width(self._model()), m), RecordingCache(end - m)
        masks = [torch.zeros(1, 1, m, end, dtype=self._dtype) for _ in self._mask_kinds]
        named = dict(zip(self._mask_kinds, masks, strict=True))

        def run() -> dict[int, Tensor]:
            in_form: Any = masks[0] if len(masks) == 1 else named
            out = PassInputs(ids, positions, in_form, cache, kept, (0,)).of(self._model())
            return dict(enumerate(out.hidden_states)) | {LOGITS: out.logits}

        recording = record(run, Recorder([ids], positions, masks, self.weights, cache))
        self._cache_forms = {
            n: (keys[:, :, :0].clone(), values[:, :, :0].clone())
            for n, (keys, values) in cache.past.items()
        }
        return recording


class CpuModelReplay(BodyReplay[ModelRequest]):
    """Makes the passes of one model: see `engines.replay.ModelReplay`."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(ModelBody(model), Lock())
        self._no_logits = torch.empty(1, 0, logits_width(model), dtype=model.dtype)

    def attach(self, model: PreTrainedModel) -> "CpuModelReplay":
        """Return what makes the passes of another model."""
        return CpuModelReplay(model)

    def run(self, inputs: PassInputs, end: int) -> SimpleNamespace:
        """Make a pass, which lengthens the cache to `end`; return its output as a model does.

        `logits` are [1, keep, V], [1, 0, V] where unread; `hidden_states`: layer -> [1, m, D].
        """
        outputs = self.make_pass(ModelRequest(inputs, end, Size(len(inputs.ids), inputs.keep)))
        logits = outputs.get(LOGITS, self._no_logits)
        return SimpleNamespace(logits=logits, hidden_states=outputs)

    def roll_out(
        self, inputs: PassInputs, end: int, logits: Tensor, rolled: RollOut
    ) -> Tensor | None:
        """Return logits [n, V'] of n passes, filling ids in `rolled`; None: no checked program."""
        rows = self.make_roll_out(ModelRequest(inputs, end, Size(1, 1)), rolled, logits)
        return None if rows is None else rows.flatten(0, 2)


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
        """Return whether these, not modules in layers, have the same parts and no user's hook."""
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


class PositionTables:
    """Functions of positions alone: a row for each position that texts have reached.

    Raises:
        UncoveredPassError: they are no rows.
    """

    def __init__(self, recording: Recording, positions: Tensor, most: int | None) -> None:
        """Take tables from the recording of a pass over `positions`, of at most `most` rows."""
        if any(not x.is_contiguous() or x.numel() % len(positions) for x in recording.tables):
            raise UncoveredPassError("functions of positions that are no rows")
        self._recording, self._positions, self._most = recording, positions, most
        self._count, self._rows = 0, list[Tensor]()

    def rows(self, request: PassInputs) -> list[Tensor]:
        """Return each table's rows at a pass's positions; tables grow as far as these reach."""
        start, m = request.start, len(request.positions)
        end = int(request.positions.max()) + 1 if start is None else start + m
        if end > self._count:
            self._grow(grow_capacity(end, self._count, self._most))
        which = request.positions if start is None else slice(start, end)
        return [x[which] for x in self._rows]

    def _grow(self, count: int) -> None:
        """Compute the tables' rows up to `count` positions, in pieces of one size."""
        parts, piece = [self._rows] if self._rows else [], len(self._positions)
        for start in range(self._count, count, piece):
            positions = (start + torch.arange(piece)).clamp(max=count - 1)
            tables = tables_at(self._recording, self._positions, positions)
            parts.append([x.reshape(piece, -1)[: count - start].clone() for x in tables])
        self._rows = [torch.cat(rows) for rows in zip(*parts, strict=True)]
        self._count = count


def tables_at(recording: Recording, recorded: Tensor, positions: Tensor) -> list[Tensor]:
    """Return the recording's tables at `positions`, as many as `recorded`, at which it was made."""
    by_id: dict[int, Any] = {id(recorded): positions}

    def now(x: Any) -> Any:
        return by_id.get(id(x), x) if isinstance(x, Tensor) else x

    for func, args, kwargs, out in recording.calls:
        moved = func(*tree_map(now, args), **tree_map(now, kwargs))
        for old, new in zip(tree_leaves(out), tree_leaves(moved), strict=True):
            by_id[id(old)] = new
    return [by_id[id(x)] for x in recording.tables]


NETWORK_SIZES = Size(16, 16), Size(6, 6), Size(9, 9)  # recorded; the last one is a check
NETWORK_PAST = 3  # tokens before each of them
RESULT = ""  # the name of the only output


class NetworkRequest(NamedTuple):
    """A pass of a network, or n of one row, which are `size`."""

    plain: Any  # a `NetworkPass`, its own code; None: a roll-out, which runs none
    tensors: Sequence[Tensor]  # [m, ...], of a roll-out [n, ...]
    mask: Any  # additive [1, 1, m, n]; None: each row sees all up to itself
    cache: Any  # a cache of one layer; None: there is no attention
    size: Size

    @property
    def cache_layers(self) -> list[Any]:
        return [] if self.cache is None else list(self.cache.layers)

    @property
    def kind(self) -> Hashable:
        return self.size, self.mask is None

    def outputs(self, is_checked: bool) -> tuple[str, ...]:
        return (RESULT,)


class NetworkBody:
    """A pass of a network over parts of a target: `modules` are all whose weights it reads."""

    sizes: Sequence[Size] = NETWORK_SIZES

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.weights: Sequence[Tensor] = [
            x for module in modules for x in (*module.parameters(), *module.buffers())
        ]

    def run(self, request: NetworkRequest) -> Mapping[str, Tensor]:
        return {RESULT: request.plain(request.tensors, request.mask, request.cache)}

    def takes(self, request: NetworkRequest) -> bool:
        """Return whether rows are few, after others in the cache's only layer, if there is one."""
        layers = request.cache_layers
        fits = len(layers) == (request.cache is not None) and request.size.tokens <= MAX_ROWS
        return fits and all(layer.length > 0 for layer in layers)

    def operands(self, request: NetworkRequest, passes: int) -> Operands | None:
        """Return what the first of `passes` uses; None: no program, or no room (none is made)."""
        layers, mask, m = request.cache_layers, request.mask, request.size.tokens
        end = layers[0].length + m if layers else 0
        has_room = all(end + passes - 1 <= layer.capacity for layer in layers)
        of_pass = request.tensors if passes == 1 else [x[:1] for x in request.tensors]
        if not has_room or not all(x.is_contiguous() for x in of_pass):
            return None
        if mask is not None and not (layers and is_read(mask, m, end, layers[0].keys.dtype)):
            return None
        texts = text_record(m, end, end, mask) if layers else ()
        return Operands(request.tensors, (), layers, texts, end)

    def record(self, request: NetworkRequest) -> list[Recording]:
        """Return recordings of the network's pass at each of `sizes`."""
        return [self._record_size(size.tokens, request) for size in NETWORK_SIZES]

    def _record_size(self, m: int, request: NetworkRequest) -> Recording:
        """Record a pass over `m` rows, those of `request` again and again."""
        rows = torch.arange(m) % len(request.tensors[0])
        inputs, layers = [x[rows].contiguous() for x in request.tensors], request.cache_layers
        cache = RecordingCache(NETWORK_PAST) if layers else None
        masks = [torch.zeros(1, 1, m, NETWORK_PAST + m, dtype=layer.keys.dtype) for layer in layers]
        mask = masks[0] if masks else None
        recorder = Recorder(inputs, None, masks, self.weights, cache)
        copied = request._replace(tensors=inputs, mask=mask, cache=cache)
        return record(lambda: self.run(copied), recorder)


class CpuNetworkReplay:
    """Makes the passes of a network over parts of a target: see `engines.replay.NetworkReplay`.

    `modules` are the network and all else whose weights its passes read.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._body, self._lock = NetworkBody(modules), Lock()
        self._modules = modules  # which live as long as their programs
        self.replays: dict[Hashable, BodyReplay[NetworkRequest]] = {}  # by the name of a pass

    def run(
        self,
        name: Hashable,
        plain: NetworkPass,
        tensors: Sequence[Tensor],
        mask: Any = None,
        cache: Any = None,
    ) -> Tensor:
        """Return `plain(tensors, mask, cache)`, by a program of `name` once one is checked."""
        replay = self.replays.setdefault(name, BodyReplay(self._body, self._lock))
        m = len(tensors[0])
        return replay.make_pass(NetworkRequest(plain, tensors, mask, cache, Size(m, m)))[RESULT]

    def roll_out(
        self, name: Hashable, rows: Tensor, tables: Sequence[Tensor], cache: Any, rolled: RollOut
    ) -> bool:
        """Draw ids and fill rows 1 to n of `rows` [n + 1, X]; return whether a program did so.

        Row i + 1 is of the pass over the token that is drawn from the logits in row i, from number
        `rolled.start` on, and kept in `rolled.ids`. False: nothing has changed.
        """
        if name not in self.replays:
            return False
        inputs = [rolled.ids, *tables, rows[:-1]]
        request = NetworkRequest(None, inputs, None, cache, Size(1, 1))
        logits = rows[0, rolled.start :]
        return self.replays[name].make_roll_out(request, rolled, logits, rows[1:]) is not None


def replays_of(network: nn.Module) -> Callable[..., CpuNetworkReplay]:
    """Return a function from parts of a target to the programs of a network over them, cached."""
    return lru_cache(None)(lambda *parts: CpuNetworkReplay([network, *parts]))
