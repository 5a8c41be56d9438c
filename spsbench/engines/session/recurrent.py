"""Sessions with models that keep states, and the trials that find out how such a model is fed.

A pass scores several tokens at once: mixers run row by row (`states`), everything else runs as
in any model. A rejected token leaves no trace, since the state after the last accepted one is still
there; nothing is fed twice. Logits are those of K = 0 in the same loop: the prompt but its last
token as prefill, every later token as in a pass of its own.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, cache_utils

from spsbench.engines.eager import (
    KINDS,
    PREFILL_CHUNK,
    EagerLM,
    UnsupportedModelError,
    logits_tolerance,
    logits_width,
    ordinary,
)
from spsbench.engines.session.engine_config import EngineConfig, set_engine_config
from spsbench.engines.session.masks import Masks, PassInputs
from spsbench.engines.session.states import (
    STATES,
    StateCache,
    bytes_of,
    feed_tokens,
    keeps_states,
    one_by_one,
    run_by_rows,
    stock_cache,
    takes_masks,
)
from spsbench.errors import OutOfMemoryError, SpsError
from spsbench.hardware.files import in_words
from spsbench.hardware.memory import ram
from spsbench.loop.types import Scores

LAYERS = (
    cache_utils.DummyLayer,
    cache_utils.DynamicIndexedLayer,
    cache_utils.DynamicLayer,
    cache_utils.LinearAttentionAndFullAttentionLayer,
    cache_utils.LinearAttentionLayer,
)
"""Kinds of layers of a cache that can be taken back."""

KEPT = 64  # rows of a chain whose states are kept; from farther back the text is read again
CHECKED = 64 << 20  # bytes of states from which the free memory is looked at first
WHOLE = 1 << 40  # tokens: a prefill in one call
PAST, BLOCK = 11, 6  # tokens of the trial of a block
OF_ROUNDING = 1e-3, 0.1  # parts of logits' deviation by rounding: in float32, in half precision

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stateful:
    """How a model with states is fed."""

    layers: int  # number of layers that keep states
    row_bytes: int  # bytes of all states after one token
    reads_blocks: bool  # whether a pass over several tokens goes on from the states before it
    masked: bool  # whether the model takes masks and positions

    def __str__(self) -> str:
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
        self._prefilled = 0  # tokens of the text that were fed as a prefill

    def _chunk(self) -> int:
        return PREFILL_CHUNK if self._stateful.reads_blocks or self._length else WHOLE

    @torch.inference_mode()
    def append(self, tokens: Tensor, keep: int, parents: Tensor | None = None) -> Scores:
        """Feed as `EagerLM.append`; in a chain, over `KEPT` tokens before logits are a prefill."""
        first = len(tokens) - keep
        if parents is not None or keep == 0 or first <= KEPT:
            return super().append(tokens, keep, parents)
        self._check_limit(len(tokens))
        before, scores = super().append(tokens[:first], 0), super().append(tokens[first:], keep)
        hidden = {n: torch.cat([before.hidden[n], scores.hidden[n]]) for n in self.layers}
        return scores._replace(hidden=hidden)

    def _forward(self, tokens: Tensor, keep: int, parents: Tensor | None) -> Any:
        """Run a pass; keep states after its last `KEPT` rows, of a prefill the last, of a tree all.

        UnsupportedModelError: mixers were not run. OutOfMemoryError: as `_check_room`.
        """
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
            if start == self._prefilled:
                self._prefilled = end
            cache.take_all(end - 1)
        elif len(cache.after.get(end - 1, ())) != self._stateful.layers:
            raise UnsupportedModelError(f"{type(self.model).__name__}: its mixers were not run")
        return out

    def _run(self, inputs: PassInputs) -> Any:
        """Run the model, without masks if it takes none; hidden states begin with embeddings."""
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
        """Raise OutOfMemoryError where states of `rows` need over 64 MiB, and more than is free."""
        if (need := rows * self._stateful.row_bytes) < CHECKED:
            return
        host = self.device.type != "cuda"
        free = ram()[1] if host else torch.cuda.mem_get_info(self.device)[0]
        if free and need > free:
            raise OutOfMemoryError(
                f"states after {rows} tokens need {in_words(need)}, {in_words(free)} are free "
                f"({self.device}): expected room. Draft fewer tokens with `k`, or smaller trees"
            )

    def _keep(self, length: int, nodes: list[int]) -> None:
        """Keep rows as `EagerLM._keep`; without the last one's states the text is read again."""
        rows = [*range(length), *nodes]
        text = [self._text[row] for row in rows]
        if rows and rows[-1] in self._cache.after:
            self._cache.rewind(rows, self._length)
            self._text, self._prefilled = text, min(self._prefilled, length)
            return
        prefilled = min(self._prefilled, len(text))
        self._reset()
        super().append(torch.tensor(text[:prefilled], dtype=torch.int64), 0)
        for start in range(prefilled, len(text), KEPT):
            part = torch.tensor(text[start : start + KEPT], dtype=torch.int64)
            self._forward(part, 1, None)


