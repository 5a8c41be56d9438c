"""A tiny pair as folders: byte-level tokenizer, random target, and a draft that often agrees."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers import models as tokenizer_models
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from tests.oracles.models import tiny

END = "<|end|>"
MERGES = ("the cat sat on the mat, the dog ran", "print(x + 1)\n    return the value\n") * 4
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def byte_tokenizer(template: str | None = None) -> PreTrainedTokenizerFast:
    """Every byte is a token, and some words; the end token comes first."""
    raw = Tokenizer(tokenizer_models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=290, initial_alphabet=alphabet, special_tokens=[END], show_progress=False
    )
    raw.train_from_iterator(MERGES, trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token=END, bos_token=END)
    made.chat_template = template
    return made


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
