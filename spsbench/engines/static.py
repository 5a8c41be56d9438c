"""The engine for CUDA: passes of fixed shape, recorded once as graphs and replayed.

At batch size 1 a pass is a few hundred small kernels, and starting them from Python costs more than
running them. A CUDA graph starts all of them at once, and holds the addresses that they read. So
what differs between passes (tokens, the length of the cache) is in tensors that stay where they
are, and these, the cache and the graphs are kept beside the model and lent from one session to the
next. Elsewhere than on CUDA the same passes are run again at each call.
"""

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from spsbench.engines.eager import KINDS, EagerLM, check_rollback, context_of, ordinary, slides
from spsbench.engines.quantization.layers import dequantise
from spsbench.engines.session.cache import PreallocatedCache, PreallocatedLayer, grow_capacity
from spsbench.engines.session.engine_config import EngineConfig, engine_config_of, set_engine_config
from spsbench.engines.session.longrope import border_of, open_at_border
from spsbench.engines.session.masks import PassInputs
from spsbench.errors import first_line
from spsbench.loop.sampling import send
from spsbench.loop.types import LM, Engine

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
        """Write rows at `slots`, or after `length`; return views of what the pass attends to."""
        if self.slots is None:
            return super().update(key_states, value_states)
        self.keys.index_copy_(2, self.slots, key_states)
        self.values.index_copy_(2, self.slots, value_states)
        return self.keys[:, :, : self.reads], self.values[:, :, : self.reads]

    def get_seq_length(self) -> int:
        """Return the tokens before a pass; raise in a recorded one, which would freeze them."""
        if self.slots is not None:
            raise RuntimeError("its forward asks the cache for its length")
        return super().get_seq_length()


class Runner:
    """A cache and the recorded passes over it, for one session at a time.

    It has no reference to its model, which keeps it for later sessions. Passes return the hidden
    states `layers`.

    Attributes:
        replays: the recorded passes by their padded size and the rows that they read.
    """

    def __init__(self, model: PreTrainedModel, layers: tuple[int, ...]) -> None:
        self.limit = context_of(model)
        self.rows = min(FIRST_ROWS, self.limit or FIRST_ROWS)
        self.cache = PreallocatedCache()
        self.cache.layer_class_to_replicate = partial(FixedLayer, None)
        self.replays: dict[tuple[int, int], Callable[[PreTrainedModel], Sequence[Tensor]]] = {}
        self._layers, self._device, self._dtype = layers, model.device, model.dtype
        self._ids = torch.zeros(PASS_SIZES[-1], dtype=torch.int64, device=model.device)
        self._start = torch.zeros((), dtype=torch.int64, device=model.device)
        self._pool: Any = None  # memory of the graphs, of which one runs at a time

    def reset(self) -> None:
        """Zero the cache: a NaN in it would outlive every mask."""
        for layer in self.cache.layers:
            layer.keys.zero_()
            layer.values.zero_()

    def prepare(self, past: int, end: int) -> None:
        """Make room for `end` tokens; a pass by the model's own code writes after `past` ones."""
        while self.rows < end:
            self.rows *= 2
        for layer in self.cache.layers:
            layer.slots, layer.length = None, past
            if layer.capacity < self.rows:
                layer.widen(self.rows)
                self.replays.clear()  # they hold the old addresses

    def run(self, model: PreTrainedModel, tokens: Tensor, past: int, size: int) -> Any:
        """Feed `tokens` [m] after `past` ones, padded to `size`; return the output as of `model`.

        Padding is written after the tokens, where the next pass writes, and seen by no token.
        """
        m = len(tokens)
        self.prepare(past, past + size)
        self._ids[:m] = send(tokens, self._device)
        self._start.fill_(past)
        shape = size, min(grow_capacity(past + size), self.rows)
        if shape not in self.replays:
            self.replays[shape] = self._record(model, partial(self._pass, *shape))
        logits, *states = (result[:, :m].clone() for result in self.replays[shape](model))
        hidden = dict(zip(self._layers, states, strict=True))  # copies: a replay overwrites its own
        return SimpleNamespace(logits=logits, hidden_states=hidden)

    def _pass(self, size: int, reads: int, model: PreTrainedModel) -> list[Tensor]:
        """Return logits [1, size, V] and hidden states; the host reads nothing meanwhile."""
        slots = self._start + torch.arange(size, device=self._device)
        positions = slots if self.limit is None else slots.clamp(max=self.limit - 1)  # pads too
        mask = torch.zeros(1, 1, size, reads, dtype=self._dtype, device=self._device)
        unseen = torch.arange(reads, device=self._device) > slots[:, None]
        mask.masked_fill_(unseen, torch.finfo(self._dtype).min)
        for layer in self.cache.layers:
            layer.slots, layer.reads = slots, reads
        inputs = PassInputs(self._ids[:size], positions, mask, self.cache, size, self._layers)
        out = inputs.of(model)
        return [out.logits, *(out.hidden_states[layer] for layer in self._layers)]

    def _record(
        self, model: PreTrainedModel, work: Callable[..., list[Tensor]]
    ) -> Callable[..., Sequence[Tensor]]:
        """Return what does `work` again, and leaves its results in the same tensors.

        On CUDA `work` is first done once for libraries to choose kernels, and once with waiting for
        the device as an error: within a graph it would leave torch unable to free memory.

        Raises:
            RuntimeError: the pass waits for the device, or does what else a graph cannot.
        """
        if self._device.type != "cuda":
            first = work(model)
            return lambda model: [
                old.copy_(new) for old, new in zip(first, work(model), strict=True)
            ]
        with torch.cuda.device(self._device):
            graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            before = torch.cuda.get_sync_debug_mode()
            stream.wait_stream(torch.cuda.current_stream())
            try:
                with torch.cuda.stream(stream):
                    work(model)
                    torch.cuda.set_sync_debug_mode("error")
                    work(model)
                    torch.cuda.set_sync_debug_mode(before)
                    with torch.cuda.graph(graph, self._pool, stream, "thread_local"):
                        results = work(model)
            finally:
                torch.cuda.set_sync_debug_mode(before)
                torch.cuda.current_stream().wait_stream(stream)
        return lambda model: graph.replay() or results  # type: ignore[func-returns-value]


