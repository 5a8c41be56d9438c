"""Heads in the form that another engine loads: a config, and tensors by its names.

Tensors and their dtype stay, but for what an engine demands: vLLM sorts the numbers of hidden
states, and its Medusa has a row for every token. SGLang's form follows its documentation and was
never loaded there.
"""

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from spsbench.errors import DataError
from spsbench.heads.eagle3 import IDS
from spsbench.heads.families import Renames, rename_tensor
from spsbench.heads.head import Head, read_tensors
from spsbench.heads.layers import LayerShape

log = logging.getLogger(__name__)

Form = tuple[dict[str, Any], dict[str, Tensor]]
Convert = Callable[[Head, str | None, Mapping[str, Any]], Form]
"""(head, name of its target for the engine, config of the target) -> config, tensors."""

VLLM_MEDUSA: Renames = (
    (r"heads\.(\d+)\.blocks\.(\d+)\.", r"blocks.\1.layers.\2."),
    (r"heads\.(\d+)\.lm_head\.", r"lm_heads.\1."),
)
SGLANG_EAGLE3: Renames = ((r"stack\.0\.", "midlayer."), (r"stack\.", "layers."))


def converter(engine: str, family: str, folder: Path) -> Convert:
    """Return the function that gives heads of `family` the form of `engine`; DataError: none."""
    if (engine, family) in CONVERTERS:
        return CONVERTERS[engine, family]
    remedy = "expected a draft model, the only drafter of transformers' generate(). Train one"
    if (engine, family) == ("vllm", "mlp"):
        remedy = "expected eagle3 or medusa, as its V1 runner has no MLP speculator. Train another"
    elif engine != "hf":
        kinds = " or ".join(name for other, name in CONVERTERS if other == engine)
        remedy = f"expected {kinds}, the heads that are exported for it. Train one of those"
    raise DataError(f"{engine} takes no {family} head ({folder}): {remedy}")


def _eagle3_for_vllm(head: Head, verifier: str | None, target: Mapping[str, Any]) -> Form:
    """Return config and tensors in the format of speculators, hidden states in ascending order.

    The columns of `fc` move with them. With `verifier` the config names it and `target`'s
    architectures. DataError: a head that was written in another format, a hidden state twice, or a
    norm before `fc` of unsorted ones.
    """
    shape, folder = head.shape, head.files.folder
    if head.writer != "speculators":
        raise DataError(
            f"an eagle3 head written by {head.writer} ({folder}): expected the format of "
            "speculators, as `sps train` writes it. Give vLLM that folder as it is"
        )
    config: dict[str, Any] = json.loads(json.dumps(head.files.config))
    config["norm_before_residual"] = shape.normed_residual
    listed = config.get(IDS)
    if listed is not None and len(set(listed)) < len(listed):
        raise DataError(
            f"hidden states {listed} ({folder}): expected each once, as vLLM reads them. "
            "Train it with such ids"
        )
    converted = {head.names[parameter]: t for parameter, t in read_tensors(head).items()}
    if listed is not None and list(listed) != sorted(listed):
        if shape.norm_each or shape.norm_all:
            raise DataError(
                f"hidden states {listed} with a norm before fc ({folder}): expected them in "
                "ascending order, which vLLM sorts them to. Train it with such ids"
            )
        name, width = head.names["fc.weight"], shape.target_width
        order = sorted(range(len(listed)), key=lambda i: listed[i])
        converted[name] = converted[name].reshape(-1, len(order), width)[:, order].flatten(1)
        config[IDS] = sorted(listed)
    if verifier is not None:
        about = config.get("speculators_config")
        config["speculators_config"] = (about if isinstance(about, dict) else {}) | {
            "verifier": {
                "name_or_path": verifier,
                "architectures": list(target.get("architectures") or []),
            }
        }
    return config, converted


