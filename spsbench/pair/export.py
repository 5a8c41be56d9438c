"""Export of drafters to the files that other engines take.

`export` reads a head in any format of `formats`, and writes what an engine loads. Tensors and their
dtype stay, but for what an engine demands: vLLM sorts the numbers of hidden states, and its Medusa
has a row for every token. SGLang's form follows its documentation and was never loaded there.
"""

import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from spsbench.checkpoints.config import read_config
from spsbench.errors import DataError, MissingError, UsageError, WriteError
from spsbench.heads.eagle3 import IDS, Eagle3Shape
from spsbench.heads.families import family_of
from spsbench.heads.files import open_files
from spsbench.heads.head import Head, read, tensors_of
from spsbench.heads.layers import LayerShape
from spsbench.models.folder import is_hub_id, local_folder, locate
from spsbench.settings.execution import Access
from spsbench.settings.models import BUNDLED, FETCHED, ModelSpec
from spsbench.store.atomic import replace_file

log = logging.getLogger(__name__)

ENGINES = ("vllm", "sglang", "hf")
OF_A_MODEL = ("*.json", "*.safetensors", "tokenizer.model", "*.txt", "*.jinja")
FALLBACK_K = 3  # tokens of a draft in the shown command


@dataclass(frozen=True, slots=True)
class Exported:
    """A folder that an engine loads, and the way to name it there."""

    folder: Path
    drafter: str
    engine: str
    speculative_config: Mapping[str, Any] | None  # of vLLM
    tried: bool  # whether that engine has loaded such files

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "folder": str(self.folder)}


def export(
    draft: str, engine: str, out: Path, *, verifier: str | None = None, access: Access | None = None
) -> Exported:
    """Write the drafter `draft` into the new folder `out`, as `engine` takes it.

    Args:
        draft: bundled name, folder or hub id of a head or a draft model.
        engine: one of `ENGINES`.
        out: folder to write; an empty one may be there.
        verifier: folder or hub id of the target, by which the engine loads it.
        access: as for models.

    Raises:
        UsageError: another engine, or a folder that is not empty.
        MissingError: a verifier that is neither a folder nor a hub id.
        DataError: a head that the engine cannot take, or one for another target.
        SpsError: a drafter that cannot be read, or a folder that cannot be written.
    """
    if engine not in ENGINES:
        raise UsageError(f"`for` {engine}: expected one of {', '.join(ENGINES)}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} is there already (`out`): expected a new or an empty folder")
    access = access or Access()
    folder = locate(ModelSpec(draft), access)
    family = family_of(folder)
    if family is None:
        if verifier is not None:
            log.info("note: a draft model names no target: `verifier` is written nowhere")
        return _copy_model(folder, draft, engine, out)
    converters = {
        ("vllm", "eagle3"): _eagle3_for_vllm,
        ("vllm", "medusa"): _medusa_for_vllm,
        ("sglang", "eagle3"): _eagle3_for_sglang,
    }
    converter = converters.get((engine, family))
    if converter is None:
        raise DataError(f"{engine} takes no {family} head ({folder}): {_reason(engine, family)}")
    stated = open_files(folder).target
    named = verifier_folder(verifier) if verifier is not None else None
    target_folder = named or (_folder_here(stated) if stated is not None else None)
    target = read_config(target_folder) if target_folder is not None else {}
    try:
        head = read(
            folder,
            target,
            names=(verifier or stated or "", draft),
            drafter=family,
            overrides={"anyway": True},  # the same target may have another name there; sizes decide
            allow_pickle=access.allow_pickle,
        )
    except UsageError as error:
        if target_folder is not None:
            raise
        raise DataError(
            f"{draft} leaves open what its target's config says ({folder}): expected the folder "
            f"of its target{f', {stated!r}' if stated else ''}. Name it with `verifier`"
        ) from error
    tensors = tensors_of(head)
    name = os.path.abspath(named) if named is not None else verifier
    config, tensors = converter(head, tensors, name, target)
    dtype = next(tensor.dtype for tensor in tensors.values() if tensor.is_floating_point())
    write_head(out, config, tensors, dtype)
    if engine == "vllm" and name is None and stated in (*BUNDLED, *FETCHED, None):
        log.info(
            f"note: the head names its target {stated}, which vLLM cannot load: name the target "
            "beside it, or export with `verifier`"
        )
    chosen = None
    if engine == "vllm":
        depth = getattr(head.shape, "count", FALLBACK_K)
        k = min(FALLBACK_K, depth)
        chosen = {"method": family, "model": str(out), "num_speculative_tokens": k}
    return Exported(out, family, engine, chosen, tried=engine == "vllm")


