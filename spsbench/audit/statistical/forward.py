"""Logits of a text from one plain forward pass: no cache, no blocks, float32.

The code is independent of the engines. Models that keep states are fed one token at a time after
the prompt, over transformers' own cache: their passes over many tokens may score otherwise. If
memory allows, transformers reads the model again from its folder; else the loaded model is used: an
engine's packed layers are unpacked, and each block of layers is converted to float32 (lossless).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from spsbench.audit.statistical.betting import Floats
from spsbench.audit.statistical.processed import process_logits
from spsbench.engines.linear_layers import StandIn
from spsbench.engines.quantization.layers import dequantise, format_of
from spsbench.engines.session.states import keeps_states, one_by_one
from spsbench.methods.processors import processors_of
from spsbench.models.adapters import adapter_of, merge_adapters
from spsbench.models.cache import Loaded
from spsbench.models.devices import free_bytes
from spsbench.models.source import quantise_linears
from spsbench.models.third_party import silence
from spsbench.settings.cell import Cell
from spsbench.settings.processors import Processors

PRECISE = (torch.float32, torch.float64)
SHARE = 0.4  # share of the free memory available to a copy


class Scorer:
    """Scorer of texts with `model`, which was loaded for the run, independent of any engine.

    Logits beyond `vocab_size` are padding. `processors` are those under which the texts were drawn
    (None: none). `reload`: the weights are loaded again, not shared, if memory allows.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        vocab_size: int,
        processors: Processors | None = None,
        *,
        reload: bool = True,
    ) -> None:
        self.model = (reload_in_float32(model) if reload else None) or model
        self.vocab_size, self.processors = vocab_size, processors
        context = model.config.get_text_config()
        self.limit: int | None = getattr(context, "max_position_embeddings", None)

    @classmethod
    def shared(cls, cell: Cell, loaded: Loaded) -> Self:
        """Return the scorer of texts of `cell` over the loaded weights of its target."""
        return cls(loaded.target, loaded.vocab_size, processors_of(cell, loaded), reload=False)

    def logits(self, prompt: Sequence[int], tokens: Sequence[int]) -> Floats:
        """Return [n, V] logits of each of `tokens`, given all before; fewer if the context ends.

        They are under the processors, with any in float64; [0, V]: no tokens, or too long a prompt.
        """
        text = [*prompt, *tokens[:-1]] if tokens else []
        text = text[: self.limit]
        keep = len(text) - len(prompt) + 1
        if not tokens or keep <= 0:
            return np.zeros((0, self.vocab_size))
        with precise(self.model):
            rows = score_plainly(self.model, text, keep)
        return self.processed(rows, text, len(prompt))

    def processed(self, rows: Tensor, text: Sequence[int], start: int) -> Floats:
        """Return [n, V] logits after each of the last n tokens of `text`, under the processors.

        `rows` [n, V + padding] are the model's there, `start` is the number of prompt tokens.
        """
        ends = range(len(text) - len(rows) + 1, len(text) + 1)
        logits = rows[:, : self.vocab_size].numpy()
        return process_logits(logits, (text[:end] for end in ends), start, self.processors)


@torch.inference_mode()
def score_plainly(model: PreTrainedModel, text: Sequence[int], keep: int) -> Tensor:
    """Return [keep, V] float32 or 64 logits after each of the last `keep` > 0 tokens, on the host.

    Models with states read all tokens before these in one pass: begin at the prompt's last.
    """
    if keeps_states(model.config):
        rows = one_by_one(model, text, keep, prefill=len(text) - keep)
    else:
        ids = torch.tensor([list(text)], device=model.device)
        rows = model(input_ids=ids, use_cache=False, logits_to_keep=keep).logits[0, -keep:]
    return (rows if rows.dtype == torch.float64 else rows.float()).cpu()


