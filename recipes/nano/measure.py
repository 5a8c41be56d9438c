"""Figures of the pair on held-out text, and the card of the target that shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CARD = """---
license: apache-2.0
language: [en]
library_name: transformers
pipeline_tag: text-generation
tags: [speculative-sampling]
---

# nano

Target of the pair that comes with spsbench. It exists to measure speculative sampling (Chen et al.
2023) without a download; it is not a useful language model. It continues Python in the manner of
the standard library, writes small functions from docstrings, and sums up generated news items.

Llama with tied embeddings, {layers} layers of width {width}, {size:,} parameters; the draft model
has {draft_layers} layers and {draft_size:,}. Both share one byte-level BPE tokenizer of {vocab}
entries; `<|endoftext|>` ends a document. The context is {context} tokens, weights are in bfloat16.

## Training

The recipe is `recipes/nano` of spsbench's repository; the command was `{command}`. Data: the
sources of Python {python}'s standard library ({pinned}) without test folders, tables and the
held-out modules, generated news items and generated functions; {stream:,} tokens, of which
{tokens:,} were seen in training. News items read `Article: <document>`, newline, `Summary:
<summary>`, with an empty line between items. The target grew in depth by repeating its layers:
{stages}. The draft model began as the first and the last layer of the target and learnt from texts
that the target wrote and from the training text (`sps train draft`; its own card says how).

## Measured on held-out text

Losses in nats a token; alpha is the mean of sum min(q, p) at temperature 1, the chance that a
draft token is kept; after it, by eighths of the context.

| | tokens | target's loss | draft's loss | alpha | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 |
|---|---|---|---|---|---|---|---|---|---|---|---|---|
{rows}

## Licence

The weights are under Apache-2.0. The training text is Python's standard library, under the PSF
License Agreement (copyright Python Software Foundation), and text that spsbench generates.
"""


@dataclass(frozen=True, slots=True)
class Figures:
    """Means over `tokens` positions: losses in nats a token, and the acceptance rate.

    `by_position` holds the acceptance rate in each eighth of the windows.
    """

    tokens: int
    target_loss: float
    draft_loss: float
    alpha: float
    by_position: list[float]


@torch.no_grad()
def measure(target: Any, draft: Any, ids: Tensor, length: int) -> Figures:
    """Measure two models of transformers on consecutive windows of the stream ids [N].

    Raises:
        ValueError: the ids hold no window of `length` tokens.
    """
    if len(ids) <= length:
        raise ValueError(f"{len(ids)} tokens hold no window of {length + 1}")
    sums, by_position = torch.zeros(3, dtype=torch.float64), torch.zeros(8, dtype=torch.float64)
    windows = ids.unfold(0, length + 1, length)
    for row in windows:
        q, p = (
            model(input_ids=row[None, :-1], use_cache=False).logits[0].log_softmax(-1)
            for model in (target, draft)
        )  # [T, V]
        sums[0] -= q.gather(1, row[1:, None]).sum()
        sums[1] -= p.gather(1, row[1:, None]).sum()
        overlap = torch.minimum(q, p).exp().sum(-1)  # [T]
        sums[2] += overlap.sum()
        by_position += torch.stack([part.mean() for part in overlap.tensor_split(8)]) / len(windows)
    tokens = windows[:, 1:].numel()
    target_loss, draft_loss, alpha = (sums / tokens).tolist()
    return Figures(tokens, target_loss, draft_loss, alpha, by_position.tolist())


def card(facts: Mapping[str, Any], figures: Mapping[str, Figures]) -> str:
    """Return the text of the target's card; `figures` by the name of the held-out text."""
    rows = (
        f"| {name} | {f.tokens:,} | {f.target_loss:.3f} | {f.draft_loss:.3f} | {f.alpha:.3f} | "
        + " | ".join(f"{alpha:.3f}" for alpha in f.by_position)
        + " |"
        for name, f in figures.items()
    )
    return CARD.format(rows="\n".join(rows), **facts)
