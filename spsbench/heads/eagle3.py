"""EAGLE-3, 3.1 and its dialects (Li et al. 2025, arXiv 2503.01840, section 3.1).

`fc` makes one feature of n hidden states of the target. The first layer attends over
`[norm(embedding); norm(feature)]`, 2H wide, and adds to the feature. A head of its own ranks the
commonest tokens only.

Sources: SafeAILab/EAGLE `cnets.py`, sgl-project/SpecForge `llama3_eagle.py`, SGLang's
`llama_eagle3.py`, vllm-project/speculators. `d2t` holds offsets. Layer ids of SpecForge and SGLang,
in `eagle_config`, are those of a layer's output, hidden state i + 1; vLLM's and speculators', at
the top level, number hidden states as transformers does. Speculators has the layer's sizes in
`transformer_layer_config`, and its `norm_output` means that the normed feature is fed back. Of its
files two things are not believed but asked: an absent `norm_before_residual`, which vLLM takes for
true and speculators for false; and ids that look like SpecForge's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spsbench.checkpoints.weights import TensorHeader
from spsbench.errors import DataError, UsageError
from spsbench.heads.files import MANY, Files, hidden_states, read_object, read_size
from spsbench.heads.layers import (
    Attention,
    GatedMlp,
    Layer,
    LayerShape,
    Rotary,
    RowPositions,
    as_filed,
    layer_shape,
    layers_in,
)
from spsbench.heads.network import HeadNetwork, Rows
from spsbench.loop.drafter_context import Cache
from spsbench.untrusted import cut

IDS = "eagle_aux_hidden_state_layer_ids"
MASKS = ("mask_token_id", "ptd_token_id", "pard_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Shape:
    """The shape of a head of EAGLE-3, in any dialect."""

    layer: LayerShape
    features: tuple[int, ...]  # hidden states of the target, as transformers numbers them
    target_width: int
    draft_vocab: int
    vocab: int  # the target's, as the head knows it
    depth: int = 1
    normed_residual: bool = False  # the first layer adds to the normed feature
    normed_feedback: bool = False  # the next pass takes the feature after the last norm (3.1)
    norm_output: bool = True  # a norm before the head
    norm_each: bool = False  # a norm for each hidden state before `fc` (3.1)
    norm_all: bool = False  # one norm over all of them
    own_head: bool = True
    own_embedding: bool = False
    mask_token: int | None = None  # stands for tokens that P-EAGLE has not drafted yet
    at_once: int = 8  # tokens that one pass of P-EAGLE predicts


def shape(files: Files, headers: Mapping[str, TensorHeader], layers: int | None) -> Eagle3Shape:
    """Return the shape of a head for a target of `layers` layers (None: unknown).

    The user's flags precede the config. UsageError: the file leaves a choice open. DataError:
    values that are no such head, or a head narrower than its target without embeddings of its own.
    """
    config, where = files.config, files.where
    speculators = config.get("speculators_model_type")
    inner = (
        config if speculators is None else read_object(config, "transformer_layer_config", where)
    )
    layer = as_filed(headers, layer_shape(inner, where))
    width = read_size(config, "target_hidden_size", where, layer.width)
    vocab = read_size(inner, "vocab_size", where)
    nested = config.get("eagle_config")
    outputs = ids(nested.get(IDS), where) if isinstance(nested, Mapping) else []
    listed = [i + 1 for i in outputs] or ids(config.get(IDS), where)
    if speculators is not None:
        listed = ids(config.get(IDS), where)
        check_stated(files, listed, layers)
    own_embedding = "embed_tokens.weight" in headers
    if not own_embedding and layer.width != width:
        raise DataError(
            f"no embed_tokens.weight ({files.folder}): expected embeddings of its own, as it is "
            f"{layer.width} wide and its target {width}. Fetch it again"
        )
    token = None
    if speculators == "peagle":
        token = next((config[key] for key in MASKS if config.get(key) is not None), None)
        if type(token) is not int or not 0 <= token < vocab:
            raise DataError(
                f"mask_token_id is {token!r} ({where}): expected a token of {vocab}. Check `draft`"
            )
    return Eagle3Shape(
        layer=layer,
        features=features(files, headers, listed, width, layers),
        target_width=width,
        draft_vocab=read_size(config, "draft_vocab_size", where, vocab),
        vocab=vocab,
        depth=layers_in(headers, inner, where),
        normed_residual=user_flag(files, "residual", bool(config.get("norm_before_residual"))),
        normed_feedback=user_flag(
            files, "feedback", speculators is not None and bool(config.get("norm_output"))
        ),
        norm_output=user_flag(
            files, "output", speculators is not None or bool(config.get("norm_output", True))
        ),
        norm_each=bool(config.get("fc_norm")),
        norm_all=speculators is not None and bool(config.get("norm_before_fc")),
        own_head="lm_head.weight" in headers,
        own_embedding=own_embedding,
        mask_token=token,
        at_once=read_size(config, "para_depths", where, 8, most=MANY),
    )


def writer(files: Files) -> str:
    """Return whose names these are: SpecForge or EAGLE."""
    forged = isinstance(files.config.get("eagle_config"), Mapping)
    return "SpecForge" if forged or files.kind == "LlamaForCausalLMEagle3" else "EAGLE"


def check_stated(files: Files, listed: Sequence[int], layers: int | None) -> None:
    """Raise UsageError if `files` of a speculators head leave open its residual, or its ids.

    Ids are in doubt if `listed` are SpecForge's defaults for a target of `layers` layers; None:
    they are not asked about. The user's flags `residual` and `features` answer both.
    """
    where = files.where
    if "norm_before_residual" not in files.config and "residual" not in files.overrides:
        raise UsageError(
            f"norm_before_residual is not said ({where}): vLLM takes that for true, speculators "
            "for false. Say which: `drafter` eagle3:residual=normed, or residual=raw"
        )
    shifted = () if layers is None else tuple(i - 1 for i in default_features(layers))
    if listed and tuple(listed) == shifted and "features" not in files.overrides:
        right = "-".join(str(i + 1) for i in listed)
        raise UsageError(
            f"{IDS} is {listed} ({where}): by speculators these are hidden states, by "
            "SpecForge, whose defaults they are, outputs of layers, one further. Say which: "
            f"`drafter` eagle3:features={'-'.join(map(str, listed))}, or features={right}"
        )


def features(
    files: Files,
    headers: Mapping[str, TensorHeader],
    listed: Sequence[int],
    width: int,
    layers: int | None,
) -> tuple[int, ...]:
    """Return the hidden states that a head reads: the user's, the `listed`, or EAGLE-3's three.

    The last need an `fc` of three, and `layers`, those of the target, whose hidden states are
    `width` wide. UsageError: nobody says which. DataError: another number of them than `fc` reads.
    """
    chosen = hidden_states(files.overrides.get("features", ""), "eagle3") or tuple(listed)
    fc = headers["fc.weight"].shape if "fc.weight" in headers else ()
    read = fc[1] // width if len(fc) == 2 else 3
    if not chosen and read == 3 and layers is not None:
        chosen = default_features(layers)
    if not chosen:
        raise UsageError(
            f"{files.folder} does not say which {read} hidden states it reads: expected {IDS} in "
            "config.json. Say it: `drafter` eagle3:features=2-16-29, counted as transformers does"
        )
    if len(chosen) != read:
        raise DataError(
            f"{len(chosen)} hidden states, and an fc for {read} ({files.folder}): expected as many "
            f"in {IDS}. Fetch it again"
        )
    return chosen


def default_features(layers: int) -> tuple[int, ...]:
    """Return the hidden states of the paper's code, for a target of `layers` layers."""
    return 2, layers // 2, layers - 3