def reload_in_float32(model: PreTrainedModel) -> PreTrainedModel | None:
    """Load the model again from its folder to its device, in float32 (one of float64: in float64).

    An adapter is merged, linear layers are quantised as the engine did, and weights are rounded to
    the model's dtype before they are widened: rounding is part of the target. None: no safetensors,
    weights quantised on disk, too little memory, or no eager code of transformers' own.
    """
    folder = Path(str(model.config.name_or_path))
    plain_files = folder.is_dir() and any(folder.glob("*.safetensors"))
    quantised = getattr(model.config, "quantization_config", None) is not None
    need, adapter = 4 * int(model.num_parameters()), adapter_of(model)
    if not plain_files or quantised or need >= SHARE * free_bytes(model.device):
        return None
    try:
        with silence():
            copy = AutoModelForCausalLM.from_pretrained(
                folder,
                local_files_only=True,
                use_safetensors=True,
                dtype=torch.float32 if adapter else model.dtype,
                attn_implementation="eager",
            )
    except (OSError, ValueError):  # custom code, or no eager attention: share the model
        return None
    # First in the dtype of the run: rounding the weights is part of the target.
    merge_adapters(copy, adapter, model.dtype)
    if (name := format_of(model)) is not None:
        quantise_linears(copy, name, folder)
        dequantise(copy)
    wide = torch.float64 if model.dtype == torch.float64 else torch.float32
    independent: PreTrainedModel = copy.to(wide).to(model.device).eval().requires_grad_(False)
    return independent


def _compute_as_stock(module: StandIn, wide: bool, *inputs: Any, **options: Any) -> Any:
    """Return what the stock layer of a packed one computes, in float32 if `wide`."""
    stock = deepcopy(module)  # the copy of a stand-in is the stock layer
    return (stock.float() if wide else stock)(*inputs, **options)


@contextmanager
def precise(model: PreTrainedModel) -> Iterator[None]:
    """Run `model` in this block in stock layers and in float32; it is left as it was.

    Layers that an engine packed compute as stock ones. Weights of a narrower dtype are widened, in
    blocks of layers while each of them runs, and elsewhere for the whole time.
    """
    narrow = model.dtype not in PRECISE
    blocks = list(_blocks(model)) if narrow else []
    of_blocks = [_narrow_weights(block) for block in blocks]
    inside = {id(weight) for weights in of_blocks for weight in weights}
    outside = [w for w in _narrow_weights(model) if id(w) not in inside] if narrow else []
    handles, narrow_data = [], list[Tensor]()
    for block, weights in zip(blocks, of_blocks, strict=True):
        kept = list[Tensor]()
        handles += [
            block.register_forward_pre_hook(partial(_widen_in_place, weights, kept)),
            block.register_forward_hook(partial(_narrow, weights, kept), always_call=True),
        ]
    _widen_in_place(outside, narrow_data)
    packed = [module for module in model.modules() if isinstance(module, StandIn)]
    for module in packed:
        vars(module)["forward"] = partial(_compute_as_stock, module, narrow)
    try:
        yield
    finally:
        for module in packed:
            del vars(module)["forward"]
        _narrow(outside, narrow_data)
        for handle in handles:
            handle.remove()


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the blocks of layers; mixers of states read weights of their layers themselves."""
    for child in module.children():
        if isinstance(module, nn.ModuleList):
            yield child
        else:
            yield from _blocks(child)


def _narrow_weights(module: nn.Module) -> list[nn.Parameter]:
    """Return all floating-point weights to widen, but for packed ones, widened as unpacked."""
    return [
        weight
        for part in module.modules()
        if not isinstance(part, StandIn)
        for weight in part.parameters(recurse=False)
        if weight.dtype not in PRECISE and weight.is_floating_point()
    ]


def _widen_in_place(weights: list[nn.Parameter], kept: list[Tensor], *call: Any) -> None:
    kept[:] = [weight.data for weight in weights]
    for weight in weights:
        weight.data = weight.data.float()


def _narrow(weights: list[nn.Parameter], kept: list[Tensor], *call: Any) -> None:
    for weight, data in zip(weights, kept, strict=bool(kept)):
        weight.data = data
    kept.clear()
