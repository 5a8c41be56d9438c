"""States of recurrent layers: texts fed one by one, and a cache that keeps a state for each row.

A layer that mixes tokens by a recurrence (Mamba, gated delta rules, short convolutions) keeps a
state of one size instead of keys and values, and overwrites it with each token. Its mixer is the
module that reads the state. In a pass of several rows over a `StateCache` a mixer runs once for
each row, as in a pass of one token, and the state after each row is kept until rows are committed;
all other modules see all rows at once. Nothing here uses the sessions of an engine, so audits may.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import LinearAttentionCacheLayerMixin as StateLayer

from spsbench.loop.sampling import send

STATES = ("conv_states", "recurrent_states")
FIELDS = (  # a layer's attributes, by the number of the state
    *STATES,
    "is_conv_states_initialized",
    "is_recurrent_states_initialized",
    "has_previous_state",
    "conv_kernel_size",
)


def keeps_states(config: PreTrainedConfig) -> bool:
    """Return whether the cache of a model with this configuration has layers with states."""
    try:
        layers = DynamicCache(config=config.get_text_config(decoder=True)).layers
    except Exception:  # a configuration of foreign code may raise anything
        return False
    return any(isinstance(layer, StateLayer) for layer in layers)


def stock_cache(model: PreTrainedModel) -> DynamicCache:
    """Return an empty cache as transformers' `generate` makes it for `model`."""
    return DynamicCache(config=model.config.get_text_config(decoder=True))


def takes_masks(model: PreTrainedModel) -> bool:
    """Return whether `model` takes masks and positions; one without attention takes neither."""
    return "cache_params" not in inspect.signature(model.forward).parameters


def feed_tokens(
    model: PreTrainedModel, tokens: Tensor, cache: DynamicCache, keep: int, start: int = 0
) -> Any:
    """Return a stock pass's output over `tokens` [m] from position `start`; `keep` logits, 0: m."""
    ids = tokens[None].to(model.device)
    places = torch.arange(start, start + len(tokens), device=model.device)[None]
    past: dict[str, Any] = {"past_key_values": cache, "position_ids": places}
    if not takes_masks(model):
        past = {"cache_params": cache}
    return model(input_ids=ids, use_cache=True, logits_to_keep=keep, **past)


@torch.inference_mode()
def one_by_one(
    model: PreTrainedModel, text: Sequence[int] | Tensor, keep: int, prefill: int = 0
) -> Tensor:
    """Return [keep, V] logits after each of the last `keep` tokens of `text`, by the stock model.

    The first `prefill` tokens, none of the last `keep`, are one pass, each later one is a pass of
    its own: the reference for a model whose passes over several tokens have other logits.
    """
    tokens, cache = torch.as_tensor(text), stock_cache(model)
    rows: list[Tensor] = []
    prefill = min(prefill, len(tokens) - keep)
    for start, end in ((0, prefill), *((i, i + 1) for i in range(prefill, len(tokens)))):
        if end > start:
            logits = feed_tokens(model, tokens[start:end], cache, 1, start).logits[0, -1:]
            rows = [*rows, logits][-keep:]
    return torch.cat(rows)


State = dict[str, dict[int, Any]]
"""The states of a layer: field -> number of the state -> its value."""


def copy_state(fields: State) -> State:
    """Return a state with tensors of its own, since layers write into theirs in place."""
    return {
        name: {n: x.clone() if isinstance(x, Tensor) else x for n, x in values.items()}
        for name, values in fields.items()
    }


def bytes_of(state: State) -> int:
    """Return the bytes of a layer's state."""
    values = (x for fields in state.values() for x in fields.values())
    return sum(x.nbytes for x in values if isinstance(x, Tensor))


