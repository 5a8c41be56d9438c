"""The engine for CUDA: passes of fixed shape, recorded once as graphs and replayed.

At batch size 1 a pass is a few hundred small kernels, and starting them from Python costs more than
running them. A CUDA graph starts all of them at once, and holds the addresses that they read. So
what differs between passes (tokens, the length of the cache) is in tensors that stay where they
are, and these, the cache and the graphs are kept beside the model and lent from one session to the
next. Elsewhere than on CUDA the same passes are run again at each call.
"""

import logging
import weakref
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import PreTrainedModel

from spsbench.engines.eager import KINDS, EagerLM, check_rollback, ordinary, slides
from spsbench.engines.quantization.layers import dequantise
from spsbench.engines.replay import NetworkPass
from spsbench.engines.session.cache import PreallocatedCache, PreallocatedLayer, grow_capacity
from spsbench.engines.session.engine_config import EngineConfig, engine_config_of, set_engine_config
from spsbench.engines.session.longrope import border_of, open_at_border
from spsbench.engines.session.masks import PassInputs
from spsbench.engines.session.partial_cache import KINDS as PARTIAL_KINDS
from spsbench.engines.session.partial_cache import PartialLM
from spsbench.errors import first_line
from spsbench.loop.sampling import send
from spsbench.loop.types import LM, Engine

log = logging.getLogger(__name__)

PASS_SIZES = (1, 2, 3, 5, 9, 17, 33, 65, 129)  # tokens of a recorded pass; the rest is padding
USUAL_SIZES = 1, *PASS_SIZES[:5]  # passes before any text: a first token, drafts of up to 8
FIRST_ROWS = 2048  # rows of a new cache, or the context: growth records anew


