"""Descriptions of heads: the shape of a family's network, and which tensor is which parameter."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spsbench.errors import DataError
from spsbench.models.config import in_transformers
from spsbench.models.heads.checkpoint import Checkpoint

FEW = 4  # names in a message


@dataclass(frozen=True, slots=True)
class Trained:
    """The properties that a head states of its target."""

    name: str | None  # a hub id, as a rule
    width: int  # Ht
    vocab: int | None
    deepest: int = 0  # the last hidden state that it reads


@dataclass(frozen=True, slots=True)
class Description:
    """The shape and the tensors of a head: all that its network needs, known before any weight."""

    family: str  # the drafter that it is for
    writer: str  # whose names and flags these are
    shape: Any  # of `heads/shapes`
    trained: Trained
    names: Mapping[str, str]  # parameter of the network -> tensor of the file
    shapes: Mapping[str, tuple[int, ...]]  # parameter -> shape
    spare: Mapping[str, str]  # tensors that are not read -> why

    def __str__(self) -> str:
        """Format as `eagle3, written by SpecForge, for Qwen/Qwen3-8B`."""
        target_name = f", for {self.trained.name}" if self.trained.name else ""
        return f"{self.family}, written by {self.writer}{target_name}"


def check_tensors(described: Description, files: Checkpoint) -> None:
    """Check that each tensor is used or known to be spare, none is missing, and shapes agree."""
    what = f"{described.family} head"
    lacking = [named for named in described.names.values() if named not in files.headers]
    used = {*described.names.values(), *described.spare}
    over = sorted(files.headers.keys() - used)
    if lacking:
        instead = f", and has {listed(over)} that nothing reads" if over else ""
        raise DataError(
            f"the {what} lacks {listed(lacking)}{instead} ({files.folder}): expected all of "
            f"{len(described.names)} tensors. Fetch it again"
        )
    if over:
        raise DataError(
            f"the {what} has {listed(over)} that nothing reads ({files.folder}): expected no other "
            f"tensors than {described.writer} writes for this config.json. It is a kind of head "
            "that is not known"
        )
    for parameter, named in described.names.items():
        shape, expected_shape = files.headers[named].shape, described.shapes[parameter]
        if shape != expected_shape:
            raise DataError(
                f"{named} has the shape {by(shape)} ({files.folder}): expected "
                f"{by(expected_shape)} by config.json. Fetch it again"
            )


def check_target(
    described: Description, config: Mapping[str, Any], target: str, head: str, where: Path
) -> None:
    """Refuse a head that was trained for another target.

    Args:
        described: the head.
        config: of the target.
        target: its name, as the user gave it.
        head: the name of the head, likewise.
        where: the folder of the head.
    """
    text = config.get("text_config")
    sizes = text if isinstance(text, Mapping) and "hidden_size" not in config else config
    trained = described.trained
    whose = f"{head} is a head for {trained.name or 'another target'}, not for {target} ({where})"
    if trained.name == target:
        whose = f"{head} does not fit {target}, which it names ({where})"
    for key, trained_size in (
        (("hidden_size", "n_embd", "d_model"), trained.width),
        (("vocab_size",), trained.vocab),
    ):
        theirs = next((sizes[name] for name in key if isinstance(sizes.get(name), int)), None)
        if theirs is not None and trained_size is not None and theirs != trained_size:
            raise DataError(
                f"{whose}: expected a target with {key[0]} {trained_size}, and this one has "
                f"{theirs}. Choose the head of this target, or fetch it again"
            )
    layers = next(
        (sizes[key] for key in ("num_hidden_layers", "n_layer") if isinstance(sizes.get(key), int)),
        None,
    )
    if layers is not None and trained.deepest >= layers:
        raise DataError(
            f"{whose}: it reads hidden state {trained.deepest}, and the target has {layers} "
            f"layers: expected a state below {layers}. Choose the head of this target"
        )


def listed(names: list[str]) -> str:
    """Join the first few names, and the number of the others."""
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return ", ".join(names[:FEW]) + more


def by(shape: tuple[int, ...]) -> str:
    """Format a shape as `32x64`."""
    return "x".join(map(str, shape)) or "of one number"


ROPES = ("default", "linear", "dynamic", "llama3", "yarn")
GATED = ("silu", "swish")
LONGEST = 40  # characters of a value in a message
MANY = 1 << 10  # heads, layers or tokens of a block: more are believed of no config

WORDS = (
    *("speculator", "eagle", "medusa", "dflash", "dspark", "mtp", "blockwise", "falcon"),
    "mimo",
)
"""In the `model_type` of heads, and of targets that transformers has not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """The shape of a head's layers, which are all alike."""

    width: int  # H
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: tuple[tuple[str, Any], ...] = ()
    positions: int = 2048  # that it was trained for; scaled angles depend on it
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False


