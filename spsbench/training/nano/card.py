"""The model card that goes with the weights."""

from __future__ import annotations

from dataclasses import dataclass

from spsbench.training.nano.figures import Figures
from spsbench.training.nano.llama import LlamaShape

TEXT = """---
license: apache-2.0
language: [en]
library_name: transformers
pipeline_tag: text-generation
tags: [speculative-sampling]
---

# {name}

{role} of the pair that comes with spsbench. It exists to measure speculative sampling (Chen et al.
2023) without a download; it is not a useful language model. It continues Python in the manner of
the standard library, writes small functions from docstrings, and sums up generated news items.

| | target `nano` | draft `nano-draft` |
|---|---|---|
| architecture | Llama, tied embeddings | Llama, tied embeddings |
| layers x width, hidden, heads | {target_shape} | {draft_shape} |
| parameters | {target_size:,} | {draft_size:,} |
| training tokens | {target_tokens:,} | {draft_tokens:,} |

Both share one byte-level BPE tokenizer of {vocab} entries. `<|endoftext|>` ends a document; the
tokenizer adds nothing by itself. The context is {context} tokens. Weights are stored in bfloat16.

## Training

- Data: the sources of Python {python}'s standard library ({pinned}), except test
  folders, tables and the held-out modules of `spsbench/tasks/corpora/stdlib.py`; {news:,} generated
  news items and {functions:,} generated functions (`spsbench/tasks/corpora`). {stream:,} tokens in
  all, each seen about {epochs:.1f} times.
- News items read `Article: <document>`, newline, `Summary: <summary>`; one empty line between
  items.
- The target grew in depth by stacking copies of its layers:
  {stages}.
- The draft began as layers {kept} of the target, counted from 0, with its embedding. It was then
  taught the target's law, {relative:.2f} KL + {variation:.2f} total variation, on {lesson:,} tokens
  (about {share:.0%} of them written by the target), the last {long:,} in sequences of {length}.
- Seed {seed}. Command: `{command}`. Trained in float32 on a 2-core CPU.
  The schedule was fitted to the time at hand while these weights were trained, so the command gives
  a pair of the same kind, not the same bits.

## Measured on held-out text

Losses in nats a token; alpha is the mean of sum min(q, p) at temperature 1, the chance that a
draft token is kept.

| | stdlib modules | news |
|---|---|---|
| target | {s.forced.target_loss:.3f} | {n.forced.target_loss:.3f} |
| draft | {s.forced.draft_loss:.3f} | {n.forced.draft_loss:.3f} |
| interpolated Kneser-Ney 5-gram, same tokens | {s.fivegram_loss:.3f} | {n.fivegram_loss:.3f} |
| alpha on the text | {s.forced.acceptance:.3f} | {n.forced.acceptance:.3f} |
| alpha on text sampled from the target | {s.sampled.acceptance:.3f} | {n.sampled.acceptance:.3f} |
| tokens of the text | {s.forced.tokens:,} | {n.forced.tokens:,} |

Loss on the stdlib modules by position, in eighths of a window of {length} tokens:

| | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 |
|---|---|---|---|---|---|---|---|---|
| target | {target_positions} |
| draft | {draft_positions} |

Both weaken towards the end of the context: of the target's training only the last {far:,} tokens
came in sequences of {length}.

## Licence

The weights are under Apache-2.0. The training text is Python's standard library, under the PSF
License Agreement (copyright Python Software Foundation), and text that spsbench generates.
"""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the card tells beside the measured figures."""

    target: LlamaShape
    draft: LlamaShape
    target_tokens: int
    far: int
    kept: tuple[int, ...]
    lesson: int
    long: int
    sampled: float
    variation: float
    stages: str
    stream: int
    news: int
    functions: int
    python: str
    pinned: bool
    seed: int
    command: str
    length: int


def card(name: str, role: str, facts: Facts, stdlib: Figures, news: Figures) -> str:
    """The card's text for the model called `name`, "Target" or "Draft" by `role`."""

    def shape(of: LlamaShape) -> str:
        return f"{of.layers} x {of.width}, {of.hidden}, {of.heads}"

    def row(losses: tuple[float, ...]) -> str:
        return " | ".join(f"{loss:.3f}" for loss in losses)

    return TEXT.format(
        name=name,
        role=role,
        target_shape=shape(facts.target),
        draft_shape=shape(facts.draft),
        target_size=facts.target.parameters,
        draft_size=facts.draft.parameters,
        target_tokens=facts.target_tokens,
        far=facts.far,
        draft_tokens=facts.lesson,
        vocab=facts.target.vocab,
        context=facts.target.context,
        python=facts.python,
        pinned="pinned by hash" if facts.pinned else "unpinned: not the committed manifest's",
        news=facts.news,
        functions=facts.functions,
        stream=facts.stream,
        epochs=facts.target_tokens / facts.stream,
        stages=facts.stages,
        kept=" and ".join(map(str, facts.kept)),
        lesson=facts.lesson,
        long=facts.long,
        share=facts.sampled,
        relative=1 - facts.variation,
        variation=facts.variation,
        seed=facts.seed,
        command=facts.command,
        length=facts.length,
        s=stdlib,
        n=news,
        target_positions=row(stdlib.forced.target_by_position),
        draft_positions=row(stdlib.forced.draft_by_position),
    )
