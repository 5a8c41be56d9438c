"""Tiny random targets whose files have prediction layers, written as released files are.

The reference is transformers' own `MtpModel`, which its loader finds by the layer numbers of the
released sizes: it is led to the tiny model's.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_layers import MtpModel

from spsbench.engines.session.recurrent import register_states
from spsbench.models.third_party import silence
from tests.oracles.models import NO_IDS, SIZES, UNBOUND

USUAL = {**SIZES, **NO_IDS, **UNBOUND, "max_position_embeddings": 512}


def merged(parts: Sequence[str]) -> dict[str, Any]:
    """Return what the parts of a config say, the last first."""
    return {key: value for name in parts for key, value in TABLE["parts"][name].items()}


TABLE = json.loads(Path(__file__).with_suffix(".json").read_text())
FULL = ["full_attention"]
KINDS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    kind: (row["layout"], {**merged(row["parts"]), **row.get("own", {})})
    for kind, row in TABLE["kinds"].items()
}
"""Kind of target -> whose names its files have, and what its tiny config says beside the sizes."""

LAYOUTS = TABLE["layouts"]
"""Layout -> where the layer is, where its projection and norms are, and their names."""


def released(
    folder: Path,
    kind: str,
    *,
    vocab: int = 24,
    dtype: torch.dtype = torch.float32,
    scale: float = 3.0,
    count: int = 1,
    layout: str | None = None,
    plant: bool = True,
    **more: Any,
) -> PreTrainedModel:
    """Write a target with `count` prediction layers, copies of its last in shape; return it.

    Weights are `scale` times wider than usual, so that probabilities are peaked.
    """
    usual, told = KINDS[kind]
    config = AutoConfig.for_model(kind, **{"vocab_size": vocab, **USUAL, **told, **more})
    with torch.random.fork_rng(), silence():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        for name, weight in model.named_parameters():
            drawn(name, weight.data, scale)
        model.to(dtype).save_pretrained(folder)
        (path,) = folder.glob("*.safetensors")
        tensors = load_file(path)
        if plant:
            for k in range(count):
                tensors |= layer(tensors, model, layout or usual, k, scale)
        save_file(tensors, path, metadata={"format": "pt"})
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    model.config.get_text_config()._experts_implementation = "eager"  # which takes float64, too
    register_states(model)
    return model.eval().requires_grad_(False)


def drawn(name: str, weight: Tensor, scale: float) -> None:
    """Fill a weight: norms near what they are, others normal, embeddings and heads narrower."""
    if weight.ndim > 1:
        narrow = 1.0 if "lm_head" in name or "embed_tokens" in name else scale
        weight.normal_(std=narrow / weight.shape[-1] ** 0.5)
    elif "norm" in name:
        weight.add_(torch.randn_like(weight) * 0.3)


def layer(
    tensors: Mapping[str, Tensor], model: PreTrainedModel, layout: str, k: int, scale: float
) -> dict[str, Tensor]:
    """Return the tensors of prediction layer `k`, in the shapes of the target's last layer."""
    text = model.config.get_text_config()
    n, width = text.num_hidden_layers, text.hidden_size
    last = f"layers.{n - 1}."
    at, beside = (LAYOUTS[layout][part].format(n=n + k, k=k) for part in ("layer", "beside"))
    names = LAYOUTS[layout]["names"]
    made = {
        at + name.split(last)[1]: tensor.clone()
        for name, tensor in tensors.items()
        if last in name and not name.startswith(("mtp.", "model.mtp"))
    }
    some = next(iter(tensors.values()))
    made[f"{beside}{names[0]}.weight"] = some.new_empty(width, 2 * width)
    norms = [*names[1:], *filter(None, [LAYOUTS[layout].get("last")])]
    whole = model.get_decoder().norm.weight
    for name in norms:
        made[f"{beside}{name}.weight"] = torch.full_like(whole, float(type_weight(model)))
    for name, tensor in made.items():
        drawn("norm" if "norm" in name else name, tensor, scale)
    if layout == "nextn":
        made[f"{beside}shared_head.head.weight"] = tensors["lm_head.weight"].clone()
        made[f"{beside}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    return made


def type_weight(model: PreTrainedModel) -> float:
    """The weight that a new norm of the model's class has: 0 where it counts from zero."""
    return float(type(model.get_decoder().norm)(2).weight[0])


def reference(folder: Path, model: PreTrainedModel, count: int = 1) -> MtpModel:
    """transformers' own prediction layers over `model`, from its files."""
    text = model.config.get_text_config()
    n = text.num_hidden_layers
    model.config.name_or_path = model.config._name_or_path = str(folder)
    text.num_mtp_layers = count
    for kinds, usual in (("layer_types", FULL), ("mlp_layer_types", ["sparse"])):
        if getattr(text, kinds, None) and len(getattr(text, f"mtp_{kinds}", None) or ()) != count:
            setattr(text, f"mtp_{kinds}", usual * count)
    named = [rf"model\.layers\.{i}\..*" for i in range(n, n + count)]
    named = named if KINDS[text.model_type][0] == "nextn" else [r"^mtp.*"]
    model._keys_to_ignore_on_load_unexpected = named
    with silence():
        made = MtpModel.from_pretrained(model).eval().to(model.dtype)
    made.config._experts_implementation = "eager"
    return made


class Wide(TorchFunctionMode):
    """Keeps float64 where transformers computes in float32, so that a walk has one law."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if any(isinstance(x, Tensor) and x.dtype == torch.float64 for x in args):
            if func is Tensor.float:
                return args[0]
            args = tuple(torch.float64 if x is torch.float32 else x for x in args)
            if kwargs.get("dtype") is torch.float32:
                kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


@contextmanager
def wide() -> Iterator[None]:
    """Compute in float64 throughout."""
    with Wide():
        yield
