"""Passes of a model whose shapes and addresses do not change, so that one recording serves all.

The variable parts of a pass (tokens, their positions, their masks) are in tensors; the mask over
all rows is computed from them on the device. On CUDA a pass is recorded as a graph on first use and
replayed afterwards; elsewhere it runs directly.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import gelu, rms_norm
from transformers import Cache, CacheLayerMixin, DynamicCache, PreTrainedModel
from transformers.activations import NewGELUActivation

from spsbench.engines.session.cache import PreallocatedCache, PreallocatedLayer, doubled
from spsbench.extensions.cpu.replay import attention
from spsbench.extensions.cpu.replay.fused_modules import EARLY, LATE, eps_of, way_of
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


NARROW = (torch.float32, torch.bfloat16, torch.float16)  # dtypes that norms compute in float32


@contextmanager
def lean(model: PreTrainedModel) -> Iterator[None]:
    """Run passes of `model` in fewer operators; they compute the same up to rounding.

    At batch size 1 a small kernel costs its launch, some microseconds. The model itself is
    unchanged for prompts, other engines and transformers' own `generate`.
    """
    with ExitStack() as stack:
        for module in model.modules():
            replaced = "forward" in vars(module)  # by another library
            if not replaced and (forward := one_operator(module)) is not None:
                module.forward = forward
                stack.callback(delattr, module, "forward")
        config = model.config.get_text_config()
        if config._attn_implementation == "sdpa":
            stack.callback(setattr, config, "_attn_implementation", "sdpa")
            config._attn_implementation = attention.NAME
        yield


def one_operator(module: Any) -> Callable[[Tensor], Tensor] | None:
    """Return the forward of a small module as one operator of torch's own; None: it stays."""
    if type(module) is NewGELUActivation:
        return partial(gelu, approximate="tanh")
    weight = getattr(module, "weight", None)
    if weight is None or weight.dtype not in NARROW or way_of(module) not in (EARLY, LATE):
        return None
    stock, eps = type(module).forward, eps_of(module)

    def forward(x: Tensor) -> Tensor:
        alike = x.dtype == weight.dtype
        made: Tensor = rms_norm(x, weight.shape, weight, eps) if alike else stock(module, x)
        return made

    return forward