def layer_shape(config: Mapping[str, Any], where: str) -> LayerShape:
    """Return the shape of the layers that `config` describes.

    Args:
        config: of a Llama, Qwen2, Qwen3 or Mistral model, or of a head made of such layers.
        where: the file, for messages.
    """
    width, heads = whole(config, "hidden_size", where), whole(config, "num_attention_heads", where)
    check_kind(config, where)
    kind = str(config.get("model_type") or "llama")
    act = str(config.get("hidden_act", "silu"))
    if act not in GATED:
        raise DataError(f"hidden_act {act!r} ({where}): expected silu. Such heads are not known")
    rope = rope_of(config)
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    named = scaling.get("rope_type", scaling.pop("type", "default"))
    if named not in ROPES:
        raise DataError(
            f"rope_type {named!r} ({where}): expected one of {', '.join(ROPES)}. Such heads are "
            "not known"
        )
    attention_bias = bool(config.get("attention_bias", False))
    theta = rope.get("rope_theta", config.get("rope_theta"))
    return LayerShape(
        width=width,
        inner=whole(config, "intermediate_size", where),
        heads=heads,
        kv_heads=whole(config, "num_key_value_heads", where, heads),
        head_dim=whole(config, "head_dim", where, width // heads),
        eps=positive(config.get("rms_norm_eps", 1e-6), "rms_norm_eps", where),
        rope_theta=positive(10000.0 if theta is None else theta, "rope_theta", where),
        rope_scaling=() if named == "default" else tuple({**scaling, "rope_type": named}.items()),
        positions=whole(config, "max_position_embeddings", where, 2048),
        qkv_bias=bool(config.get("qkv_bias", attention_bias or kind == "qwen2")),
        out_bias=attention_bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
        qk_norm=kind.startswith("qwen3"),
    )


def rope_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rotary settings: newer configs nest them, older ones have them at the top."""
    nested = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return dict(nested) if isinstance(nested, Mapping) else {}


def whole(
    config: Mapping[str, Any],
    key: str,
    where: str,
    default: int | None = None,
    most: int = 1 << 28,
) -> int:
    """Return a size from 1 to `most` from the config."""
    value = config.get(key)
    if value is None and default is not None:
        return default
    if type(value) is not int or not 1 <= value <= most:
        target_name = f"no {key}" if value is None else f"{key} is {brief_repr(value)}"
        raise DataError(
            f"{target_name} ({where}): expected an integer from 1 to {most}. Fetch the head again"
        )
    return value


def positive(value: object, key: str, where: str) -> float:
    """Return a number above 0 from the config."""
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        raise DataError(
            f"{key} is {brief_repr(value)} ({where}): expected a number above 0. Fetch the head "
            "again"
        )
    return float(value)


def check_kind(config: Mapping[str, Any], where: str) -> None:
    """Refuse a `model_type` that neither heads nor transformers' models have; none is allowed."""
    kind = config.get("model_type")
    if kind is None:
        return
    is_known_kind = isinstance(kind, str) and (
        any(word in kind.lower() for word in WORDS) or in_transformers(kind)
    )
    if not is_known_kind:
        raise DataError(
            f"model_type is {brief_repr(kind)} ({where}): expected one that is known, such as "
            "llama, qwen3 or medusa. Fetch the head again"
        )


def brief_repr(value: object) -> str:
    """Return a value of a config for a message, shortened."""
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleShape:
    """The shape of a head of EAGLE-1 or 2, or HASS."""

    layer: LayerShape
    depth: int = 1  # layers
    fc_bias: bool = True
    vocab: int = 0  # rows of its own embeddings
    own_embedding: bool = False


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
    mask_token: int | None = None  # of P-EAGLE: stands for tokens that are not drafted yet
    at_once: int = 8  # of P-EAGLE: tokens that one pass foretells


@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaShape:
    """The shape of Medusa heads."""

    width: int  # H
    draft_vocab: int
    count: int  # heads
    depth: int = 1  # blocks of a head
    bias: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockwiseShape:
    """The shape of proposal heads of blockwise parallel decoding."""

    width: int  # H
    inner: int  # F
    vocab: int
    count: int
    own_head: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpShape:
    """The shape of an MLP speculator."""

    width: int  # H
    inner: int  # D
    vocab: int
    count: int  # stages
    tied: bool = False
    scaled: bool = False  # the hidden state is normed first


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShape:
    """The shape of a block-diffusion head: DFlash, or DSpark with its coupling."""

    layer: LayerShape
    depth: int  # layers
    windows: tuple[int, ...]  # of each layer, tokens before the block that it sees; 0 = all
    looks_ahead: bool  # whether rows of a layer with a window see later rows of the block
    features: tuple[int, ...]  # hidden states of the target, as transformers numbers them
    target_width: int
    block: int  # rows of a pass: the pending token, then masks
    mask: int  # token
    from_first: bool  # the first row drafts, too
    vocab: int
    draft_vocab: int
    rank: int = 0  # of the coupling; 0 = none
    coupling: str = ""  # vanilla, gated or rnn
    own_head: bool = False
    own_embedding: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FalconShape:
    """The shape of a Falcon head."""

    layer: LayerShape
    block: int  # tokens that a pass foretells
    recurrent: bool  # the LSTM runs along the text; else it begins anew at every row
    bias: bool = True  # of the LSTM
    vocab: int = 0  # rows of its own embeddings
    own_embedding: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpShape:
    """The shape of a layer that was trained along with its target to predict one token more."""

    layer: LayerShape
    vocab: int
    hidden_first: bool = False  # `fc` reads [feature; embedding], else [embedding; feature]
