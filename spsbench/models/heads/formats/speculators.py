"""Heads of EAGLE-3 and 3.1 as vllm-project/speculators writes them.

The layer's sizes are in `transformer_layer_config`, the target in `speculators_config.verifier`.
Here `norm_output` means that the normed feature is fed back, and layer ids number hidden states as
transformers does. Two things are not believed but asked: an absent `norm_before_residual`, which
vLLM takes for true and speculators for false; and layer ids that look like SpecForge's, as heads
have been converted without changing them.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spsbench.errors import DataError, UsageError
from spsbench.models.heads.checkpoint import Checkpoint
from spsbench.models.heads.description import MANY, Description, Eagle3Shape, layer_shape, whole
from spsbench.models.heads.formats import eagle3
from spsbench.models.heads.formats.format import Format, as_filed, has, layers_in, target_of


def knows(files: Checkpoint) -> bool:
    """Return whether the config names this format."""
    return files.config.get("speculators_model_type") == "eagle3"


def knows_parallel(files: Checkpoint) -> bool:
    """Return whether this is a P-EAGLE head: EAGLE-3's network, trained for parallel drafts."""
    return files.config.get("speculators_model_type") == "peagle"


def describe_parallel(files: Checkpoint, layers: int | None) -> Description:
    """Describe as `describe` does, with the stand-ins for missing tokens and features."""
    config, where = files.config, files.config_path
    plain = describe(files, layers)
    token = next((config[key] for key in MASKS if config.get(key) is not None), None)
    if type(token) is not int or not 0 <= token < plain.shape.vocab:
        raise DataError(
            f"mask_token_id is {token!r} ({where}): expected a token of {plain.shape.vocab}. "
            "Check `draft`"
        )
    depth = whole(config, "para_depths", where, 8, most=MANY)
    shape = replace(plain.shape, mask_token=token, at_once=depth)
    return eagle3.described(files, shape, SPECULATORS.writer, verifier(config), "peagle")


def describe(files: Checkpoint, layers: int | None) -> Description:
    """Describe as `models.heads.formats.eagle3` does, by other keys."""
    config, where = files.config, files.config_path
    inner = part(config, "transformer_layer_config", where)
    layer = as_filed(files, layer_shape(inner, f"transformer_layer_config in {where}"))
    width = whole(config, "target_hidden_size", where, layer.width)
    vocab = whole(inner, "vocab_size", where)
    if "norm_before_residual" not in config and "residual" not in files.answers:
        raise UsageError(
            f"norm_before_residual is not said ({where}): vLLM takes that for true, speculators "
            "for false. Say which: `drafter` eagle3:residual=normed, or residual=raw"
        )
    listed = eagle3.ids(config.get(eagle3.IDS), where)
    if layers is not None and tuple(listed) == shifted(layers) and "features" not in files.answers:
        right = "-".join(str(i + 1) for i in listed)
        raise UsageError(
            f"{eagle3.IDS} is {listed} ({where}): by speculators these are hidden states, by "
            "SpecForge, whose defaults they are, outputs of layers, one further. Say which: "
            f"`drafter` eagle3:features={'-'.join(map(str, listed))}, or features={right}"
        )
    fed_back = eagle3.answered(files, "feedback", bool(config.get("norm_output")))
    shape = Eagle3Shape(
        layer=layer,
        features=eagle3.features(files, listed, width, layers),
        target_width=width,
        draft_vocab=whole(config, "draft_vocab_size", where, vocab),
        vocab=vocab,
        depth=layers_in(files, inner, where),
        normed_residual=eagle3.answered(
            files, "residual", bool(config.get("norm_before_residual"))
        ),
        normed_feedback=fed_back,
        norm_each=bool(config.get("fc_norm")),
        norm_all=bool(config.get("norm_before_fc")),
        own_head=has(files, "lm_head.weight"),
        own_embedding=has(files, "embed_tokens.weight"),
    )
    return eagle3.described(files, shape, SPECULATORS.writer, verifier(config))


def shifted(layers: int) -> tuple[int, ...]:
    """Return SpecForge's defaults: the paper's hidden states as outputs of layers."""
    return tuple(i - 1 for i in eagle3.default_features(layers))


def part(config: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    """Return an object of a config."""
    value = config.get(key)
    if not isinstance(value, Mapping):
        raise DataError(f"{key} is {value!r} ({where}): expected an object. Check `draft`")
    return value


def verifier(config: Mapping[str, Any]) -> str | None:
    """Return the name of the target that a head was trained for."""
    about: Any = config.get("speculators_config")
    named: Any = about.get("verifier") if isinstance(about, Mapping) else None
    return target_of(named, "name_or_path") if isinstance(named, Mapping) else None


MASKS = ("mask_token_id", "ptd_token_id", "pard_token")
PARALLEL = Format("speculators", "peagle", knows_parallel, describe_parallel)
SPECULATORS = Format("speculators", "eagle3", knows, describe)
