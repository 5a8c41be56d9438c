"""The training loop of the target: stages of growing depth and length, resumable at any step."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from spsbench.training.checkpoint import read, write
from spsbench.training.loop import pace
from spsbench.training.nano.data import Stream
from spsbench.training.nano.llama import MATRICES, NORMS, Llama, LlamaShape
from spsbench.training.nano.muon import Optimiser

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stage:
    """A stretch of the run: `steps` batches of `batch_tokens`, cut in sequences of `length`."""

    layers: int
    length: int
    batch_tokens: int
    steps: int

    @property
    def tokens(self) -> int:
        """Tokens of the stage."""
        return self.steps * self.batch_tokens


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole run. The rate rises over `warmup` tokens, stays, and falls to 0 over `cooldown`.

    Depth grows by stacking copies of the layers (Gong et al. 2019, Efficient Training of BERT by
    Progressively Stacking), so most tokens are seen while a token is cheap.
    """

    stages: tuple[Stage, ...]
    warmup: int
    cooldown: int
    rate: float = 8e-3
    decay: float = 0.1
    micro_tokens: int = 1024
    seed: int = 0
    checkpoint_every: int = 50  # steps

    @property
    def tokens(self) -> int:
        """Tokens of all stages."""
        return sum(stage.tokens for stage in self.stages)

    def rate_at(self, tokens: int) -> float:
        """Learning rate of the step that begins after `tokens` tokens."""
        return self.rate * pace(tokens + 4096, self.tokens - tokens, self.warmup, self.cooldown)

    def stage_at(self, tokens: int) -> Stage:
        """The stage of the step that begins after `tokens` tokens.

        Raises:
            ValueError: the run is over by then.
        """
        left = tokens
        for stage in self.stages:
            if left < stage.tokens:
                return stage
            left -= stage.tokens
        raise ValueError(f"{tokens} tokens are not before the end at {self.tokens}")


@dataclass(slots=True)
class Run:
    """What changes while training: the model, the optimiser, the tokens seen."""

    model: Llama
    optimiser: Optimiser
    tokens: int = 0

    def save(self, path: Path) -> None:
        """Write everything to `path`, atomically."""
        held = {"layers": self.model.shape.layers, "tokens": self.tokens}
        state = {"model": self.model.state_dict(), "optimiser": self.optimiser.state}
        write(path, held | state)


def start(shape: LlamaShape, plan: Plan) -> Run:
    """A new run: weights drawn from the plan's seed, as deep as the first stage."""
    shallow = _deep(shape, plan.stages[0].layers)
    model = Llama(shallow, torch.Generator().manual_seed(plan.seed))
    return Run(model, Optimiser(dict(model.named_parameters()), decay=plan.decay))


def resume(shape: LlamaShape, plan: Plan, path: Path) -> Run:
    """The run that `Run.save` wrote."""
    held = read(path)
    model = Llama(_deep(shape, held["layers"]), torch.Generator().manual_seed(plan.seed))
    model.load_state_dict(held["model"])
    optimiser = Optimiser(dict(model.named_parameters()), decay=plan.decay)
    optimiser.state = held["optimiser"]
    return Run(model, optimiser, held["tokens"])


def grow(run: Run, layers: int, plan: Plan) -> Run:
    """The same run with its layers, and their moments, repeated until there are `layers`."""
    old = run.model.shape.layers
    source = torch.arange(layers) % old
    model = Llama(_deep(run.model.shape, layers), torch.Generator().manual_seed(plan.seed))
    stacked = {*MATRICES, *NORMS}
    model.load_state_dict(
        {k: v[source] if k in stacked else v for k, v in run.model.state_dict().items()}
    )
    optimiser = Optimiser(dict(model.named_parameters()), decay=plan.decay)
    optimiser.state = {
        k: v[source] if k.split(".")[0] in stacked else v for k, v in run.optimiser.state.items()
    }
    return Run(model, optimiser, run.tokens)


def gradients(model: Llama, batch: Tensor, micro_tokens: int) -> float:
    """Add the gradients of the mean loss of batch [B, T + 1], a few rows at a time; the loss.

    Micro-batches keep activations in the cache; their losses and gradients add up to the batch's.
    """
    rows = max(1, micro_tokens // (batch.shape[1] - 1))
    total = 0.0
    for part in torch.split(batch, rows):
        loss = model.losses(part).sum() / (batch.shape[0] * (batch.shape[1] - 1))
        torch.autograd.backward(loss)
        total += loss.item()
    return total


def train(
    shape: LlamaShape,
    plan: Plan,
    stream: Stream,
    checkpoint: Path,
    *,
    until: int | None = None,
    report: Callable[[int, float, float], None] | None = None,
) -> Run:
    """Train to the end of the plan (or to `until` tokens), from the checkpoint if there is one.

    `report` is called after each step with the tokens seen, the loss in nats a token and seconds.
    """
    run = resume(shape, plan, checkpoint) if checkpoint.exists() else start(shape, plan)
    end = plan.tokens if until is None else until
    steps = 0
    while run.tokens < end:
        began = time.perf_counter()
        stage = plan.stage_at(run.tokens)
        if stage.layers != run.model.shape.layers:
            run = grow(run, stage.layers, plan)
            log.info("grew to %d layers", stage.layers)
        index = run.tokens // stage.batch_tokens
        batch = stream.batch(index, stage.batch_tokens // stage.length, stage.length)
        loss = gradients(run.model, batch, plan.micro_tokens)
        run.optimiser.step(plan.rate_at(run.tokens))
        run.tokens += stage.batch_tokens
        steps += 1
        if report is not None:
            report(run.tokens, loss, time.perf_counter() - began)
        if steps % plan.checkpoint_every == 0 or run.tokens >= end:
            run.save(checkpoint)
    return run


def _deep(shape: LlamaShape, layers: int) -> LlamaShape:
    """`shape` with another number of layers."""
    return LlamaShape(layers, shape.width, shape.hidden, shape.heads, shape.vocab, shape.context)