def verifier_folder(verifier: str) -> Path | None:
    """Return the folder of a target that a head is to name; None for one that is not here.

    Raises:
        MissingError: neither a folder, nor a hub id, nor an absolute path on another machine.
        DataError: it holds a head.
    """
    folder = local_folder(verifier)
    if folder is None:
        absolute = verifier.startswith("/") and verifier.isprintable()
        if not absolute and not is_hub_id(verifier):
            raise MissingError(
                f"no model {verifier[:100]!r} (`verifier`): expected the folder or the hub id of "
                "the target, or an absolute path on the machine of the server. Correct it"
            )
        if absolute:
            log.info(f"note: no folder {verifier} here: its sizes are not checked")
    elif (family := family_of(folder)) is not None:
        raise DataError(
            f"{verifier} is a head, {family} (`verifier`): expected its target. Name the model "
            "that the head was trained for"
        )
    return folder


def _folder_here(stated: str) -> Path | None:
    """Return the folder of the target that a head names, if it is on this machine."""
    try:
        return local_folder(stated)
    except MissingError:
        return None


def _reason(engine: str, family: str) -> str:
    """Return what the engine takes, and the remedy."""
    if engine == "hf":
        return "expected a draft model, the only drafter of transformers' `generate`. Train one"
    if engine == "vllm" and family == "mlp":
        return "expected eagle3 or medusa, as its V1 runner has no MLP speculator. Train another"
    known = "eagle3 or medusa" if engine == "vllm" else "eagle3"
    return f"expected {known}, the heads that are exported for it. Train one of those"


def _copy_model(folder: Path, draft: str, engine: str, out: Path) -> Exported:
    """Copy the files of a draft model, which every engine takes as transformers writes them."""
    config = read_config(folder)
    if not isinstance(config.get("vocab_size"), int):
        raise DataError(f"neither a head nor a language model ({folder}): expected one of the two")
    names = sorted({path for pattern in OF_A_MODEL for path in folder.glob(pattern)})
    if not any(path.suffix == ".safetensors" for path in names):
        raise DataError(f"no *.safetensors ({folder}): expected the weights of {draft} in them")
    try:
        out.mkdir(parents=True, exist_ok=True)
        for path in names:
            if path.name != "training.json":
                shutil.copyfile(path, out / path.name)
    except OSError as error:
        raise WriteError.of(error, out) from error
    chosen: dict[str, Any] | None = None
    if engine == "vllm":
        chosen = {"method": "draft_model", "model": str(out), "num_speculative_tokens": FALLBACK_K}
        chosen["draft_sample_method"] = "probabilistic"  # its default drafts greedily
    return Exported(out, "model", engine, chosen, tried=engine == "vllm")


Converted = tuple[dict[str, Any], dict[str, Tensor]]


def _eagle3_for_vllm(
    head: Head,
    tensors: Mapping[str, Tensor],
    verifier: str | None,
    target: Mapping[str, Any],
) -> Converted:
    """Return a config of speculators with ascending ids, and the tensors in that order."""
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
    converted = {head.names[parameter]: tensor for parameter, tensor in tensors.items()}
    if listed is not None and list(listed) != sorted(listed):
        if shape.norm_each or shape.norm_all:
            raise DataError(
                f"hidden states {listed} with a norm before fc ({folder}): expected them in "
                "ascending order, which vLLM sorts them to. Train it with such ids"
            )
        name, width = head.names["fc.weight"], shape.target_width
        order = sorted(range(len(listed)), key=lambda i: listed[i])
        columns = converted[name].reshape(-1, len(order), width)
        converted[name] = columns[:, order].flatten(1)
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


