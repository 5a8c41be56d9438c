"""A model with some of its layers left out, over the weights of the whole (arXiv 2309.08168).

The view is a model of its own to every engine: modules are copied without their tensors, layers
are numbered anew, so that a cache has no gaps, and the configuration says how many there are.
"""

import copy
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from transformers import PreTrainedModel

from spsbench.engines.eager import UnsupportedModelError, check_rollback
from spsbench.engines.session.engine_config import engine_config_of, get_prepared, set_engine_config
from spsbench.engines.session.states import keeps_states
from spsbench.errors import UsageError
from spsbench.loop.drafter_context import Variant

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_state_dict_hooks")

_VIEWS: WeakKeyDictionary[PreTrainedModel, dict[Variant, PreTrainedModel]] = WeakKeyDictionary()


def view(model: PreTrainedModel, variant: Variant) -> PreTrainedModel:
    """Return `model` without the layers that `variant` skips; cached."""
    views = _VIEWS.setdefault(model, {})
    if variant not in views:
        views[variant] = _view(model, variant)
    return views[variant]


def layers_of(model: nn.Module) -> tuple[nn.Module, str, nn.ModuleList]:
    """Return parent, name and longest list of layers of one class; UnsupportedModelError: none."""
    lists = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.ModuleList) and len({type(layer) for layer in child}) == 1
    ]
    if not lists:
        raise UnsupportedModelError(f"{type(model).__name__} has no list of layers to leave out")
    return max(lists, key=lambda entry: len(entry[2]))


def _view(model: PreTrainedModel, variant: Variant) -> PreTrainedModel:
    """Return a model of the kept layers over the same tensors, with the engine that `model` has.

    UnsupportedModelError: states, no list of layers, or no rollback. UsageError: no such layers.
    """
    if keeps_states(model.config):
        raise UnsupportedModelError(
            f"{type(model).__name__} keeps states in its layers: expected attention in all of "
            "them, to leave some out"
        )
    *_, layers = layers_of(model)
    kept = _check_layers(len(layers), variant)
    whole = copy.deepcopy(model.config)
    texts = model.config.get_text_config(), whole.get_text_config()
    configurations = {id(model.config): whole, id(texts[0]): texts[1]}
    twin: PreTrainedModel = _twin(model, configurations, {})
    select_layers(twin, kept)
    try:
        check_rollback(twin)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{error} (without layers {sorted(variant.layers)})") from error
    if choice := engine_config_of(model):
        replay = get_prepared(model).replay
        set_engine_config(twin, choice, None if replay is None else replay.attach(twin))
    return twin


def _check_layers(count: int, variant: Variant) -> list[int]:
    """Return which of `count` layers `variant` keeps; UsageError: none, or it skips one beyond."""
    if beyond := sorted(index for index in variant.layers if index >= count):
        raise UsageError(
            f"layers {', '.join(map(str, beyond))} left out of a model that has {count}: expected "
            f"0 to {count - 1}"
        )
    if not (kept := [index for index in range(count) if index not in variant.layers]):
        raise UsageError(f"all of {count} layers left out: expected one or more to be kept")
    return kept


def select_layers(model: PreTrainedModel, kept: Sequence[int]) -> None:
    """Leave only the layers `kept` in `model` and its config, numbered anew for a cache."""
    parent, name, layers = layers_of(model)
    setattr(parent, name, nn.ModuleList(layers[index] for index in kept))
    for number, index in enumerate(kept):
        for module in layers[index].modules():
            if isinstance(getattr(module, "layer_idx", None), int):
                module.layer_idx = number  # type: ignore[assignment]
    config = model.config.get_text_config()
    if kinds := getattr(config, "layer_types", None):
        config.layer_types = [kinds[index] for index in kept]
    config.num_hidden_layers = len(kept)


def _twin(module: Any, configurations: dict[int, Any], memo: dict[int, Any]) -> Any:
    """Return a copy of a module and of all below it, with the same tensors; None for None.

    `configurations`: what replaces a `config`, by its id; `memo`: copies, by ids of modules.
    """
    if module is None or id(module) in memo:
        return memo.get(id(module))
    twin = memo[id(module)] = copy.copy(module)
    attributes = twin.__dict__
    for name in ("_parameters", "_buffers", *HOOKS):
        attributes[name] = attributes[name].copy()
    if id(attributes.get("config")) in configurations:
        attributes["config"] = configurations[id(attributes["config"])]
    children = module._modules.items()
    attributes["_modules"] = {name: _twin(x, configurations, memo) for name, x in children}
    return twin