class StateCache(DynamicCache):  # type: ignore[misc]
    """transformers' cache, with the states after rows that are not committed yet.

    `first` is the row of the first token of the pass; `before` are the rows that its tokens follow,
    -1 at the start of a text, or None: mixers take all tokens in one call. `kept_from` is the
    earliest row of the pass whose state is kept; `after` maps row -> layer -> state.
    """

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config=config.get_text_config(decoder=True))
        self.first, self.kept_from = 0, 0
        self.before: list[int] | None = None
        self.after: dict[int, dict[int, State]] = {}
        self.stateful = [i for i, x in enumerate(self.layers) if isinstance(x, StateLayer)]
        self._empty = {i: self.take(i) for i in self.stateful}

    def take(self, layer: int) -> State:
        """Return a copy of the state of a layer."""
        return copy_state({name: getattr(self.layers[layer], name) for name in FIELDS})

    def put(self, layer: int, state: State) -> None:
        """Set the state of a layer to a copy of `state`."""
        for name, values in copy_state(state).items():
            setattr(self.layers[layer], name, values)

    def steps(self, layer: int, run: Callable[[int], Any]) -> list[Any]:
        """Return `run` of 0 to m - 1, rows of the pass; keep states after rows from `kept_from`.

        A row that does not follow the one before it begins with the states after its predecessor.
        """
        at, results = self.first - 1, []
        for j, before in enumerate(self.before or ()):
            if before != at:  # another branch of a tree
                self.put(layer, self._empty[layer] if before < 0 else self.after[before][layer])
            results.append(run(j))
            if (at := self.first + j) >= self.kept_from:
                self.after.setdefault(at, {})[layer] = self.take(layer)
        return results

    def take_all(self, row: int) -> None:
        """Keep the states of all layers as those after `row`, and no others."""
        self.after = {row: {layer: self.take(layer) for layer in self.stateful}}

    def rewind(self, rows: Sequence[int], length: int) -> None:
        """Keep `rows`, at least one, of `length`, and states after the last; KeyError: not kept."""
        states = self.after[rows[-1]]
        if rows[-1] != length - 1:
            for layer in self.stateful:
                self.put(layer, states[layer])
        self.after = {len(rows) - 1: states}
        chain = rows[-1] == len(rows) - 1
        for layer in self.layers:
            gather(layer, range(len(rows)) if chain else rows)


ROWS = {"keys": 2, "values": 2, "indexer_keys": 1, "indexer_position_ids": -1}
"""The axis of the cached tokens in the tensors of a layer with attention."""


def gather(layer: Any, rows: Sequence[int]) -> None:
    """Keep a layer's keys and values at `rows`, in place; for a range, from 0 on, as views."""
    for name, axis in ROWS.items():
        tensor = getattr(layer, name, None)
        if tensor is None or tensor.numel() == 0:
            continue
        if isinstance(rows, range):
            kept = tensor.narrow(axis, 0, len(rows))
        else:
            kept = tensor.index_select(axis, send(torch.tensor(rows), tensor.device))
        setattr(layer, name, kept)


class ByRows:
    """A base before the class of a mixer: passes over a `StateCache` run row by row."""

    layer_idx: int

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the mixer's result; over a `StateCache` with `before`, `join_rows` of each's."""
        plain: Callable[..., Any] = super().forward  # type: ignore[misc]
        values = (*args, *kwargs.values())
        cache = next((value for value in values if isinstance(value, StateCache)), None)
        if cache is None or cache.before is None:
            return plain(*args, **kwargs)
        m = len(cache.before)

        def run(j: int) -> Any:
            def row(value: Any) -> Any:
                return rows_of_argument(value, slice(j, j + 1), m)

            return plain(*map(row, args), **{name: row(x) for name, x in kwargs.items()})

        return join_rows(cache.steps(self.layer_idx, run))


def run_by_rows(mixer: nn.Module) -> None:
    """Have `mixer` run row by row over a `StateCache`, in place; over other caches as before."""
    kind = type(mixer)
    mixer.__class__ = type(kind.__name__, (ByRows, kind), {})


def rows_of_argument(value: Any, rows: slice, m: int) -> Any:
    """Return `rows` of tensors [1, m, ...] in `value`, in lists and mappings too; others stay."""
    if isinstance(value, Tensor):
        return value[:, rows] if value.ndim > 1 and value.shape[1] == m else value
    if isinstance(value, tuple | list):
        return type(value)(rows_of_argument(part, rows, m) for part in value)
    if isinstance(value, Mapping):
        return {name: rows_of_argument(part, rows, m) for name, part in value.items()}
    return value


def join_rows(results: Sequence[Any]) -> Any:
    """Return results [1, 1, ...] of rows as one [1, m, ...], in tuples too; of others the first."""
    if isinstance(results[0], Tensor):
        return torch.cat(list(results), dim=1)
    if isinstance(results[0], tuple):
        return tuple(join_rows(parts) for parts in zip(*results, strict=True))
    return results[0]
