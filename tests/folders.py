"""A tiny pair as folders: byte-level tokenizer, random target, and a draft that often agrees."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from tests.oracles.models import tiny
from tests.tongues import of_bytes

END = "<|end|>"
MERGES = ("the cat sat on the mat, the dog ran", "print(x + 1)\n    return the value\n") * 4
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def byte_tokenizer(template: str | None = None) -> PreTrainedTokenizerFast:
    """Every byte is a token, and some words; the end token comes first."""
    return of_bytes(MERGES, 290, lead=END, template=template)


def save(
    folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast | None = None
) -> Path:
    """The model as a folder that can be named on the command line."""
    model.save_pretrained(folder)
    (tokenizer or byte_tokenizer(TEMPLATE)).save_pretrained(folder)
    return folder


def random_model(**options: Any) -> PreTrainedModel:
    """A model over the byte tokenizer's vocabulary, in float32."""
    vocab = len(byte_tokenizer())
    return tiny("llama", vocab=vocab, dtype=torch.float32, **options)


def edit(path: Path, **values: Any) -> None:
    """Change keys of a JSON file; None removes one."""
    content = json.loads(path.read_text()) | values
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))
