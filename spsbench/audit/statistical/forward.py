"""Logits of a text from one plain forward pass: no cache, no blocks, float32.

The code is independent of the engines. Models that keep states are fed one token at a time after
the prompt, over transformers' own cache: their passes over many tokens may have another law. If
memory allows, transformers reads the model again from its folder; else the loaded model is used, or
a copy with stock layers where an engine packed them, and each layer is converted to float32 while
it runs, which is lossless.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from spsbench.audit.statistical.betting import Floats
from spsbench.engines.linear_layers import StandIn
from spsbench.engines.quantization.layers import dequantise, format_of
from spsbench.engines.session.states import keeps_states, one_by_one
from spsbench.errors import DataError
from spsbench.models.devices import free_bytes
from spsbench.models.source import rounded
from spsbench.models.third_party import silent

PRECISE = (torch.float32, torch.float64)
SHARE = 0.4  # share of the free memory available to a copy


class Scorer:
    """Scorer of texts with `model`, independent of any engine.

    Args:
        model: the model loaded for the run.
        vocab_size: number of tokens; further logits are padding.
        reload: load the weights again instead of sharing them, if memory allows.
    """

    def __init__(self, model: PreTrainedModel, vocab_size: int, *, reload: bool = True) -> None:
        self.model = (again(model) if reload else None) or stock(model)
        self.vocab_size = vocab_size
        context = model.config.get_text_config()
        self.limit: int | None = getattr(context, "max_position_embeddings", None)

    def logits(self, prompt: Sequence[int], tokens: Sequence[int]) -> Floats:
        """Return [n, V] logits of each of `tokens`, given all before; fewer if the context ends."""
        text = [*prompt, *tokens[:-1]] if tokens else []
        text = text[: self.limit]
        keep = len(text) - len(prompt) + 1
        if not tokens or keep <= 0:
            return np.zeros((0, self.vocab_size))
        with precise(self.model):
            return plain(self.model, text, keep)[:, : self.vocab_size].numpy()


@torch.inference_mode()
def plain(model: PreTrainedModel, text: Sequence[int], keep: int) -> Tensor:
    """Return [keep, V] logits after each of the last `keep` tokens of `text`, on the host.

    The first of them is the last token of the prompt.
    """
    if keeps_states(model.config):
        rows = one_by_one(model, text, keep, prefill=len(text) - keep)
    else:
        ids = torch.tensor([list(text)], device=model.device)
        out = model(input_ids=ids, use_cache=False, logits_to_keep=keep)
        rows = out.logits[0, -keep:]
    return (rows if rows.dtype == torch.float64 else rows.float()).cpu()


def again(model: PreTrainedModel) -> PreTrainedModel | None:
    """Load the model again in float32; None without a folder, or without enough memory."""
    folder = Path(str(model.config.name_or_path))
    plain_files = folder.is_dir() and any(folder.glob("*.safetensors"))
    quantised = getattr(model.config, "quantization_config", None) is not None
    if not plain_files or quantised or not fits(model):
        return None
    try:
        with silent():
            copy = AutoModelForCausalLM.from_pretrained(
                folder,
                local_files_only=True,
                use_safetensors=True,
                dtype=model.dtype,
                attn_implementation="eager",
            )
    except (OSError, ValueError):  # custom code, or no eager attention: share the model
        return None
    # First in the dtype of the run: rounding the weights is part of the target.
    if (name := format_of(model)) is not None:
        rounded(copy, name, folder)
        dequantise(copy)
    wide = torch.float64 if model.dtype == torch.float64 else torch.float32
    independent: PreTrainedModel = copy.to(wide).to(model.device).eval().requires_grad_(False)
    return independent


def is_packed(model: PreTrainedModel) -> bool:
    """Return whether an engine replaced layers of `model`, so that its pass is the engine's."""
    return any(isinstance(module, StandIn) for module in model.modules())


def stock(model: PreTrainedModel) -> PreTrainedModel:
    """Return `model`, or a copy with stock layers where its own are packed and memory allows."""
    return deepcopy(model) if is_packed(model) and fits(model) else model


def fits(model: PreTrainedModel, share: float = SHARE) -> bool:
    """Return whether a float32 copy takes no more than `share` of the free memory."""
    need = 4 * int(model.num_parameters())
    return need < share * free_bytes(model.device)


@contextmanager
def precise(model: PreTrainedModel) -> Iterator[None]:
    """Run `model` in float32, one module at a time; float32 models run unchanged."""
    if model.dtype in PRECISE:
        yield
        return
    if keeps_states(model.config):  # its mixers read weights of their parts themselves
        if not fits(model, share=1):
            raise DataError(
                f"an audit of {model.dtype} weights of a model with states: expected room for a "
                "copy in float32. Choose `dtype` float32, or a machine with more memory"
            )
        kept = {name: weight.data for name, weight in model.named_parameters()}
        try:
            for weight in model.parameters():
                weight.data = weight.data.float()
            yield
        finally:
            for name, narrow in kept.items():
                model.get_parameter(name).data = narrow
        return
    handles = []
    for module in model.modules():
        if any(p.dtype not in PRECISE for p in module.parameters(recurse=False)):
            handles.append(module.register_forward_pre_hook(_widen))
            handles.append(module.register_forward_hook(_narrow, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


_KEPT = "_audit_narrow"


def _widen(module: nn.Module, inputs: Any) -> None:
    kept = {}
    for name, parameter in module.named_parameters(recurse=False):
        if parameter.dtype not in PRECISE and parameter.is_floating_point():
            kept[name] = parameter.data
            parameter.data = parameter.data.float()
    object.__setattr__(module, _KEPT, kept)


def _narrow(module: nn.Module, inputs: Any, output: Any) -> None:
    for name, narrow in getattr(module, _KEPT, {}).items():
        getattr(module, name).data = narrow
    object.__setattr__(module, _KEPT, {})
