"""Adapters merged into the weights of a loaded model by PEFT: in float32, and rounded once."""

import logging
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel

from spsbench.checkpoints.adapters import Adapter, read_adapters
from spsbench.checkpoints.weights import read_headers
from spsbench.heads.files import load_pickle
from spsbench.models.third_party import silence, translate_errors

log = logging.getLogger(__name__)


def adapter_of(model: PreTrainedModel) -> str:
    """Return what was merged into `model`, as a user names it; empty: nothing."""
    return str(getattr(model, "merged_adapter", ""))


@torch.no_grad()
def merge_adapters(model: PreTrainedModel, text: str, dtype: torch.dtype) -> None:
    """Merge what `text` names into `model` in place, then round all weights to `dtype`.

    `text` is as for `read_adapters`, and pickles in it are allowed; empty changes nothing. `model`
    is on the CPU, its weights as they are stored or wider. Changes of several adapters add up. A
    head tied to embeddings gets weights of its own if one of the two is changed. Gradients are
    switched off, and `text` its `merged_adapter`. An adapter that names another base is
    noted. SpsError: an adapter is damaged, or its tensors do not fit.
    """
    adapters = read_adapters(text, allow_pickle=True)
    if not adapters:
        return
    for adapter in adapters:
        base, folder = Path(adapter.base), Path(model.config.name_or_path)
        names = [base.name.lower(), folder.name.lower()]
        if names[0] not in str(folder).lower() and names[1] not in adapter.base.lower():
            log.info(f"note: {adapter.folder} is an adapter of {base}, by its own words")
        with translate_errors("the adapter", adapter.folder), silence():
            _merge(adapter, model)
    for weight in model.parameters():
        weight.data = weight.data.to(dtype)
        weight.requires_grad_(False)
    model.config.dtype, model.merged_adapter = dtype, text


def _merge(adapter: Adapter, model: PreTrainedModel) -> None:
    """Merge an adapter, times its factor, into `model` in place, a changed tied head untied.

    DataError: a tensor is missing, has no use, or has another shape.
    """
    from peft import PeftConfig, PeftModel, get_peft_model_state_dict

    is_safe = adapter.file.suffix == ".safetensors"
    names = {*(read_headers([adapter.file]) if is_safe else load_pickle(adapter.file, "meta"))}
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    shared = {name for name, module in model.named_modules() if module in (head, embeddings)}
    changes = any(f".{module}." in name for name in names for module in shared)
    if changes and head is not None and head.weight is embeddings.weight:
        head.weight = nn.Parameter(head.weight.clone(), requires_grad=False)
        model.config.get_text_config().tie_word_embeddings = False
    wrapped = PeftModel(model, PeftConfig.from_pretrained(adapter.folder, inference_mode=True))
    try:
        unused = wrapped.load_adapter(adapter.folder, "default").unexpected_keys
    except RuntimeError as error:
        what = str(error).strip().rpartition("\n")[2].strip().rstrip(".")
        raise adapter.error(what, "an adapter of this base, in its own vocabulary") from error
    missing = get_peft_model_state_dict(wrapped, save_embedding_layers=False).keys() - names
    for what, keys in (("lacks", missing), ("has no use for", unused)):
        if keys:
            raise adapter.error(f"it {what} {min(keys)}", "the tensors of all that it adapts")
    for module in wrapped.modules():
        if adapter.factor != 1 and hasattr(module, "scale_layer"):
            module.scale_layer(adapter.factor)
    wrapped.merge_and_unload(safe_merge=True)
