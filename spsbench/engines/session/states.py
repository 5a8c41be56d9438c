"""States of recurrent layers, as transformers' own cache keeps them, and texts fed one by one.

A layer that mixes tokens by a recurrence (Mamba, gated delta rules, short convolutions) keeps a
state of one size instead of keys and values, and overwrites it with each token. Nothing here uses
the sessions of an engine, so audits may.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import LinearAttentionCacheLayerMixin

StateLayer = LinearAttentionCacheLayerMixin

STATES = ("conv_states", "recurrent_states")
FIELDS = (  # of a layer, by the number of the state
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


def feed(
    model: PreTrainedModel, tokens: Tensor, cache: DynamicCache, keep: int, start: int = 0
) -> Any:
    """Return the output of a stock pass over `tokens` [m], with logits of the last `keep`.

    `start` is the number of tokens in the cache.
    """
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

    The first `prefill` tokens are one pass, each later token is a pass of its own: the law of a
    model whose passes over several tokens have another one.
    """
    tokens, cache = torch.as_tensor(text), stock_cache(model)
    rows: list[Tensor] = []
    prefill = min(prefill, len(tokens) - keep)
    for start, end in ((0, prefill), *((i, i + 1) for i in range(prefill, len(tokens)))):
        if end > start:
            logits = feed(model, tokens[start:end], cache, 1, start).logits[0, -1:]
            rows = [*rows, logits][-keep:]
    return torch.cat(rows)


def zero_states(cache: DynamicCache, kind: str) -> bool:
    """Set the states of a kind, one of `STATES`, to 0; return whether there are some."""
    layers = [layer for layer in cache.layers if isinstance(layer, StateLayer)]
    states = [state for layer in layers for state in getattr(layer, kind).values()]
    for state in states:
        if state is not None:
            state.zero_()
    return any(state is not None for state in states)
