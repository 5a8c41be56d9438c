"""Sessions with models that keep states, and the trials that find out how such a model is fed.

A pass scores several tokens at once: mixers run row by row (`state_cache`), everything else runs as
in any model. A rejected token leaves no trace, since the state after the last accepted one is still
there; nothing is fed twice. The law is that of K = 0 in the same loop: the prompt but its last
token as prefill, every later token as in a pass of its own.
"""

import copy
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import (
    DummyLayer,
    DynamicIndexedLayer,
    DynamicLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
)

from spsbench.engines.eager import (
    KINDS,
    PREFILL_CHUNK,
    EagerLM,
    UnsupportedModelError,
    ordinary,
    rows_of,
)
from spsbench.engines.session.engine_config import EngineConfig, set_engine_config
from spsbench.engines.session.masks import Masks, PassInputs
from spsbench.engines.session.state_cache import (
    StateCache,
    bytes_of,
    joined,
    rows_of_argument,
    run_by_rows,
)
from spsbench.engines.session.states import (
    STATES,
    feed,
    keeps_states,
    one_by_one,
    stock_cache,
    takes_masks,
    zero_states,
)
from spsbench.errors import OutOfMemoryError, SpsError
from spsbench.hardware.files import in_words
from spsbench.hardware.memory import ram
from spsbench.loop.types import Scores

LAYERS = (
    DummyLayer,
    DynamicIndexedLayer,
    DynamicLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
)
"""Kinds of layers of a cache that can be taken back."""

KEPT = 64  # rows of a chain whose states are kept; from farther back the text is read again
CHECKED = 64 << 20  # bytes of states from which the free memory is looked at first
WHOLE = 1 << 40  # tokens: a prefill in one call
PAST, BLOCK = 11, 6  # tokens of the trial of a block
OF_ROUNDING = 1e-3  # of the deviation of logits: what rounding to float32 explains

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stateful:
    """How a model with states is fed.

    Attributes:
        layers: that keep states.
        row_bytes: of all states after one token.
        reads_blocks: whether a pass over several tokens goes on from the states before it.
        gap: largest difference of what a mixer makes in such a pass from what it makes one by one,
            in float32 and in deviations.
        masked: whether the model takes masks and positions.
    """

    layers: int
    row_bytes: int
    reads_blocks: bool
    gap: float
    masked: bool

    @property
    def line(self) -> str:
        """Return the states in words."""
        keep = "1 layer keeps" if self.layers == 1 else f"{self.layers} layers keep"
        return f"{keep} states ({in_words(self.row_bytes)} a row)"


_STATEFUL: WeakKeyDictionary[PreTrainedModel, Stateful] = WeakKeyDictionary()


def stateful(model: PreTrainedModel) -> Stateful | None:
    """Return how a registered model is fed; None: it keeps no states."""
    return _STATEFUL.get(model)