def predecessors(m: int, start: int, parents: Tensor | None) -> list[int]:
    """Return the row before each of `m` tokens from row `start` on, the last of them nodes."""
    if parents is None:
        return list(range(start - 1, start + m - 1))
    base = start + m - len(parents)
    above = [base - 1 if parent < 0 else base + parent for parent in parents.tolist()]
    return [row - 1 if row < base else above[row - base] for row in range(start, start + m)]


@torch.inference_mode()
def register_states(model: PreTrainedModel) -> Stateful | None:
    """Find the mixers of a model with states, and have every engine open `RecurrentLM` for it.

    Returns how the model is fed, on a second call as well; None: it keeps no states. Its mixers
    then run row by row; other logits in blocks are no error, a note may tell of them.
    UnsupportedModelError: layers that cannot be rolled back, or a trial raises.
    """
    if model in KINDS or not keeps_states(model.config):
        return _STATEFUL.get(model)
    name = type(model).__name__
    for layer in stock_cache(model).layers:
        if type(layer) not in LAYERS:
            raise UnsupportedModelError(
                f"{name} keeps states together with layers of kind {type(layer).__name__}, "
                "which cannot be rolled back"
            )
    try:
        mixers = find_mixers(model)
        description = _try_blocks(model)
        for mixer in mixers.values():
            run_by_rows(mixer)
    except (SpsError, UnsupportedModelError):
        raise
    except Exception as error:  # foreign code may raise anything
        line = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise UnsupportedModelError(f"{name}: a trial of its states fails ({line})") from error
    _STATEFUL[model], KINDS[model] = description, RecurrentLM
    set_engine_config(model, EngineConfig(engine="eager", reason=str(description)))
    return description


def any_state(states: Mapping[int, Tensor | None]) -> bool:
    """Return whether a layer has one of these states."""
    return any(state is not None for state in states.values())


def find_mixers(model: PreTrainedModel) -> dict[int, nn.Module]:
    """Map layers to modules that leave states in a pass; UnsupportedModelError: one has none."""
    cache = StateCache(model.config)
    begun: dict[nn.Module, set[int]] = {}  # layers that had states when a module began
    mixers: dict[int, nn.Module] = {}

    def filled() -> set[int]:
        layers = ((layer, cache.layers[layer]) for layer in cache.stateful)
        return {n for n, x in layers if any(any_state(getattr(x, kind)) for kind in STATES)}

    def ended(module: nn.Module, *_: Any) -> None:
        for layer in filled() - begun[module]:
            mixers.setdefault(layer, module)

    handles = []
    for module in model.modules():
        handles.append(module.register_forward_pre_hook(lambda m, x: begun.update({m: filled()})))
        handles.append(module.register_forward_hook(ended))
    try:
        feed_tokens(model, ordinary(logits_width(model), 3), cache, 1)
    finally:
        for handle in handles:
            handle.remove()
    for layer in cache.stateful:
        if getattr(mixers.get(layer), "layer_idx", None) != layer:
            raise UnsupportedModelError(
                f"{type(model).__name__}: no module leaves the states of layer {layer} under its "
                "number: expected one"
            )
    return mixers


def _try_blocks(model: PreTrainedModel) -> Stateful:
    """Return how a model is fed, by trials of a block of tokens after others.

    The block is fed in one pass, also after states of zeros, and token by token. If the logits of a
    float32 model differ by more than rounding does, a note is logged.
    """
    text = ordinary(logits_width(model), PAST + BLOCK)
    past = StateCache(model.config)
    feed_tokens(model, text[:PAST], past, 1)
    states = {layer: past.take(layer) for layer in past.stateful}

    def block(zeroed: str = "") -> Tensor:
        """Return [BLOCK, V] logits of the block in one pass, after `zeroed`, of `STATES`, are 0."""
        cache = stock_cache(model)
        feed_tokens(model, text[:PAST], cache, 1)
        for layer in past.stateful:
            for state in getattr(cache.layers[layer], zeroed, {}).values():
                if state is not None:
                    state.zero_()
        logits: Tensor = feed_tokens(model, text[PAST:], cache, BLOCK, PAST).logits[0].float()
        return logits

    alone, whole = one_by_one(model, text, BLOCK, PAST).float(), block()
    gap = float((whole - alone).abs().max())
    kinds = [kind for kind in STATES if any(any_state(s[kind]) for s in states.values())]
    ignored = any(torch.equal(block(kind), whole) for kind in kinds)
    half = model.dtype.itemsize < 4
    far = gap > OF_ROUNDING[half] * float(alone.std())
    reads = not (far and ignored) and (gap <= logits_tolerance(alone) or half)
    if reads and far and not half:
        log.info(
            f"note: {type(model).__name__} has another distribution in passes over several tokens "
            f"(logits {gap / float(alone.std()):.2g} deviations apart): what counts is K = 0, "
            "the prompt as prefill and each later token alone"
        )
    size = sum(map(bytes_of, states.values()))
    return Stateful(len(states), size, reads, takes_masks(model))
