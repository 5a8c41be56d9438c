"""The card of a trained drafter, and its figures in JSON."""

from collections.abc import Mapping
from typing import Any

from spsbench.training.course.course import Course
from spsbench.training.course.look import Look

TEXT = """---
library_name: spsbench
tags: [speculative-sampling, {drafter}]
base_model: {target}
---

# A drafter for {target}

{what}. Trained to foretell {target} at temperature {temperature}{top_p}; another target, or another
temperature, will keep less of what it drafts.

```sh
sps generate --target {target} --draft . {flag}-k {k} "..."
```

## Acceptance

On {texts} texts of the target that it was not trained on ({places} places), by exact overlap of the
laws. alpha is the chance that a token is kept when those before it are, tau(K) what a round of K
drafted tokens emits. Intervals are 95 %, over texts.

| depth | alpha | | tau(K = depth) |
|---|---|---|---|
{rows}
{gain}
## Training

- Text: {count} texts, {tokens} tokens, written by the target itself in {numbers}; {asked}. Left
  out: {empty} that ended at once, {shared} with words of a benchmark.
- Loss: {loss}. {steps} steps of {batch_tokens} tokens{own}{early}; these are the weights of step
  {chosen}, where tau was highest.
- {sizes}
- Products in {products}, weights and losses in float32. Seed {seed}.

Made with `{command}`.
"""


def card(course: Course, facts: Mapping[str, Any]) -> str:
    """The card.

    Args:
        course: at its end.
        facts: of the run: target, texts, loss, command ...
    """
    look = course.chosen
    best = max(range(1, len(look.seen.reach) + 1), key=look.seen.tau)
    k = look.gain.k if look.gain else min(best, 4)
    gain = ""
    if look.gain is not None:
        gain = (
            f"\nPredicted speed-up on the machine that it was trained on: {look.gain.speedup:.2f}x "
            f"with K = {look.gain.k}.\n"
        )
    early = f" of {course.steps} ({course.ended})" if course.ended else ""
    share = facts["on_policy"]
    drafter = course.student.drafter
    return TEXT.format(
        **facts,
        products=course.rules.products,
        drafter=drafter,
        flag="" if drafter == "model" else f"--drafter {drafter} ",
        k=k,
        rows="\n".join(row(look, d) for d in range(len(look.seen.reach))),
        gain=gain,
        steps=course.step,
        own=f", {share:.0%} of them on texts of its own, judged by the target," if share else "",
        early=early,
        chosen=look.step,
        texts=look.seen.texts,
        places=look.seen.places,
        sizes=", ".join(f"{name} {value}" for name, value in course.student.describe().items()),
    )


def row(look: Look, depth: int) -> str:
    """A row of the table."""
    alpha = look.seen.alpha[depth]
    return (
        f"| {depth + 1} | {alpha.value:.3f} | {alpha.low:.3f} .. {alpha.high:.3f} | "
        f"{look.seen.tau(depth + 1):.2f} |"
    )