def ids(value: Any, where: str) -> list[int]:
    """Return the layer numbers in a config value, [] for None; DataError: no list of ints >= 0."""
    if value is None:
        return []
    if not isinstance(value, list) or any(type(i) is not int or i < 0 for i in value):
        raise DataError(
            f"{IDS} is {cut(value)} ({where}): expected numbers of layers. Check `draft`"
        )
    return value


def user_flag(files: Files, question: str, default: bool) -> bool:
    """Return whether the user's answer is `normed`, not `raw`; without one the file's `default`."""
    answer = files.overrides.get(question, "")
    return default if not answer else answer == "normed"


class FirstLayer(nn.Module):
    """The layer that reads embeddings beside features; its residual is the feature alone."""

    def __init__(self, shape: LayerShape, normed_residual: bool) -> None:
        super().__init__()
        self.normed_residual = normed_residual
        self.hidden_norm = nn.RMSNorm(shape.width, eps=shape.eps)
        self.input_layernorm = nn.RMSNorm(shape.width, eps=shape.eps)
        self.self_attn = Attention(shape, 2 * shape.width, 0)
        self.post_attention_layernorm = nn.RMSNorm(shape.width, eps=shape.eps)
        self.mlp = GatedMlp(shape)

    def forward(
        self, features: Tensor, embedded: Tensor, places: RowPositions, cache: Cache, sees: Any
    ) -> Tensor:
        """Map [m, H] features and embeddings to [m, H], appending keys and values to `cache`."""
        normed = self.hidden_norm(features)
        residual = normed if self.normed_residual else features
        both = torch.cat([self.input_layernorm(embedded), normed], -1)
        x = residual + self.self_attn(both, places, cache, sees)
        output: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return output