def _medusa_for_vllm(head: Head, verifier: str | None, target: Mapping[str, Any]) -> Form:
    """Return config and tensors with a row for every token, as vLLM 0.32 loads no truncated heads.

    A token without a row gets that of the last token of the map, which is rare, so that it is never
    likelier than what the head ranks. DataError: blocks with biases.
    """
    shape, folder, vocab = head.shape, head.files.folder, head.shape.vocab
    if shape.bias:
        raise DataError(
            f"Medusa heads with biases ({folder}): expected blocks without, as `sps train` "
            "writes them. Such heads were never loaded in vLLM"
        )
    tensors = read_tensors(head)
    ids = tensors.pop("token_map", None)
    converted = {
        rename_tensor(name, VLLM_MEDUSA): spread_rows(rows, ids, vocab)
        if ids is not None and name.endswith("lm_head.weight")
        else rows
        for name, rows in tensors.items()
    }
    config = {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "base_model_name_or_path": verifier or head.files.target,
        "hidden_size": shape.width,
        "vocab_size": vocab,
        "num_heads": shape.count,
        "num_hidden_layers": shape.depth,
    }
    return config, converted


def spread_rows(rows: Tensor, ids: Tensor, vocab: int) -> Tensor:
    """Return [V, d]: `rows` at the tokens `ids`, else the last row; DataError: `ids` do not fit."""
    if len(ids) != len(rows) or not bool(((ids >= 0) & (ids < vocab)).all()):
        raise DataError(f"token_map of {len(ids)} tokens: expected {len(rows)} below {vocab}")
    whole = rows[-1:].repeat(vocab, 1)
    whole[ids.long()] = rows
    return whole


def _eagle3_for_sglang(head: Head, verifier: str | None, target: Mapping[str, Any]) -> Form:
    """Return config and tensors in SpecForge's form, which names no target; log that it is untried.

    DataError: the head has what SGLang's documentation does not describe.
    """
    shape, folder = head.shape, head.files.folder
    unsupported = {
        "a normed residual": shape.normed_residual,
        "a feature that is fed back after its norm": shape.normed_feedback,
        "a norm before fc": shape.norm_each or shape.norm_all,
        "a hidden state before the first layer": min(shape.features) < 1,
        "scaled rotations": bool(shape.layer.rope_scaling),
        "no output layer": not shape.own_head,
    }
    if lacking := [what for what, present in unsupported.items() if present]:
        raise DataError(
            f"a head with {lacking[0]} ({folder}): expected what SGLang's documentation "
            "describes. Train another"
        )
    config = {
        **flat_layer(shape.layer),
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": shape.depth,
        "vocab_size": shape.vocab,
        "draft_vocab_size": shape.draft_vocab,
        "target_hidden_size": shape.target_width,
        "norm_before_residual": False,
        "eagle_config": {IDS: [i - 1 for i in shape.features], "use_aux_hidden_state": True},
    }
    named = {rename_tensor(name, SGLANG_EAGLE3): t for name, t in read_tensors(head).items()}
    log.info("note: SGLang's form follows its documentation, and was never loaded there")
    return config, named


def flat_layer(layer: LayerShape) -> dict[str, Any]:
    """Return the keys of a Llama's config for such layers, without number and `rope_scaling`."""
    return {
        "model_type": "llama",
        "hidden_size": layer.width,
        "intermediate_size": layer.inner,
        "num_attention_heads": layer.heads,
        "num_key_value_heads": layer.kv_heads,
        "head_dim": layer.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": layer.eps,
        "rope_theta": layer.rope_theta,
        "max_position_embeddings": layer.positions,
        "attention_bias": layer.out_bias,
        "mlp_bias": layer.mlp_bias,
        "tie_word_embeddings": False,
    }


CONVERTERS: Mapping[tuple[str, str], Convert] = {
    ("vllm", "eagle3"): _eagle3_for_vllm,
    ("vllm", "medusa"): _medusa_for_vllm,
    ("sglang", "eagle3"): _eagle3_for_sglang,
}