class FixedLayer(PreallocatedLayer):
    """Keys and values of a layer whose buffers move only between passes."""

    slots: Tensor | None = None  # [m] rows that a recorded pass writes; None: those after `length`
    reads = 0  # rows that a recorded pass attends to

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write rows at `slots`, if None as any layer; return views of what the pass attends to."""
        if self.slots is None:
            return super().update(key_states, value_states)
        self.keys.index_copy_(2, self.slots, key_states)
        self.values.index_copy_(2, self.slots, value_states)
        return self.keys[:, :, : self.reads], self.values[:, :, : self.reads]

    def keep(self, length: int, rows: Tensor | None = None) -> None:
        """Keep rows as any layer does; an empty one is zeroed: a NaN would outlive every mask."""
        super().keep(length, rows)
        if self.length == 0:
            self.keys.zero_()
            self.values.zero_()

    def get_seq_length(self) -> int:
        """Return the tokens before a pass; raise in a recorded one, which would freeze them."""
        if self.slots is not None:
            raise RuntimeError("its forward asks the cache for its length")
        return super().get_seq_length()


class Runner:
    """A cache and the recorded passes over it, for one text at a time.

    It has no reference to what it runs, which keeps it for later texts. `limit` is the number of
    tokens in the context, None: any number. `replays` are the inputs of recorded passes, and what
    makes each again, by key; `refused` are the names of passes that cannot be recorded.
    """

    def __init__(self, device: torch.device, limit: int | None = None) -> None:
        self.rows = min(FIRST_ROWS, limit or FIRST_ROWS)
        self.replays: dict[Hashable, tuple[list[Tensor], Callable[..., Sequence[Tensor]]]] = {}
        self.refused: set[Hashable] = set()
        self.cache = PreallocatedCache()
        self.cache.layer_class_to_replicate = partial(FixedLayer, None)
        self._device = device
        self._start = torch.zeros((), dtype=torch.int64, device=device)
        self._addresses: tuple[int, int, int] | None = None  # the first layer's, in the recordings
        self._pool: Any = None  # memory of the graphs, of which one runs at a time

    def prepare(self, past: int, end: int) -> int:
        """Make room for `end` tokens, and set the cache to `past`: a model's own code writes there.

        Returns how many rows a recorded pass attends to. Recordings are dropped if buffers move.
        """
        self._start.fill_(past)
        while self.rows < end:
            self.rows *= 2
        for layer in self.cache.layers:
            layer.slots, layer.length = None, past
            if layer.capacity < self.rows:
                layer.widen(self.rows)
        addresses = self.cache.layers[0].addresses if self.cache.layers else None
        if addresses != self._addresses:  # the layers move together
            self.replays.clear()
            self._addresses = addresses
        return min(grow_capacity(end), self.rows)

    def look(self, m: int, reads: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Have a pass write m rows after the cached ones, and attend to the first `reads`.

        Returns the rows [m] that it writes, and a causal mask [1, 1, m, reads].
        """
        slots = self._start + torch.arange(m, device=self._device)
        mask = torch.zeros(1, 1, m, reads, dtype=dtype, device=self._device)
        unseen = torch.arange(reads, device=self._device) > slots[:, None]
        mask.masked_fill_(unseen, torch.finfo(dtype).min)
        for layer in self.cache.layers:
            layer.slots, layer.reads = slots, reads
        return slots, mask

    def replay(
        self, key: Hashable, work: Callable[..., Sequence[Tensor]], *inputs: Tensor
    ) -> Sequence[Tensor]:
        """Return the results of `work(*inputs)`, in tensors that a later pass overwrites.

        The first call with `key` is recorded. Inputs are copied to where the recording reads them.
        RuntimeError: the pass waits for the device, or does something else that a graph cannot.
        """
        if key not in self.replays:
            places = [x.clone() for x in inputs]
            self.replays[key] = places, self._record(partial(work, *places))
        places, again = self.replays[key]
        for place, x in zip(places, inputs, strict=True):
            place.copy_(x)
        return again(partial(work, *places))

    def _record(self, work: Callable[[], Sequence[Tensor]]) -> Callable[..., Sequence[Tensor]]:
        """Return a function that does `work` again, and leaves its results in the same tensors.

        On CUDA a graph is replayed. `work` is done once before, for libraries to choose kernels,
        and once with waits for the device as errors: a graph with one could not free memory.
        """
        if self._device.type != "cuda":
            first = work()
            return lambda work: [old.copy_(new) for old, new in zip(first, work(), strict=True)]
        with torch.cuda.device(self._device):
            graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            before = torch.cuda.get_sync_debug_mode()
            stream.wait_stream(torch.cuda.current_stream())
            try:
                with torch.cuda.stream(stream):
                    work()
                    torch.cuda.set_sync_debug_mode("error")
                    work()
                    torch.cuda.set_sync_debug_mode(before)
                    with torch.cuda.graph(graph, self._pool, stream, "thread_local"):
                        results = work()
            finally:
                torch.cuda.set_sync_debug_mode(before)
                torch.cuda.current_stream().wait_stream(stream)
        return lambda work: graph.replay() or results  # type: ignore[func-returns-value]


_RUNNERS: WeakKeyDictionary[nn.Module, tuple[int, dict[tuple[int, ...], list[Runner]]]]
_RUNNERS = WeakKeyDictionary()  # module -> its weights' addresses; by hidden states, idle runners


def idle_runners(module: nn.Module, layers: tuple[int, ...], *parts: nn.Module) -> list[Runner]:
    """Return the list itself of the runners of `module` that no text uses, for `borrow`.

    Their passes return the hidden states `layers`, and read weights of `parts` too. Where a weight
    has moved, or `parts` are others, all lists of `module` are dropped, and this is a new one.
    """
    weights = (weight for part in (module, *parts) for weight in part.parameters())
    addresses = hash(tuple(weight.data_ptr() for weight in weights))
    if module not in _RUNNERS or _RUNNERS[module][0] != addresses:
        _RUNNERS[module] = addresses, {}
    return _RUNNERS[module][1].setdefault(layers, [])