class RecurrentLM(EagerLM):
    """A session with a registered model; the arguments are those of `EagerLM`."""

    joins = False

    def _open(self) -> None:
        self._stateful = _STATEFUL[self.model]
        self._reset()

    def _reset(self) -> None:
        self._cache = StateCache(self.model.config)
        self._length = 0
        self._text: list[int] = []
        self._blocks: list[tuple[int, int]] = []  # of the text, that were fed in one call each

    def _chunk(self) -> int:
        return PREFILL_CHUNK if self._stateful.reads_blocks or self._length else WHOLE

    @torch.inference_mode()
    def append(self, tokens: Tensor, keep: int, parents: Tensor | None = None) -> Scores:
        """Feed as `EagerLM.append` does; the first of many tokens go as a prefill."""
        first = len(tokens) - keep
        if parents is not None or keep == 0 or first <= KEPT:
            return super().append(tokens, keep, parents)
        self._check_limit(len(tokens))
        before, scores = super().append(tokens[:first], 0), super().append(tokens[first:], keep)
        hidden = {n: torch.cat([before.hidden[n], scores.hidden[n]]) for n in self.layers}
        return scores._replace(hidden=hidden)

    def _forward(self, tokens: Tensor, keep: int, parents: Tensor | None) -> Any:
        m, start, cache = len(tokens), self._length, self._cache
        chain, end = parents is None, start + m
        block = chain and keep == 0 and m > 1 and (start == 0 or self._stateful.reads_blocks)
        cache.first = start
        cache.before = None if block else predecessors(m, start, parents)
        cache.kept_from = max(start, end - (KEPT if keep else 1)) if chain else start
        if not block:
            self._check_room(end - cache.kept_from)
        out = super()._forward(tokens, keep, parents)
        self._text[start:] = tokens.tolist()
        if block:
            self._blocks.append((start, end))
            cache.take_all(end - 1)
        elif len(cache.after.get(end - 1, ())) != self._stateful.layers:
            raise UnsupportedModelError(f"{type(self.model).__name__}: its mixers were not run")
        return out

    def _run(self, inputs: PassInputs) -> Any:
        if self._stateful.masked:
            return super()._run(inputs)
        out = self.model(
            input_ids=inputs.ids[None],
            cache_params=inputs.cache,
            use_cache=True,
            logits_to_keep=inputs.keep,
            output_hidden_states=bool(inputs.layers),
        )
        if inputs.layers:
            embedded = self.model.get_input_embeddings()(inputs.ids[None])
            first, *_, last = states = out.hidden_states
            if not torch.equal(first, embedded):  # Mamba's begin after the first layer
                out.hidden_states = (embedded, *states[:-2], last)
        return out

    def _mask(self, m: int, parents: Tensor | None) -> Masks:
        return super()._mask(m, parents) if self._stateful.masked else None

    def _check_room(self, rows: int) -> None:
        """Refuse the states of so many rows where they do not fit."""
        need = rows * self._stateful.row_bytes
        if need < CHECKED:
            return
        host = self.device.type != "cuda"
        free = ram()[1] if host else torch.cuda.mem_get_info(self.device)[0]
        if free and need > free:
            raise OutOfMemoryError(
                f"states after {rows} tokens need {in_words(need)}, {in_words(free)} are free "
                f"({self.device}): expected room. Draft fewer tokens with `k`, or smaller trees"
            )

    def _keep(self, length: int, nodes: list[int]) -> None:
        """Keep rows of the cache; where their last state is gone, the text is read again."""
        rows = [*range(length), *nodes]
        text = [self._text[row] for row in rows]
        if rows and rows[-1] in self._cache.after:
            self._cache.rewind(rows, self._length)
            self._text = text
            self._blocks = [(start, end) for start, end in self._blocks if end <= length]
            return
        blocks = self._blocks
        self._reset()
        for start, end in blocks:  # each as it was fed
            self._read(text[self._length : start])
            if start < len(text):
                self._forward(torch.tensor(text[start:end], dtype=torch.int64), 0, None)
        self._read(text[self._length :])

    def _read(self, tokens: Sequence[int]) -> None:
        """Feed tokens by rows."""
        for start in range(0, len(tokens), KEPT):
            part = torch.tensor(tokens[start : start + KEPT], dtype=torch.int64)
            self._forward(part, 1, None)


def predecessors(m: int, start: int, parents: Tensor | None) -> list[int]:
    """Return the row before each of `m` tokens from row `start` on, the last of them nodes."""
    if parents is None:
        return list(range(start - 1, start + m - 1))
    base = start + m - len(parents)
    above = [base - 1 if parent < 0 else base + parent for parent in parents.tolist()]
    return [row - 1 if row < base else above[row - base] for row in range(start, start + m)]


@torch.inference_mode()
def register(model: PreTrainedModel) -> Stateful | None:
    """Find the mixers of a model with states, and have every engine open `RecurrentLM` for it.

    Returns:
        How the model is fed; None: it keeps no states, and nothing was done.
    """
    if model in KINDS or not keeps_states(model.config):
        return _STATEFUL.get(model)
    name = type(model).__name__
    for layer in stock_cache(model).layers:
        if type(layer) not in LAYERS:
            raise UnsupportedModelError(
                f"{name} keeps states beside layers of kind {type(layer).__name__}, which cannot "
                "be taken back"
            )
    try:
        mixers = find_mixers(model)
        description = _try_blocks(model, list(mixers.values()))
        for mixer in mixers.values():
            run_by_rows(mixer)
    except SpsError:
        raise
    except UnsupportedModelError:
        raise
    except Exception as error:  # foreign code may raise anything
        line = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise UnsupportedModelError(f"{name}: a trial of its states fails ({line})") from error
    _STATEFUL[model], KINDS[model] = description, RecurrentLM
    set_engine_config(model, EngineConfig(engine="eager", reason=description.line))
    if description.reads_blocks and description.gap > OF_ROUNDING:
        log.info(
            f"note: {name} has another law in passes over several tokens (a mixer makes outputs "
            f"{description.gap:.2g} deviations apart): what counts is the law of K = 0, the prompt "
            "as prefill and each later token alone"
        )
    return description


