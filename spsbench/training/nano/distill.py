"""The draft model, taught to give the target's law: the loop, and the loss it lowers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from spsbench.training.checkpoint import read
from spsbench.training.loop import pace
from spsbench.training.nano.data import Stream
from spsbench.training.nano.llama import MATRICES, NORMS, Llama, LlamaShape
from spsbench.training.nano.muon import Optimiser
from spsbench.training.nano.pretrain import Run


@dataclass(frozen=True, slots=True)
class Lesson:
    """How the draft is taught; the rate falls to 0 over the last `cooldown` tokens.

    Of each batch a share of `sampled` is text that the target wrote, the rest is corpus. The loss
    is `1 - variation` times KL(q || p) plus `variation` times TV(q, p); one minus the latter is
    the acceptance rate itself (Leviathan et al. 2023, corollary 3.6).
    """

    tokens: int
    cooldown: int
    warmup: int = 0
    batch_tokens: int = 2048
    length: int = 512
    sampled: float = 0.25
    variation: float = 0.5
    rate: float = 4e-3
    decay: float = 0.1
    micro_tokens: int = 1536
    checkpoint_every: int = 100  # steps

    def rate_at(self, tokens: int) -> float:
        """Learning rate of the step that begins after `tokens` tokens."""
        done, left = tokens + self.batch_tokens, self.tokens - tokens
        return self.rate * pace(done, left, self.warmup, self.cooldown)


def divergence(
    hidden: Tensor, embed: Tensor, target_hidden: Tensor, target_embed: Tensor, variation: float
) -> Tensor:
    """The loss [N] of the draft's law p against the target's law q.

    Both laws come from last hidden states, [N, D] and [N, D'], and tied heads, [V, D] and [V, D'].
    """
    log_q = functional.linear(target_hidden, target_embed).log_softmax(-1)  # [N, V]
    log_p = functional.linear(hidden, embed).log_softmax(-1)  # [N, V]
    q = log_q.exp()
    relative = (q * (log_q - log_p)).sum(-1)
    distance = (q - log_p.exp()).abs().sum(-1) / 2
    return (1 - variation) * relative + variation * distance


loss: Callable[..., Tensor] = divergence


def compile_loss() -> None:
    """Let torch.compile fuse the loss, for this process."""
    global loss
    loss = torch.compile(divergence, dynamic=False)


def sliced(target: Llama, layers: tuple[int, ...]) -> Llama:
    """A new draft: the target's embedding, final norm and some of its layers (Sanh et al. 2019).

    Raises:
        ValueError: the target has no such layer.
    """
    depth = target.shape.layers
    if not layers or min(layers) < 0 or max(layers) >= depth:
        raise ValueError(f"layers {layers} are not among the target's {depth}")
    model = Llama(replace(target.shape, layers=len(layers)), torch.Generator().manual_seed(0))
    kept = {*MATRICES, *NORMS}
    weights = target.state_dict().items()
    model.load_state_dict({k: v[list(layers)] if k in kept else v for k, v in weights})
    return model


def load(shape: LlamaShape, lesson: Lesson, path: Path) -> Run:
    """The run that `Run.save` wrote."""
    held = read(path)
    model = Llama(shape, torch.Generator())
    model.load_state_dict(held["model"])
    optimiser = Optimiser(dict(model.named_parameters()), decay=lesson.decay)
    optimiser.state = held["optimiser"]
    return Run(model, optimiser, held["tokens"])


def rows_at(lesson: Lesson, corpus: Stream, sampled: Tensor, index: int) -> list[Tensor]:
    """Batch number `index`: corpus [B, T] and, in turn, the target's own texts [B', S]."""
    own = round(lesson.batch_tokens * lesson.sampled / sampled.shape[1])
    size = round(lesson.batch_tokens * (1 - lesson.sampled) / lesson.length)
    turn = torch.arange(index * own, (index + 1) * own) % len(sampled)
    return [corpus.batch(index, size, lesson.length)[:, :-1], sampled[turn]]


def gradients(draft: Llama, target: Llama, rows: list[Tensor], lesson: Lesson) -> float:
    """Add the gradients of the mean loss over all positions of rows; return the loss.

    A few rows are done at a time, as many as `micro_tokens` hold.
    """
    count = sum(part.numel() for part in rows)
    total = 0.0
    for group in rows:
        for part in torch.split(group, max(1, lesson.micro_tokens // group.shape[1])):
            with torch.no_grad():
                taught = target.hidden(part).flatten(0, 1)
            learnt = draft.hidden(part).flatten(0, 1)
            each = loss(learnt, draft.embed, taught, target.embed.detach(), lesson.variation)
            mean = each.sum() / count
            torch.autograd.backward(mean)
            total += mean.item()
    return total


def teach(
    draft: Llama,
    target: Llama,
    lesson: Lesson,
    corpus: Stream,
    sampled: Tensor,
    checkpoint: Path,
    *,
    until: int | None = None,
    report: Callable[[int, float, float], None] | None = None,
) -> Run:
    """Teach `draft` to the end of the lesson (or to `until` tokens), or go on from the checkpoint.

    `sampled` [N, S] is text of the target. `report` is called after each step with the tokens
    seen, the loss and the seconds it took.
    """
    if checkpoint.exists():
        run = load(draft.shape, lesson, checkpoint)
    else:
        run = Run(draft, Optimiser(dict(draft.named_parameters()), decay=lesson.decay))
    end = lesson.tokens if until is None else until
    steps = 0
    while run.tokens < end:
        began = time.perf_counter()
        rows = rows_at(lesson, corpus, sampled, run.tokens // lesson.batch_tokens)
        value = gradients(run.model, target, rows, lesson)
        run.optimiser.step(lesson.rate_at(run.tokens))
        run.tokens += lesson.batch_tokens
        steps += 1
        if report is not None:
            report(run.tokens, value, time.perf_counter() - began)
        if steps % lesson.checkpoint_every == 0 or run.tokens >= end:
            run.save(checkpoint)
    return run
