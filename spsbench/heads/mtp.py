"""MTP: a target's own layer for predicting one token more (DeepSeek-V3, arXiv 2412.19437).

A decoder layer over `fc` of the normed embedding of token j + 1 and the normed feature of token j.
One layer is used for all depths, as in FastMTP (arXiv 2509.18362), or a layer of its own for each
(`MtpLadder`). Embeddings and head are the target's. Llama's layers and their like are `heads`' own,
which engines run by programs; any other is of the target's class (`blocks`).

What files leave open is a flag (`families.FLAGS`): the half of `fc` that reads the feature, whether
the feature is taken before or after the target's last norm, which one the next depth reads, and
whether weights of norms count from 0. Defaults, and what speaks for them: docs/reference/heads.md.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from spsbench.checkpoints.weights import TensorHeader
from spsbench.engines.session.masks import window_of
from spsbench.errors import DataError, SpsError, first_line
from spsbench.heads.blocks import REMEDY, BlockRotary, TargetLayer, block_configs, text_config
from spsbench.heads.families import TABLE
from spsbench.heads.files import Files, read_object, read_size
from spsbench.heads.layers import Layer, LayerShape, Rotary, RowPositions, layer_shape
from spsbench.heads.network import HeadModule, HeadNetwork, Rows
from spsbench.loop.drafter_context import Cache, TargetParts

log = logging.getLogger(__name__)

PLAIN = ("llama", "qwen2", "qwen3", "mistral")  # whose layers `layers` has
LIKE = {"mimo": "qwen2"}  # models that transformers has not -> those with the same layers
USUAL: Mapping[str, Mapping[str, str]] = TABLE["mtp"]  # target -> its flags, where not the usual
NORMLESS = ("ernie4_5_moe",)  # targets whose last norm is their prediction layer's, too
PACKED = ("F8_", "U8", "I32")  # beginnings of the dtypes of weights in codes


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpShape:
    """The shape of layers that were trained along with their target to predict one token more."""

    config: Any  # config of a model of the target's class with the prediction layers alone
    layer: LayerShape | None  # where `layers` has such layers
    width: int  # H
    vocab: int
    count: int = 1  # layers, one for each depth where there are several
    window: int | None = None  # newest keys that a row sees; None: all
    feature_first: bool = False  # `fc` reads [feature; embedding], else [embedding; feature]
    raw_feature: bool = False  # the target's, before its last norm
    raw_feedback: bool = False  # the next depth reads the layer's output before `norm`
    masked_first: bool = False  # the first token's row has no embedding
    norm_shift: float = 0.0  # added to the weights of all norms
    own_norm: bool = True  # else the target's last norm precedes the head
    own_embedding: bool = False
    shared_head: bool = False  # the file has an output layer, which is mostly the target's


def shape(files: Files, headers: Mapping[str, TensorHeader], layers: int | None) -> MtpShape:
    """Return the shape of the prediction layers by config, tensors and flags; `layers`: unused.

    DataError: weights in codes, or layers that neither this package nor transformers can run.
    """
    config, where = files.config, files.where
    for parameter, header in headers.items():
        if header.dtype.startswith(PACKED) or parameter.endswith("scale"):
            raise DataError(
                f"a prediction layer in codes: a tensor of {header.dtype} ({where}): expected "
                f"numbers of 16 or 32 bits. Convert them, or {REMEDY[0].lower()}{REMEDY[1:]}"
            )
    cut = "speculators_model_type" in config
    nested = config.get("text_config")
    sizes: Mapping[str, Any] = nested if isinstance(nested, Mapping) else config
    if cut:
        sizes = read_object(config, "transformer_layer_config", where)
    kind = str(sizes.get("model_type") or config.get("model_type") or "llama")
    like = LIKE.get(kind, kind)
    numbers = [int(m[1]) for name in headers if (m := re.match(r"stages\.(\d{1,3})\.", name))]
    count = max(numbers, default=0) + 1
    target = text_config({**sizes, "model_type": like}, where)
    plain, first = like in PLAIN, "stages.0." if numbers else ""

    def has(parameter: str) -> bool:
        return first + parameter in headers

    configs = block_configs(target, count, where)
    block = next(configs) if plain else fitting_config(list(configs), f"{first}layer.", headers)
    answers = {name: value for name, value in files.overrides.items() if value}
    flags = {**({} if cut else USUAL.get(kind, {})), **answers}
    shift = 0.0
    if norms := flags.get("norms"):
        shift = float((norms == "zero") - (not plain and weights_from_zero(block)))
    return MtpShape(
        config=block,
        layer=layer_shape({**sizes, "model_type": like}, where) if plain else None,
        width=read_size(sizes, "hidden_size", where),
        vocab=read_size(sizes, "vocab_size", where),
        count=count,
        window=window_of(block),
        feature_first=flags.get("order") == "feature",
        raw_feature=flags.get("feature") == "raw",
        raw_feedback=flags.get("feedback") == "raw",
        masked_first=kind == "mimo" and not cut,
        norm_shift=shift,
        own_norm=has("norm.weight") or kind not in NORMLESS,
        own_embedding=has("embed_tokens.weight"),
        shared_head=has("lm_head.weight"),
    )


def new_shape(values: Mapping[str, Any], where: str) -> MtpShape:
    """Return the shape of a layer to be trained for a target, by `values` of its text config.

    DataError, which names the target by `where`: none can be made.
    """
    config = next(block_configs(text_config(values, where), 1, where))
    plain = values["model_type"] in PLAIN
    return MtpShape(
        config=config,
        layer=layer_shape(values, where) if plain else None,
        width=values["hidden_size"],
        vocab=values["vocab_size"],
        window=window_of(config),
    )


def fitting_config(configs: list[Any], front: str, headers: Mapping[str, TensorHeader]) -> Any:
    """Return the first of `configs` whose layers have the tensors of the file, in name and shape.

    The file's are those of `headers`, by parameter, that begin with `front`. A single config is not
    compared; none fits: the first, and `check_tensors` names what is missing. Raises as `block_of`.
    """
    filed = {name[len(front) :]: h.shape for name, h in headers.items() if name.startswith(front)}
    for config in configs if len(configs) > 1 else ():
        block = block_of(config)
        released = block.split(block.state_dict())
        if {name: tuple(weight.shape) for name, weight in released.items()} == filed:
            return config
    return configs[0]


def block_of(config: Any, number: int = 0) -> TargetLayer:
    """Make layer `number` of a model of this config on `meta`, without memory.

    DataError: transformers cannot build it from the config.
    """
    try:
        with torch.device("meta"):
            return TargetLayer(config, number)
    except SpsError:
        raise
    except Exception as e:  # foreign code may raise anything
        raise DataError(
            f"a prediction layer of {config.model_type}: {first_line(e)}: expected a layer that "
            f"transformers builds from the target's config.json. {REMEDY}"
        ) from e


def weights_from_zero(config: Any) -> bool:
    """Return whether the norms of a model's class compute with 1 + weight."""
    norm: Any = block_of(config).norm(2)
    return bool((norm.weight == 0).all())


