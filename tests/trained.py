"""A tiny pair that behaves as trained models do where random weights do not.

Outlier channels a hundred times wider than the rest, a first token that takes most of the
attention, logits of tens, special tokens at the lowest ids, a chat template, and texts that end.
About 200 kB, made in a moment.
"""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.tongues import of_bytes

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CORPUS = ("the cat sat on the mat and the dog ran", "def add(a, b):\n    return a + b\n") * 8
TEMPLATE = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are terse.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
OUTLIERS = (3, 29)
WIDTH, LAYERS = 48, 3


def tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """Byte-level, with special tokens at 0, 1 and 2."""
    made = of_bytes(CORPUS, 300, *SPECIAL[1:], lead=SPECIAL[0], template=template)
    made.pad_token = SPECIAL[2]
    return made


def model(noise: float = 0.0, seed: int = 0) -> LlamaForCausalLM:
    """In float32; with `noise` a draft that often agrees."""
    names = tokenizer()
    config = LlamaConfig(
        vocab_size=len(names),
        hidden_size=WIDTH,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=names.bos_token_id,
        eos_token_id=names.eos_token_id,
        tie_word_embeddings=True,
    )
    draw = torch.Generator().manual_seed(seed)

    def normal(weight: torch.Tensor, scale: float) -> None:
        weight.copy_(torch.randn(weight.shape, generator=draw) * scale)

    with torch.random.fork_rng(), torch.no_grad():
        made = LlamaForCausalLM(config)
        for name, weight in made.named_parameters():
            if weight.dim() == 1:
                weight.copy_(torch.exp(0.3 * torch.randn(weight.shape, generator=draw)))
                weight[list(OUTLIERS)] *= 8
            else:
                normal(weight, (3.0 if "q_proj" in name else 1.5) / weight.shape[-1] ** 0.5)
        embedding = made.model.embed_tokens.weight
        normal(embedding, 1.0)
        embedding[:, list(OUTLIERS)] *= 0.1  # the head must not read what the outliers shout
        made.model.layers[1].mlp.down_proj.weight[list(OUTLIERS)] *= 100
        made.model.norm.weight.mul_(2.0)
        made.model.norm.weight[list(OUTLIERS)] = 0.01
        if noise:
            for weight in made.parameters():
                if weight.dim() > 1:
                    normal_part = torch.randn(weight.shape, generator=draw)
                    weight.add_(normal_part * weight.abs().median() * noise)
    return made.eval().requires_grad_(False)


def save(folder: Path, made: LlamaForCausalLM) -> Path:
    """As a folder with tokenizer and chat template."""
    made.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder
