"""Passes of a model whose shapes and addresses do not change, so that one recording serves all.

The variable parts of a pass (tokens, their positions, their masks) are in tensors; the mask over
all rows is computed from them on the device. On CUDA a pass is recorded as a graph on first use and
replayed afterwards; elsewhere it runs directly.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, rms_norm, scaled_dot_product_attention
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    Cache,
    CacheLayerMixin,
    DynamicCache,
    PreTrainedModel,
)
from transformers.activations import NewGELUActivation
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from spsbench.engines.session.cache import PreallocatedCache, PreallocatedLayer, doubled
from spsbench.loop.sampling import send
from spsbench.loop.trees import block_visible, places

Result = TypeVar("Result")


class Recording(Generic[Result]):
    """A CUDA graph and its result, which the next replay overwrites."""

    def __init__(self, graph: torch.cuda.CUDAGraph, result: Result) -> None:
        # The result is held as long as the graph: no other recording may be given its memory.
        self._graph, self._result = graph, result

    def replay(self) -> Result:
        """Run the graph again on the current contents of its operands."""
        self._graph.replay()
        return self._result


class Recorder:
    """Recorder of CUDA graphs on one stream and in one memory pool, for serial use."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._aside: Any = None
        self._pool: Any = None

    def record(self, work: Callable[[], Result]) -> Recording[Result]:
        """Run `work` twice, then record it; it must bear repetition.

        In the first run libraries choose kernels and take memory. In the second waiting for the
        device is an error, so that a recording that cannot succeed is not begun: before torch 2.12
        one that failed left the allocator unable to free memory, and to record anything after it.

        Raises:
            RuntimeError: it waits for the device, or does what else a graph cannot.
        """
        with torch.cuda.device(self._device):
            here = torch.cuda.current_stream()
            self._aside = self._aside or torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._aside.wait_stream(here)
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.stream(self._aside):  # left also after a failed recording
                    work()
                    with no_waiting():
                        work()
                    with torch.cuda.graph(
                        graph, self._pool, self._aside, capture_error_mode="thread_local"
                    ):
                        result = work()
            finally:
                here.wait_stream(self._aside)
            self._pool = graph.pool()
            return Recording(graph, result)


@contextmanager
def no_waiting() -> Iterator[None]:
    """Let each operator that makes the host wait raise a RuntimeError."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says once that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@dataclass(slots=True)
class Aim:
    """The rows that the next pass writes and reads."""

    start: int = 0  # rows before it
    reads: int = 0  # rows that attention sees
    slots: Tensor | None = None  # [m] rows to write, on the device; None = from `start` on
    capacity: int = 0  # rows of the buffers


class StaticLayer(PreallocatedLayer):
    """A layer whose buffers grow only between passes, and whose length a pass cannot read."""

    def __init__(self, aim: Aim) -> None:
        super().__init__(None)
        self._aim = aim

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Take shapes and types from the first states, and all of the room."""
        super().lazy_initialization(key_states, value_states)
        self.widen(self._aim.capacity)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write where the cache aims and return the rows that attention is to see."""
        aim = self._aim
        if aim.slots is None:
            self.length = aim.start
            return super().update(key_states, value_states)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys.index_copy_(2, aim.slots, key_states)
        self.values.index_copy_(2, aim.slots, value_states)
        return self.keys[:, :, : aim.reads], self.values[:, :, : aim.reads]

    def reset(self) -> None:
        """Zero every row: a masked row still counts 0 times its value, which must be a number."""
        CacheLayerMixin.reset(self)

    def get_seq_length(self) -> int:
        """Return the rows before a pass; raise in a pass of fixed shape.

        A recorded pass would freeze the length.
        """
        if self._aim.slots is not None:
            raise RuntimeError("its forward asks the cache for its length")
        return self._aim.start


class StaticCache(PreallocatedCache):
    """Keys and values at fixed addresses; `aim` says what the next pass writes and reads."""

    def __init__(self) -> None:
        self._aim = aim = Aim()
        Cache.__init__(self, layer_class_to_replicate=lambda: StaticLayer(aim))

    def aim(self, start: int, reads: int, slots: Tensor | None = None) -> None:
        """Let the next pass write rows `slots`, or from `start` on, and read the first `reads`."""
        self._aim.start, self._aim.reads, self._aim.slots = start, reads, slots

    def grow(self, rows: int, used: int) -> bool:
        """Make room for `rows`, keeping the first `used`; return whether addresses changed."""
        if rows <= self._aim.capacity:
            return False
        self._aim.capacity = rows
        for layer in self.layers:
            layer.length = used
            layer.widen(rows)
        return True

    def dynamic(self, length: int) -> DynamicCache:
        """Return the first `length` rows as transformers' growing cache."""
        copy = DynamicCache()
        for index, layer in enumerate(self.layers if length else ()):
            copy.update(layer.keys[:, :, :length], layer.values[:, :, :length], index)
        return copy


SIZES = (1, 2, 3, 5, 9, 17, 33, 65, 129)  # tokens fed: one, two, and K + 1 for K a power of two
REACH = SIZES[-1]  # nodes of a tree that were fed before a pass of it, at most
ROOM = 2048  # rows allocated at first, if the context is not shorter: growth costs all recordings


class PassShape(NamedTuple):
    """The fixed sizes of a pass."""

    fed: int  # tokens, one of SIZES
    reads: int  # rows of the cache
    tree: bool


class Output(NamedTuple):
    """The output of a pass, as of a model."""

    logits: Tensor  # [1, m, V]
    hidden_states: dict[int, Tensor]  # layer -> [1, m, D]


def size_for(tokens: int) -> int | None:
    """Return the least of `SIZES` that holds `tokens`; it depends on their number alone."""
    return next((size for size in SIZES if tokens <= size), None)


def records(device: torch.device) -> bool:
    """Return whether passes are recorded there."""
    return device.type == "cuda"


class StaticPass:
    """A pass of one shape; rows beyond the given tokens are padding that no row attends to."""

    def __init__(self, shape: PassShape, model: PreTrainedModel, limit: int | None) -> None:
        device, fed = model.device, shape.fed
        self._shape, self._limit = shape, limit
        self._ids = torch.zeros(1, fed, dtype=torch.int64, device=device)
        self._start = torch.zeros((), dtype=torch.int64, device=device)
        self._steps = torch.arange(fed, device=device)
        self._columns = torch.arange(shape.reads, device=device)
        self._depths = self._steps.clone()  # of a tree's nodes: places after `start`
        # A padding row must attend to a key: a softmax over nothing is NaN, and stays in the cache.
        self._sees = torch.ones(fed, REACH + fed, dtype=torch.bool, device=device)
        self._shown = torch.zeros((), dtype=model.dtype, device=device)
        self._hidden = torch.full_like(self._shown, torch.finfo(model.dtype).min)
        self.recording: Recording[Output] | None = None

    def fill(self, tokens: Tensor, start: int, parents: Tensor | None) -> None:
        """Say what the next run feeds: `tokens` [m] after `start` cached ones."""
        m, device = len(tokens), self._ids.device
        self._ids[0, :m] = send(tokens, device)
        self._start.fill_(start)
        if parents is not None:
            self._depths[:m] = send(places(parents, m, start) - start, device)
            seen, block = torch.zeros(m, self._sees.shape[1]), block_visible(parents, m)
            first, end = REACH + m - block.shape[1], REACH + m
            seen[:, :first], seen[:, first:end] = 1, block
            self._sees[:m] = send(seen.bool(), device)

    def run(self, model: PreTrainedModel, cache: StaticCache, layers: tuple[int, ...]) -> Output:
        """Run the pass; the host reads nothing in it."""
        slots = self._start + self._steps
        places = self._start + self._depths if self._shape.tree else slots
        if self._limit is not None:
            places = places.clamp(max=self._limit - 1)  # padding may be beyond the context
        cache.aim(0, self._shape.reads, slots)
        mask = torch.where(self._seen(slots), self._shown, self._hidden)  # [fed, reads]
        out = model(
            input_ids=self._ids,
            position_ids=places[None],
            attention_mask=mask[None, None],
            past_key_values=cache,
            use_cache=True,
            output_hidden_states=bool(layers),
        )
        return Output(out.logits, {layer: out.hidden_states[layer] for layer in layers})

    def _seen(self, slots: Tensor) -> Tensor:
        """Return [fed, reads] bool: cached rows, and rows of the block up to the row itself."""
        if not self._shape.tree:
            return self._columns <= slots[:, None]
        after = self._columns - self._start + REACH  # earlier nodes are left of `start`
        block = self._sees[:, after.clamp(0, REACH + self._shape.fed - 1)]
        return (after < 0) | (block & (after < REACH + self._shape.fed))


