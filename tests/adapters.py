"""Adapters of tiny models, as PEFT saves them; and folders with one fault, by `adapters.toml`."""

import shutil
import tomllib
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from spsbench.models.third_party import silence
from tests.folders import edit

FAULTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
LINEAR = ["q_proj", "v_proj"]


def lora(**options: Any) -> LoraConfig:
    return LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": LINEAR} | options)


def base_of(folder: Path, dtype: torch.dtype) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)


def save_adapter(folder: Path, base: Path, config: Any = None, seed: int = 0) -> Path:
    """An adapter of the model in `base`, whose weights are all random."""
    torch.manual_seed(seed)
    with silence():
        model = get_peft_model(base_of(base, torch.float32), config or lora())
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data += 0.1 * torch.randn_like(weight)
    with silence():
        model.save_pretrained(folder)
    return folder


def unmerged(base: Path, adapter: Path, *, dtype: torch.dtype) -> Any:
    return PeftModel.from_pretrained(base_of(base, dtype), adapter).eval()


def faulty_adapters(folder: Path, base: Path) -> Path:
    """A folder with a folder for each of `FAULTS`, and `whole`, which has none."""
    whole = save_adapter(folder / "whole", base)
    for name, fault in FAULTS.items():
        place = Path(shutil.copytree(whole, folder / name))
        edit(place / "adapter_config.json", **fault.get("config", {}))
        path = place / "adapter_model.safetensors"
        tensors = load_file(path)
        for key in fault.get("drop", ()):
            del tensors[f"base_model.model.{key}"]
        for key, shape in fault.get("add", {}).items():
            tensors[f"base_model.model.{key}"] = torch.full(shape, fault.get("value", 0.0))
        save_file(tensors, path)
        for key, text in fault.get("files", {}).items():
            (place / key).write_text(text)
            if not text:
                (place / key).unlink()
    return folder