class Eagle3Network(HeadNetwork):
    """`fc` [H, n * Ht], a first layer of 2H, plain layers, a norm and a head [Vd, H]."""

    def __init__(self, shape: Eagle3Shape, layers: int) -> None:
        super().__init__(shape, layers)
        layer, read = shape.layer, len(shape.features) * shape.target_width
        self.fc = nn.Linear(read, layer.width, bias=False)
        first = FirstLayer(layer, shape.normed_residual)
        self.stack = nn.ModuleList([first, *(Layer(layer, i) for i in range(1, shape.depth))])
        self.rotary = Rotary(layer)
        self.norm = nn.RMSNorm(layer.width, eps=layer.eps)
        if shape.norm_each:
            kind = [nn.RMSNorm(shape.target_width, eps=layer.eps) for _ in shape.features]
            self.fc_norm = nn.ModuleList(kind)
        if shape.norm_all:
            self.input_norm = nn.RMSNorm(read, eps=layer.eps)
        if shape.mask_token is not None:
            self.mask_hidden = nn.Parameter(torch.empty(1, 1, read))
        if shape.own_head:
            self.lm_head = nn.Linear(layer.width, shape.draft_vocab, bias=False)

    def fuse(self, hidden: Sequence[Tensor]) -> Tensor:
        if self.shape.norm_each:
            hidden = [norm(part) for norm, part in zip(self.fc_norm, hidden, strict=True)]
        joined = torch.cat(list(hidden), -1)
        fused: Tensor = self.fc(self.input_norm(joined) if self.shape.norm_all else joined)
        return fused

    def step(
        self, features: Tensor, embedded: Tensor, places: RowPositions, cache: Cache, sees: Any
    ) -> Tensor:
        """Run all layers over `cache`; return [m, H], normed where the next pass takes it so."""
        first, *layers = self.stack
        x: Tensor = first(features, embedded, places, cache, sees)
        for layer in layers:
            x = layer(x, places, cache, sees)
        return self.norm(x) if self.shape.normed_feedback else x

    def scores(self, features: Tensor, head: Rows) -> Tensor:
        plain = self.shape.normed_feedback or not self.shape.norm_output
        return self.ranked(features if plain else self.norm(features), head)


network = Eagle3Network
