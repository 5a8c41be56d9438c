"""The target: a Llama of transformers, trained in stages of growing depth and length by Muon."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from nano.corpus import Stream
from spsbench.extensions.training.folder import newest, save
from spsbench.extensions.training.loop import pace

log = logging.getLogger("nano")

MICRO_TOKENS = 2048  # tokens at a time: activations stay in the processor's cache
KEEP_EVERY = 50  # steps
LOG_EVERY = 10
RATE = 6e-3


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a Llama with tied embeddings; only the number of layers changes while it trains."""

    width: int = 192
    hidden: int = 512
    heads: int = 6
    vocab: int = 4096
    context: int = 2048

    def llama(self, layers: int) -> LlamaForCausalLM:
        """Make a model in float32, its weights drawn from torch's own generator."""
        config = LlamaConfig(
            vocab_size=self.vocab,
            hidden_size=self.width,
            intermediate_size=self.hidden,
            num_hidden_layers=layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.heads,
            max_position_embeddings=self.context,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
            tie_word_embeddings=True,
            initializer_range=0.03,
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=None,
        )
        model = LlamaForCausalLM(config)
        model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=0)
        return model.float()


@dataclass(frozen=True, slots=True)
class Stage:
    """A stretch of the training: `steps` batches of `batch_tokens`, in sequences of `length`."""

    layers: int
    length: int
    batch_tokens: int
    steps: int


def train(shape: Shape, stages: Sequence[Stage], stream: Stream, folder: Path) -> LlamaForCausalLM:
    """Train a target to the end of the stages, from the newest checkpoint in `folder`, if any.

    The learning rate rises over the first 1 % of all tokens, stays, and falls to 0 over the last
    28 %.
    """
    torch.manual_seed(stream.seed)
    model = shape.llama(stages[0].layers)
    optimisers = make_optimisers(model)
    first = 0
    if checkpoint := newest(folder):
        first = checkpoint["step"]
        model = shape.llama(checkpoint["layers"])
        model.load_state_dict(checkpoint["model"])
        optimisers = make_optimisers(model)
        for optimiser, state in zip(optimisers, checkpoint["optimisers"], strict=True):
            optimiser.load_state_dict(state)
    total = sum(stage.steps * stage.batch_tokens for stage in stages)
    steps = [stage for stage in stages for _ in range(stage.steps)]
    seen = sum(stage.batch_tokens for stage in steps[:first])
    for step, stage in enumerate(steps):
        if step < first:
            continue
        began = time.perf_counter()
        if stage.layers != model.config.num_hidden_layers:
            model = grow(model, shape, stage.layers)
            optimisers = make_optimisers(model)
            log.info("grew to %d layers", stage.layers)
        now = seen + stage.batch_tokens
        for optimiser in optimisers:
            for group in optimiser.param_groups:
                group["lr"] = RATE * pace(now, total - seen, 0.01 * total, 0.28 * total)
        size = stage.batch_tokens // stage.length
        batch = stream.batch(seen // stage.batch_tokens, size, stage.length)
        loss = add_gradients(model, batch)
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
        seen = now
        if step % LOG_EVERY == 0:
            speed = stage.batch_tokens / (time.perf_counter() - began)
            log.info("step %d of %d  loss %.3f  %.0f tokens/s", step, len(steps), loss, speed)
        if (step + 1) % KEEP_EVERY == 0 or step + 1 == len(steps):
            state = [optimiser.state_dict() for optimiser in optimisers]
            checkpoint = {"step": step + 1, "layers": stage.layers, "model": model.state_dict()}
            save(folder, step + 1, checkpoint | {"optimisers": state})
    return model


def make_optimisers(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices of the layers, AdamW for the embedding and the norms.

    Updates of Muon are scaled to the root mean square of AdamW's (Liu et al. 2025, Muon is scalable
    for LLM training, section 2.2), so one learning rate serves both.
    """
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    for name, weight in model.named_parameters():
        (matrices if "layers" in name and weight.ndim == 2 else others).append(weight)
    return [
        torch.optim.Muon(matrices, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0),
    ]


def grow(model: LlamaForCausalLM, shape: Shape, layers: int) -> LlamaForCausalLM:
    """Return a deeper model: the layers repeated until there are `layers` (Gong et al. 2019)."""
    old, weights = model.config.num_hidden_layers, model.state_dict()
    deeper = shape.llama(layers)

    def source(name: str) -> str:
        return re.sub(r"(?<=layers\.)\d+", lambda number: str(int(number[0]) % old), name)

    deeper.load_state_dict({name: weights[source(name)] for name in deeper.state_dict()})
    return deeper


def add_gradients(model: LlamaForCausalLM, batch: Tensor) -> float:
    """Add the gradients of the mean loss of batch [B, T + 1], a few rows at a time; return it."""
    count, total = batch[:, 1:].numel(), 0.0
    for rows in torch.split(batch, max(1, MICRO_TOKENS // (batch.shape[1] - 1))):
        logits = model(input_ids=rows[:, :-1], use_cache=False).logits
        loss = cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="sum") / count
        torch.autograd.backward(loss)
        total += loss.item()
    return total


def export(model: LlamaForCausalLM, tokenizer: Any, folder: Path) -> None:
    """Write configuration, weights in bfloat16 and tokenizer to `folder`."""
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