_RUNNERS: WeakKeyDictionary[PreTrainedModel, tuple[int, dict[tuple[int, ...], list[Runner]]]]
_RUNNERS = WeakKeyDictionary()  # model -> its weights' addresses; by hidden states, idle runners


def idle_runners(model: PreTrainedModel, layers: tuple[int, ...]) -> list[Runner]:
    """Return the runners of `model` that no session uses; weights that have moved leave none."""
    addresses = hash(tuple(weight.data_ptr() for weight in model.parameters()))
    if model not in _RUNNERS or _RUNNERS[model][0] != addresses:
        _RUNNERS[model] = addresses, {}
    return _RUNNERS[model][1].setdefault(layers, [])


class StaticLM(EagerLM):
    """A session that borrows a runner; prompts and trees run in the model's own code.

    A rollback sets a number. Sessions that follow each other share cache and graphs.
    """

    joins = False

    @torch.inference_mode()
    def _open(self) -> None:
        idle = idle_runners(self.model, self.layers)
        idle.sort(key=lambda runner: len(runner.replays))  # the last one has recorded the most
        self._runner = idle.pop() if idle else Runner(self.model, self.layers)
        self._runner.reset()
        self._cache = self._runner.cache
        weakref.finalize(self, idle.append, self._runner).atexit = False

    def _forward(self, tokens: Tensor, keep: int, parents: Tensor | None) -> Any:
        """Replay a recorded pass where one fits, else run the pass in `eager`."""
        m, past = len(tokens), self._length
        size = next((size for size in PASS_SIZES if m <= size), None)
        if keep and past and size and parents is None:
            out = self._runner.run(self.model, tokens, past, size)
            self._length += m
            return out
        self._runner.prepare(past, past + m)
        return super()._forward(tokens, keep, parents)

    def _keep(self, length: int, nodes: list[int]) -> None:
        """Move the rows `nodes` after the first `length`; those of a chain stay."""
        if nodes:
            self._cache.keep(length, nodes)
        elif length == 0:
            self._runner.reset()


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
        """Choose static sessions for `model`, or those of `eager`; return the choice as JSON."""
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
    """Return why `model` cannot run in passes of fixed shape, by its description, or None."""
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
