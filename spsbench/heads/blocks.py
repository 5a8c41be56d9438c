"""A decoder layer of the target's own class, as the layer of a head.

The layer is taken out of a model of that class that has the prediction layers alone and is made
without memory: gated or latent attention, experts and biases are transformers' own code.
"""

import inspect
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig
from transformers import core_model_loading as loading
from transformers.conversion_mapping import get_model_conversion_mapping

from spsbench.engines.session.cache import grow_capacity
from spsbench.engines.session.masks import FULL, SLIDING
from spsbench.errors import DataError, first_line
from spsbench.heads.layers import RowPositions
from spsbench.loop.drafter_context import Cache

BY_LENGTH = {"dynamic", "longrope"}  # kinds of rotary angles that a longer text changes
REMEDY = "Draft with `drafter` ngram, or another head of this target"


def text_config(values: Mapping[str, Any], where: str) -> PreTrainedConfig:
    """Return the configuration of the text model that `values` of a config.json describe.

    `where` names the file in messages. DataError: transformers has no model of that `model_type`,
    or refuses the values.
    """
    if (kind := values.get("model_type")) not in CONFIG_MAPPING:
        raise DataError(
            f"a prediction layer of {kind} ({where}): expected a model that transformers has. "
            f"{REMEDY}"
        )
    try:
        return CONFIG_MAPPING[kind].from_dict(dict(values)).get_text_config(decoder=True)
    except Exception as e:  # whatever bad values make of a configuration
        raise DataError(f"config.json is not one of {kind} ({where}): {first_line(e)}") from e


def block_configs(target: PreTrainedConfig, count: int, where: str) -> Iterator[PreTrainedConfig]:
    """Yield the configurations that `count` prediction layers may have, the usual one first.

    A config.json, `target`, that does not say how the layers attend, or whether they have experts,
    leaves both to the shapes of the tensors: then there are up to four. DataError, which names the
    file `where`: the layers are of a kind that no cache of keys and values serves, or of several.
    """
    kinds = getattr(target, "layer_types", None)
    stated = getattr(target, "mtp_layer_types", None)
    possible = kinds or (FULL,) if stated is None else {*stated}
    attentions = [kind for kind in (FULL, SLIDING) if kind in possible]
    if not attentions or (stated is not None and len(possible) > 1):
        named = ", ".join(sorted(possible))
        raise DataError(
            f"prediction layers of kind {named} ({where}): expected {FULL} or {SLIDING}, the same "
            f"in all. {REMEDY}"
        )
    inner = getattr(target, "mtp_mlp_layer_types", None)
    last = (getattr(target, "mlp_layer_types", None) or ["sparse"])[-1]
    for attention in attentions:
        for mlp in (inner,) if inner else ([last] * count, ["dense"] * count):
            config, dense = deepcopy(target), mlp[-1] == "dense"
            for name, value in {
                "layer_types": [attention] * count,
                "mlp_layer_types": [*mlp],
                "first_k_dense_replace": count if dense else 0,
                "mlp_only_layers": [*range(count)] if dense else [],
                "moe_layer_start_index": count if dense else 0,
                "moe_layer_end_index": count,
                "per_layer_config": getattr(target, "mtp_per_layer_config", None),
            }.items():
                if getattr(config, name, None) is not None:
                    setattr(config, name, value)
            config.num_hidden_layers, config.tie_word_embeddings = count, False
            yield config