def _medusa_for_vllm(
    head: Head,
    tensors: Mapping[str, Tensor],
    verifier: str | None,
    target: Mapping[str, Any],
) -> Converted:
    """Return heads with a row for every token, for vLLM 0.32 loads no truncated ones.

    A token without a row gets that of the last token of the map, which is rare, so that it is
    never likelier than what the head ranks.
    """
    shape, folder, vocab = head.shape, head.files.folder, head.shape.vocab
    if shape.bias:
        raise DataError(
            f"Medusa heads with biases ({folder}): expected blocks without, as `sps train` "
            "writes them. Such heads were never loaded in vLLM"
        )
    ids = tensors.get("token_map")
    converted: dict[str, Tensor] = {}
    for h in range(shape.count):
        for j in range(shape.depth):
            converted[f"blocks.{h}.layers.{j}.weight"] = tensors[f"heads.{h}.blocks.{j}.weight"]
        rows = tensors[f"heads.{h}.lm_head.weight"]
        converted[f"lm_heads.{h}.weight"] = rows if ids is None else spread(rows, ids, vocab or 0)
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


def spread(rows: Tensor, ids: Tensor, vocab: int) -> Tensor:
    """Return [V, d] the rows of the tokens `ids`, and the last of them for all other tokens."""
    if len(ids) != len(rows) or not bool(((ids >= 0) & (ids < vocab)).all()):
        raise DataError(f"token_map of {len(ids)} tokens: expected {len(rows)} below {vocab}")
    whole = rows[-1:].repeat(vocab, 1)
    whole[ids.long()] = rows
    return whole


def _eagle3_for_sglang(
    head: Head,
    tensors: Mapping[str, Tensor],
    verifier: str | None,
    target: Mapping[str, Any],
) -> Converted:
    """Return SpecForge's form, which SGLang documents: ids are those of outputs of layers."""
    shape: Eagle3Shape = head.shape
    folder = head.files.folder
    odd = {
        "a normed residual": shape.normed_residual,
        "a feature that is fed back after its norm": shape.normed_feedback,
        "a norm before fc": shape.norm_each or shape.norm_all,
        "a hidden state before the first layer": min(shape.features) < 1,
        "scaled rotations": bool(shape.layer.rope_scaling),
        "no output layer": not shape.own_head,
    }
    if lacking := [what for what, there in odd.items() if there]:
        raise DataError(
            f"a head with {lacking[0]} ({folder}): expected what SGLang's documentation "
            "describes. Train another"
        )
    layer = shape.layer
    config = {
        **flat_layer(layer),
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": shape.depth,
        "vocab_size": shape.vocab,
        "draft_vocab_size": shape.draft_vocab,
        "target_hidden_size": shape.target_width,
        "norm_before_residual": False,
        "eagle_config": {IDS: [i - 1 for i in shape.features], "use_aux_hidden_state": True},
    }
    stem, word = "stack.0.", "midlayer."
    named = {
        word + name.removeprefix(stem)
        if name.startswith(stem)
        else name.replace("stack.", "layers."): tensor
        for name, tensor in tensors.items()
    }
    log.info("note: SGLang's form follows its documentation, and was never loaded there")
    return config, named


def flat_layer(layer: LayerShape) -> dict[str, Any]:
    """Return the keys of a Llama's config that describe its layers."""
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


def write_head(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], dtype: torch.dtype
) -> None:
    """Write the folder of a head: safetensors, then config.json, whose presence means whole.

    Raises:
        WriteError: the folder could not be written.
    """
    whole = {
        name: tensor.detach().cpu().to(dtype if tensor.is_floating_point() else None).contiguous()
        for name, tensor in tensors.items()
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError.of(error, folder) from error
    replace_file(folder / "model.safetensors", save(whole, {"format": "pt"}))
    named = {**config, "torch_dtype": str(dtype).removeprefix("torch.")}
    replace_file(folder / "config.json", (json.dumps(named, indent=1) + "\n").encode())