class Watched(DynamicCache):  # type: ignore[misc]
    """A stock cache that calls `noted` with the layer whose states are read or written."""

    noted: Any

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Any:
        """See `Cache`."""
        self.noted(layer_idx)
        return super().get_conv_state(layer_idx, state_idx)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Any:
        """See `Cache`."""
        self.noted(layer_idx)
        return super().get_recurrent_state(layer_idx, state_idx)

    def update_conv_state(
        self, conv_states: Tensor, layer_idx: int, *args: Any, **more: Any
    ) -> Any:
        """See `Cache`."""
        self.noted(layer_idx)
        return super().update_conv_state(conv_states, layer_idx, *args, **more)


def find_mixers(model: PreTrainedModel) -> dict[int, nn.Module]:
    """Return layer -> the module that reads its states, by a pass that notes what is running."""
    running: list[nn.Module] = []
    readers: dict[int, list[nn.Module]] = {}
    cache = Watched(config=model.config.get_text_config(decoder=True))
    cache.noted = lambda layer: readers.setdefault(layer, []).append(running[-1])
    handles = []
    for module in model.modules():
        handles.append(module.register_forward_pre_hook(lambda m, x: running.append(m)))
        handles.append(module.register_forward_hook(lambda m, x, y: _left(running)))
    try:
        feed(model, ordinary(rows_of(model), 3), cache, 1)
    finally:
        for handle in handles:
            handle.remove()
    mixers = {}
    for layer in StateCache(model.config).stateful:
        modules = list(dict.fromkeys(readers.get(layer, ())))
        numbered = [x for x in modules if getattr(x, "layer_idx", None) == layer]
        if len(modules) != 1 or not numbered:
            raise UnsupportedModelError(
                f"{type(model).__name__}: {len(modules)} modules read the states of layer {layer}, "
                f"{len(numbered)} of them under its number: expected one"
            )
        mixers[layer] = modules[0]
    return mixers


def _left(running: list[nn.Module]) -> None:
    running.pop()


def _try_blocks(model: PreTrainedModel, mixers: Sequence[nn.Module]) -> Stateful:
    """Feed a block after other tokens, whole and one by one."""
    text = ordinary(rows_of(model), PAST + BLOCK)
    alone = one_by_one(model, text, BLOCK).float()
    cache = StateCache(model.config)
    feed(model, text[:PAST], cache, 1)
    size = sum(bytes_of(cache.take(layer)) for layer in cache.stateful)
    block = feed(model, text[PAST:], cache, BLOCK, PAST).logits[0].float()
    close = float((block - alone).abs().max()) <= max(1e-3, 0.05 * float(alone.abs().max()))
    gap, ignores = try_mixer(model, mixers[0], text)
    reads = not ignores and (close or model.dtype.itemsize < 4)
    return Stateful(len(mixers), size, reads, gap, takes_masks(model))


def try_mixer(model: PreTrainedModel, mixer: nn.Module, text: Tensor) -> tuple[float, bool]:
    """Return how far outputs of a mixer for a block are from those one by one, in deviations.

    And whether the block ignores the states before it: setting those of a kind to 0 changes no bit.
    A copy in float32 is run, since rounding of half precision is as large as what is looked for.
    """
    calls: list[tuple[Any, Any]] = []
    handle = mixer.register_forward_pre_hook(
        lambda _, args, kwargs: calls.append((args, kwargs)), with_kwargs=True
    )
    try:
        feed(model, text, stock_cache(model), 1)
    finally:
        handle.remove()
    (args, kwargs), precise = calls[0], copy.deepcopy(mixer).float()

    def outputs(sizes: Sequence[int], zeroed: str = "") -> Tensor:
        cache, results, start = stock_cache(model), [], 0

        def part(value: Any) -> Any:
            rows = rows_of_argument(value, slice(start, start + size), len(text))
            if isinstance(rows, Tensor) and rows.is_floating_point():
                return rows.float()
            return cache if isinstance(rows, DynamicCache) else rows

        for size in sizes:
            if start and zeroed and not zero_states(cache, zeroed):
                return torch.empty(0)
            named = {name: part(value) for name, value in kwargs.items()}
            results.append(precise(*map(part, args), **named))
            start += size
        whole = joined(results)
        return (whole if isinstance(whole, Tensor) else whole[0])[:, PAST:].float()

    alone, block = outputs((PAST, *[1] * BLOCK)), outputs((PAST, BLOCK))
    gap = float((block - alone).abs().max() / alone.std().clamp(min=1e-9))
    same = any(torch.equal(block, outputs((PAST, BLOCK), kind)) for kind in STATES)
    return gap, gap > OF_ROUNDING and same
