"""Tiny models and tokenizers of two families, saved as folders."""

import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tokenizer(*, bos=True, swap=False, merges=True):
    """Byte-level BPE with 256 bytes, 3 merges and 5 special tokens."""
    letters = list(BYTES)
    if swap:
        letters[0], letters[1] = letters[1], letters[0]
    vocab = {letter: i for i, letter in enumerate(letters)}
    pairs = [("t", "h"), ("th", "e"), ("Ġ", "the")]
    for left, right in pairs:
        vocab[left + right] = len(vocab)
    backend = Tokenizer(models.BPE(vocab=vocab, merges=pairs if merges else pairs[:2]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>"]
    backend.add_special_tokens(special)
    if bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
        )
    names = {"eos_token": "</s>"} | ({"bos_token": "<s>"} if bos else {})
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def llama_config(**changes):
    sizes = {
        "vocab_size": 264,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
        "eos_token_id": 260,
        "bos_token_id": 259,
    }
    return LlamaConfig(**(sizes | changes))


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    """A Llama in bfloat16 with a chat template."""
    folder = tmp_path_factory.mktemp("models") / "llama"
    torch.manual_seed(0)
    LlamaForCausalLM(llama_config()).to(torch.bfloat16).save_pretrained(folder)
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory):
    """A GPT-2 in float32, in three shards, whose tokenizer has no BOS."""
    folder = tmp_path_factory.mktemp("models") / "gpt2"
    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=264,
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=64,
        bos_token_id=260,
        eos_token_id=260,
    )
    GPT2LMHeadModel(config).save_pretrained(folder, max_shard_size="15KB")
    make_tokenizer(bos=False).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tokenizer():
    """`tokenizer(bos=..., swap=..., merges=...)`."""
    return make_tokenizer


@pytest.fixture
def broken(llama, tmp_path):
    """A copy of `llama` to break."""
    return Path(shutil.copytree(llama, tmp_path / "broken"))