class TargetLayer(nn.Module):
    """A layer of a model of the target's class, over the cache of a head.

    `config` is that of a model with the prediction layers alone, `number` counts the layer among
    these and among the cache's. Raises ValueError or AttributeError as transformers does, from a
    config that it cannot build. `norm` is the class of its norms, whose weights may count from
    zero; its modules read the attribute `config` as they run.
    """

    _model: Any  # no module of this one: names, conversions and rotary angles are asked of it
    _front: str  # beginning of the layer's names there
    rotary_class: Any

    def __init__(self, config: PreTrainedConfig, number: int = 0) -> None:
        super().__init__()
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        decoder = model.get_decoder()
        self.layer, self.config = decoder.layers[number], model.config
        self.norm: Any = type(decoder.norm)
        front = next(name for name, part in model.named_modules() if part is self.layer)
        rotary = getattr(decoder, "rotary_emb", None)
        vars(self).update(_model=model, _front=f"{front}.", rotary_class=type(rotary))

    def split(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the layer's `weights` in the names and shapes of released files: experts apart."""
        named = {self._front + name.removeprefix("layer."): w for name, w in weights.items()}
        apart = loading.revert_weight_conversion(self._model, named)
        return {name.removeprefix(self._front): weight for name, weight in apart.items()}

    def stack(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the layer's weights, experts stacked, by its own names with `layer.` before each.

        `tensors`, a released file's by the names that `split` returns, is emptied, so that no
        expert is in memory twice. Raises as transformers' conversion does.
        """
        changes = get_model_conversion_mapping(self._model)
        renamings = [
            x
            for x in changes
            if isinstance(x, loading.WeightRenaming) and not isinstance(x, loading.PrefixChange)
        ]
        converters = [x for x in changes if isinstance(x, loading.WeightConverter)]
        by_pattern = {name: change for change in converters for name in change.source_patterns}
        groups: dict[str, Any] = {}
        for name in sorted(tensors, key=loading.dot_natural_key):
            key = self._front + name
            new, pattern = loading.rename_source_key(key, renamings, converters)
            change = loading.WeightRenaming(key, new) if pattern is None else by_pattern[pattern]
            groups.setdefault(new, deepcopy(change)).add_tensor(
                new, key, pattern or key, tensors.pop(name)
            )
        stacked: dict[str, Tensor] = {}
        while groups:
            first = next(iter(groups))
            change = groups.pop(first)
            weights = change.convert(first, model=self._model, config=self._model.config)
            for name, weight in weights.items():
                tensor = weight[0] if isinstance(weight, list) else weight
                stacked["layer." + name.removeprefix(self._front)] = tensor
        return stacked

    def forward(self, x: Tensor, places: RowPositions, cache: Cache, sees: Any) -> Tensor:
        """Map [m, H] to [m, H], appending keys and values to its layer of `cache`.

        `sees` is [m, n] bool, or [1, 1, m, n] additive; None, for m = 1 alone: everything is seen.
        """
        mask = sees
        if sees is not None and sees.ndim == 2:
            lowest = torch.finfo(x.dtype).min
            mask = torch.zeros_like(sees, dtype=x.dtype).masked_fill(~sees, lowest)[None, None]
        output = self.layer(
            x[None],
            attention_mask=mask,
            position_ids=places.positions[None],
            position_embeddings=(places.cos[None], places.sin[None]),
            past_key_values=cache,
            use_cache=True,
        )
        rows: Tensor = output[0] if isinstance(output, tuple) else output
        return rows[0] if rows.ndim == 3 else rows


class BlockRotary(nn.Module):
    """The rotary angles of `block`, a layer of the target's class, in a table that grows.

    DataError: its model has no module for them, or its angles depend on the length of the text.
    """

    _table: RowPositions | None = None  # the table of all positions up to some
    _angles: Any
    _block: Any

    def __init__(self, block: TargetLayer) -> None:
        super().__init__()
        kind, config = block.rotary_class, block.config
        with torch.device("cpu"):
            angles = None if kind is type(None) else kind(config=config)
        rope = getattr(angles, "rope_type", None)
        if angles is None or {*(rope.values() if isinstance(rope, dict) else [rope])} & BY_LENGTH:
            raise DataError(
                f"a prediction layer of {config.model_type} with rotary angles of kind {rope}: "
                f"expected angles that depend on the position alone. {REMEDY}"
            )
        vars(self).update(_angles=angles, _block=block)
        by_kind = "layer_type" in inspect.signature(angles.forward).parameters
        self._more = {"layer_type": config.layer_types[0]} if by_kind else {}

    def forward(self, positions: Tensor, dtype: torch.dtype) -> RowPositions:
        """Return the places at [m] positions."""
        like = torch.empty(1, dtype=dtype, device=positions.device)
        self._angles.to(positions.device)
        cos, sin = self._angles(like, position_ids=positions[None], **self._more)
        return RowPositions(positions, cos[0].to(dtype), sin[0].to(dtype))

    def rows(self, start: int, m: int, dtype: torch.dtype) -> RowPositions:
        """Return m places from position `start` on."""
        table, end = self._table, start + m
        if table is None or len(table.cos) < end or table.cos.dtype != dtype:
            device = next(self._block.parameters()).device
            table = self._table = self(torch.arange(grow_capacity(end), device=device), dtype)
        return RowPositions(*(part[start:end] for part in table))