class MtpNetwork(HeadNetwork):
    """`fc` [H, 2H], a layer, and three norms.

    `layers` is the number of the target's; `number` that of its own layer among the head's, and in
    the cache.
    """

    _last: Tensor | None = None  # [H] weight of the target's last norm, where it is undone
    _target_norm: nn.Module | None = None  # where the head has no norm of its own

    def __init__(self, shape: MtpShape, layers: int, number: int = 0) -> None:
        super().__init__(shape, layers)
        width = shape.width
        self.layer: Any
        self.rotary: Any
        if shape.layer is not None:
            self.layer, self.rotary = Layer(shape.layer, number), Rotary(shape.layer)
            kind: Any = nn.RMSNorm
            eps = shape.layer.eps
        else:
            self.layer = block_of(shape.config, number)
            self.rotary = BlockRotary(self.layer)
            kind, eps = self.layer.norm, getattr(shape.config, "rms_norm_eps", 1e-6)
        self.norm_embedded, self.norm_feature = kind(width, eps=eps), kind(width, eps=eps)
        self.fc = nn.Linear(2 * width, width, bias=False)
        if shape.own_norm:
            self.norm = kind(width, eps=eps)
        if shape.shared_head:
            self.lm_head = nn.Linear(width, shape.vocab, bias=False)

    def meet(self, target: TargetParts) -> None:
        """Take last norm and way to run experts from the target; add `norm_shift` to own norms.

        A note is logged for a layer of transformers. DataError: the last norm is needed, and is not
        known or has weights of 0.
        """
        if isinstance(self.layer, TargetLayer):
            experts = getattr(target.config, "_experts_implementation", None)
            if experts is not None:
                self.layer.config._experts_implementation = experts
            log.info(
                f"note: transformers runs the prediction layer, {type(self.layer.layer).__name__}: "
                "fast has no program for its passes, and texts of a batch do not join them"
            )
        if self.shape.norm_shift:
            for name, weight in self.named_parameters():
                if weight.ndim == 1 and "norm" in name:
                    weight.data = weight.data + self.shape.norm_shift
        if self.shape.own_norm and not self.shape.raw_feature:
            return
        if target.norm is None:
            raise DataError(
                f"{target.config.model_type} has no last norm that is known: expected one, for a "
                "feature before it or a head without a norm. Draft with `drafter` ngram"
            )
        if not self.shape.own_norm:
            vars(self)["_target_norm"] = target.norm  # not a module of this one
        if self.shape.raw_feature:
            self._last = norm_weight(target)

    def fuse(self, hidden: Sequence[Tensor]) -> Tensor:
        # `norm_feature` ignores lengths: a state before the last norm is one after it, unweighted
        rows = hidden[0]
        return rows if self._last is None else rows / self._last.to(rows.dtype)

    def step(
        self, features: Tensor, embedded: Tensor, places: RowPositions, cache: Cache, sees: Any
    ) -> Tensor:
        """Run `fc` and the layer over `cache`; return [m, H], normed unless it is fed back raw."""
        if self.shape.masked_first:  # MiMo: the first token's row has no embedding
            embedded = embedded.masked_fill(places.positions[:, None] == 0, 0.0)
        both = [self.norm_embedded(embedded), self.norm_feature(features)]
        x = self.fc(torch.cat(both[::-1] if self.shape.feature_first else both, -1))
        output: Tensor = self.layer(x, places, cache, sees)
        return output if self.shape.raw_feedback else self.normed(output)

    def steps(self, every: Sequence[tuple[Any, ...]]) -> Sequence[Tensor]:
        if isinstance(self.layer, TargetLayer):  # whose attention knows one cache a pass
            with torch.inference_mode():
                return [self.step(*one) for one in every]
        return super().steps(every)

    def normed(self, rows: Tensor) -> Tensor:
        """Norm [m, H] outputs of the layer, as the head takes them."""
        norm: Any = self._target_norm or self.norm
        output: Tensor = norm(rows)
        return output

    def scores(self, features: Tensor, head: Rows) -> Tensor:
        return self.ranked(self.normed(features) if self.shape.raw_feedback else features, head)


def norm_weight(target: TargetParts) -> Tensor:
    """Return [H] the weight of the target's last norm, whichever way its class counts it.

    DataError: a weight of 0, which hides what is before the norm.
    """
    norm: Any = target.norm
    with torch.inference_mode():
        ones = torch.ones(1, target.config.hidden_size, dtype=target.dtype, device=target.device)
        weight: Tensor = norm(ones)[0]
    if not bool(weight.all()):
        raise DataError(
            "the target's last norm has weights of 0, which hide what is before it: expected "
            "others for a feature before it. Say feature=normed"
        )
    return weight


class MtpLadder(HeadModule):
    """Prediction layers, one a depth, each over what the one before wrote of the same row."""

    def __init__(self, shape: MtpShape, layers: int) -> None:
        super().__init__(replace(shape, own_embedding=False), layers)  # each stage may have one
        self.stages = nn.ModuleList(MtpNetwork(shape, layers, k) for k in range(shape.count))


def network(shape: MtpShape, layers: int) -> HeadModule:
    """Make the network of one layer for all depths, or of a layer for each."""
    return MtpNetwork(shape, layers) if shape.count == 1 else MtpLadder(shape, layers)