@torch.inference_mode()
def borrow(
    user: object, idle: list[Runner], device: torch.device, limit: int | None = None
) -> Runner:
    """Take the runner that recorded most from `idle`, or a new one; its cache is empty.

    It goes back to `idle` when `user` is collected. `limit`: the context of a new one, in tokens.
    """
    idle.sort(key=lambda runner: len(runner.replays))
    runner = idle.pop() if idle else Runner(device, limit)
    runner.cache.keep(0)
    weakref.finalize(user, idle.append, runner).atexit = False
    return runner


class StaticLM(EagerLM):
    """A session that borrows a runner; prompts and trees run in the model's own code.

    A rollback sets a number. Sessions that follow each other share cache and graphs.
    """

    joins = False

    def _open(self) -> None:
        idle = idle_runners(self.model, self.layers)
        self._runner = borrow(self, idle, self.device, self.limit)
        self._cache = self._runner.cache

    def _forward(self, tokens: Tensor, keep: int, parents: Tensor | None) -> Any:
        """Replay a recorded pass where one fits, else run the pass in `eager`; cache the tokens.

        One fits up to 129 tokens after others, given `keep` and no tree; its logits are of all. The
        first of a size is recorded, or RuntimeError. Padding goes where the next pass writes.
        """
        m, past, runner = len(tokens), self._length, self._runner
        size = next((size for size in PASS_SIZES if m <= size), None)
        if not (keep and past and size and parents is None):
            runner.prepare(past, past + m)
            return super()._forward(tokens, keep, parents)
        shape = size, runner.prepare(past, past + size)
        ids = pad(send(tokens, self.device), (0, size - m))
        results = runner.replay(shape, partial(self._pass, *shape), ids)
        logits, *states = (result[:, :m].clone() for result in results)
        self._length += m
        hidden = dict(zip(self.layers, states, strict=True))
        return SimpleNamespace(logits=logits, hidden_states=hidden)

    def _pass(self, size: int, reads: int, ids: Tensor) -> list[Tensor]:
        """Return logits [1, size, V] and hidden states."""
        slots, mask = self._runner.look(size, reads, self.model.dtype)
        positions = slots if self.limit is None else slots.clamp(max=self.limit - 1)  # pads too
        inputs = PassInputs(ids, positions, mask, self._cache, size, self.layers)
        out = inputs.of(self.model)
        return [out.logits, *(out.hidden_states[layer] for layer in self.layers)]

    def _keep(self, length: int, nodes: list[int]) -> None:
        """Move the rows `nodes` after the first `length`; those of a chain stay."""
        if nodes or length == 0:
            self._cache.keep(length, nodes)


PARTIAL_KINDS[StaticLM] = PartialLM


class StaticNetwork:
    """Runs the passes of a head's network for one text: see `engines.replay.NetworkReplay`.

    Passes of each size are recorded when the first one comes; those over many rows, and the first
    of a text, run the network's own code.
    """

    def __init__(self, network: nn.Module, *parts: nn.Module) -> None:
        device = next(network.parameters()).device
        self._runner = borrow(self, idle_runners(network, (), *parts), device)
        self._within = False  # a recorded pass, of which all passes that it asks for are part

    @torch.inference_mode()
    def run(
        self,
        name: Hashable,
        plain: NetworkPass,
        tensors: Sequence[Tensor],
        mask: Any = None,
        cache: Any = None,
    ) -> Tensor:
        """Return `plain(tensors, mask, cache)`, or a replay of it; `cache` gets the runner's rows.

        A pass is recorded when its shape first comes. Within it, over many rows and over no past,
        `plain` is called. One that cannot be recorded is noted, and its `name` not tried again.
        """
        runner, m, past, reads = self._runner, len(tensors[0]), 0, 0
        if self._within:
            return plain(tensors, mask, cache)
        if cache is not None:
            vars(cache).update(vars(runner.cache))
            past = cache.layers[0].length if cache.layers else 0
            reads = runner.prepare(past, past + m)
        if m > PASS_SIZES[-1] or name in runner.refused or (cache is not None and not past):
            return plain(tensors, mask, cache)
        masks, n = [], len(tensors)
        if mask is not None:
            masks = [pad(mask, (0, reads - past - m), value=torch.finfo(mask.dtype).min)]

        def work(*inputs: Tensor) -> list[Tensor]:
            if cache is None:
                return [plain(inputs, None, None)]
            _, causal = runner.look(m, reads, cache.layers[0].keys.dtype)
            return [plain(inputs[:n], inputs[n] if masks else causal, cache)]

        key = name, reads, mask is None, *(x.shape for x in tensors)
        self._within = True
        try:
            result = runner.replay(key, work, *tensors, *masks)[0].clone()
        except RuntimeError as error:
            runner.refused.add(name)
            log.info(f"note: a head's passes {name} run without a graph: {first_line(error)}")
            result = None
        finally:
            self._within = False
        if cache is not None:
            runner.prepare(past if result is None else past + m, past + m)
        return plain(tensors, mask, cache) if result is None else result

    def roll_out(self, *args: Any) -> bool:
        """Return that nothing was done: passes are replayed one by one."""
        return False