class StaticRunner:
    """The passes of one session: a cache, and a `StaticPass` for each shape met so far.

    A runner holds no reference to the model, so that the model can keep runners for later sessions.
    """

    def __init__(self, layers: tuple[int, ...], limit: int | None) -> None:
        self.cache = StaticCache()
        self._layers, self._limit = layers, limit
        self._passes: dict[PassShape, StaticPass] = {}
        self._recorder: Recorder | None = None

    def reserve(self, tokens: int, used: int) -> int:
        """Make room for `tokens`, keeping `used`; returns the rows to read."""
        rows = doubled(tokens)
        least = ROOM if self._limit is None else min(ROOM, doubled(self._limit))
        if self.cache.grow(max(rows, least), used):
            self._passes.clear()  # they hold the old addresses
            self._recorder = None
        return rows

    def __call__(
        self, model: PreTrainedModel, tokens: Tensor, start: int, parents: Tensor | None
    ) -> Output:
        """Feed `tokens` [m], one to `SIZES[-1]`, after `start` cached ones."""
        m, fed = len(tokens), size_for(len(tokens))
        if fed is None:
            raise ValueError(f"{m} tokens: expected at most {SIZES[-1]}")
        shape = PassShape(fed, self.reserve(start + fed, start), parents is not None)
        if shape not in self._passes:
            self._passes[shape] = StaticPass(shape, model, self._limit)
        run = self._passes[shape]
        run.fill(tokens, start, parents)
        out = self._replayed(run, model) if records(model.device) else self._run(run, model)
        hidden = {layer: states[:, :m].clone() for layer, states in out.hidden_states.items()}
        return Output(out.logits[:, :m].clone(), hidden)  # the next replay overwrites the graph's

    def _run(self, run: StaticPass, model: PreTrainedModel) -> Output:
        with lean(model):
            return run.run(model, self.cache, self._layers)

    def _replayed(self, run: StaticPass, model: PreTrainedModel) -> Output:
        if run.recording is None:
            self._recorder = self._recorder or Recorder(model.device)
            run.recording = self._recorder.record(lambda: self._run(run, model))
        return run.recording.replay()


# At batch size 1 a small kernel costs its launch, some microseconds: while a pass is recorded,
# transformers' small modules run as one operator each. The model itself is unchanged for prompts,
# other engines and transformers' own `generate`.

NARROW = (torch.float32, torch.bfloat16, torch.float16)  # dtypes that norms compute in float32
SHARED = "spsbench_shared"


@contextmanager
def lean(model: PreTrainedModel) -> Iterator[None]:
    """Run passes of `model` in fewer operators; they compute the same up to rounding."""
    with ExitStack() as stack:
        for module in model.modules():
            if "forward" in vars(module):  # replaced by another library
                continue
            if type(module) is NewGELUActivation:
                module.forward = tanh_gelu
            elif module_is_rms_norm(module):
                module.forward = one_norm(module)
            else:
                continue
            stack.callback(delattr, module, "forward")
        config = model.config.get_text_config()
        if config._attn_implementation == "sdpa":
            stack.callback(setattr, config, "_attn_implementation", "sdpa")
            config._attn_implementation = SHARED
        yield


def tanh_gelu(x: Tensor) -> Tensor:
    """Return `NewGELUActivation` of `x`, which transformers computes by eight operators."""
    return gelu(x, approximate="tanh")


def attend_shared(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Return attention [1, m, H, D] of `query` [1, H, m, D].

    `key` and `value` are [1, H / g, n, D].

    transformers' `sdpa` copies keys and values for each of the g heads that share them, in every
    layer of every pass. Here those heads are rows of one product: g * m rows, and the mask g times.
    """
    _, heads, m, width = query.shape
    shared = key.shape[1]
    mask = attention_mask
    plain = not more.get("position_bias") and not more.get("dropout")
    if heads == shared or m == 1 or not plain or mask is None or mask.shape[:2] != (1, 1):
        found: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, mask, scaling=scaling, **more
        )
        return found
    rows = query.reshape(1, shared, heads // shared * m, width)
    seen = mask.repeat(1, 1, heads // shared, 1)
    out = scaled_dot_product_attention(rows, key, value, attn_mask=seen, scale=scaling)
    return out.reshape(1, heads, m, value.shape[-1]).transpose(1, 2).contiguous(), None


def module_is_rms_norm(module: nn.Module) -> bool:
    """Return whether `module` is the usual norm, computed in float32."""
    kind: Any = type(module)
    weight = getattr(module, "weight", None)
    named = kind.__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon")
    return named and weight is not None and weight.dtype in NARROW and usual(kind)


@cache
def usual(kind: Any) -> bool:
    """Return whether `kind` computes `rms_norm`, by trial of one of its own on the CPU."""
    x = torch.linspace(-2, 3, 24).reshape(3, 8)
    try:
        with torch.no_grad():
            module = kind(8, eps=0.25)
            module.weight.copy_(torch.linspace(-1, 2, 8))
            ours = one_norm(module)(x)
            return torch.allclose(module(x), ours, rtol=1e-5, atol=1e-6)
    except Exception:  # another constructor, or foreign code
        return False


def one_norm(module: nn.Module) -> Any:
    """Return the forward of an RMS norm as one operator of torch's own."""
    weight, eps = cast(Tensor, module.weight), cast(float, module.variance_epsilon)
    stock = type(module).forward

    def forward(x: Tensor) -> Any:
        if x.dtype != weight.dtype:
            return stock(module, x)
        return rms_norm(x, weight.shape, weight, eps)

    return forward


AttentionInterface.register(SHARED, attend_shared)
AttentionMaskInterface.register(SHARED, sdpa_mask)