class Static(Engine):
    """Engine for models that transformers declares fit for fixed shapes; others run as `eager`."""

    def session(
        self, model: PreTrainedModel, *, vocab_size: int | None = None, layers: Sequence[int] = ()
    ) -> LM:
        config = engine_config_of(model)
        static = config is not None and config.engine == "static"
        kind = StaticLM if static else KINDS.get(model, EagerLM)
        return open_at_border(lambda: kind(model, vocab_size=vocab_size, layers=layers), model)

    def prepare(self, model: PreTrainedModel, **options: Any) -> dict[str, Any]:
        """Choose `static`, else `eager`, for `model`, unless one is chosen; return that as JSON.

        Codes become plain weights; `options` are not read. UnsupportedModelError: no rollback.
        """
        dequantise(model)
        if choice := engine_config_of(model):
            check_rollback(model)
            return choice.to_json()
        if reason := why_unsupported(model) or fails(model):
            check_rollback(model)
            return set_engine_config(model, EngineConfig(engine="eager", reason=reason)).to_json()
        on_cuda = model.device.type == "cuda"
        how = "recorded as graphs, experimental" if on_cuda else "not recorded, which is for CUDA"
        return set_engine_config(model, EngineConfig(engine="static", reason=how)).to_json()

    def pack(self, module: Any) -> None:
        """Have the passes of a drafter's own network recorded, as those of models are."""
        dequantise(module)
        vars(module)["replay_over"] = partial(StaticNetwork, module)


@torch.inference_mode()
def fails(model: PreTrainedModel) -> str | None:
    """Return why sessions cannot run `model`, or None; on CUDA usual sizes are then recorded."""
    try:
        check_rollback(model, StaticLM)
        lm = StaticLM(model)
        for size in USUAL_SIZES if model.device.type == "cuda" else ():
            lm.append(ordinary(lm.vocab_size, size), keep=lm.length and size)
            lm.commit(1)
    except (ValueError, RuntimeError) as error:  # no rollback, or no graph
        return first_line(error)
    return None


def why_unsupported(model: PreTrainedModel) -> str | None:
    """Return why `model` cannot run in passes of fixed shape, by class, config, device; or None."""
    config, name = model.config.get_text_config(), type(model).__name__
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if model in KINDS or slides(model) or kinds or border_of(model) is not None:
        return f"{name} attends otherwise than to all of one text"
    if not getattr(model, "_can_compile_fullgraph", False):
        return f"transformers does not say that the forward of {name} allows fixed shapes"
    attention = model.config._attn_implementation
    if attention not in ("sdpa", "eager"):
        return f"attention {attention} takes no ready mask: expected sdpa or eager"
    devices = {str(weight.device) for weight in model.parameters()}
    if len(devices) > 1:
        return f"{name} is spread over {', '.join(sorted(devices))}"
    return None
