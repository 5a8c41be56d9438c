"""Export of a training: the drafter's weights, its model card, the curve and the HTML page."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from spsbench.extensions.training.acceptance import Share
from spsbench.extensions.training.folder import Folder
from spsbench.extensions.training.loop import Look, TrainingLoop
from spsbench.extensions.training.options import DraftTraining, HeadTraining
from spsbench.extensions.training.prompts import SELF
from spsbench.extensions.training.texts import Texts
from spsbench.heads.head import TRAINING, mark_of
from spsbench.reports.html import html
from spsbench.reports.plots import png
from spsbench.reports.reporter import Curve, Figure, Panel, Point, Report, Section, TextTable
from spsbench.settings.models import ModelSpec
from spsbench.settings.options import flag_of
from spsbench.spec import Spec
from spsbench.store.atomic import replace_file

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


def card(course: TrainingLoop, facts: Mapping[str, Any]) -> str:
    """Return the model card in Markdown.

    Args:
        course: the finished training loop.
        facts: facts of the run: target, texts, loss, command ...
    """
    look = course.chosen
    best = max(range(1, len(look.acceptance.reach) + 1), key=look.acceptance.tau)
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
        flag="" if drafter == "model" else f"{flag_of('drafter')} {drafter} ",
        k=k,
        rows="\n".join(row(look, d) for d in range(len(look.acceptance.reach))),
        gain=gain,
        steps=course.step,
        own=f", {share:.0%} of them on texts of its own, judged by the target," if share else "",
        early=early,
        chosen=look.step,
        texts=look.acceptance.texts,
        places=look.acceptance.places,
        sizes=", ".join(f"{name} {value}" for name, value in course.student.describe().items()),
    )


def row(look: Look, depth: int) -> str:
    """Return the table row of a depth (from 0)."""
    alpha = look.acceptance.alpha[depth]
    return (
        f"| {depth + 1} | {alpha.value:.3f} | {alpha.low:.3f} .. {alpha.high:.3f} | "
        f"{look.acceptance.tau(depth + 1):.2f} |"
    )


def curve(looks: Sequence[Look], title: str) -> Figure:
    """Return a figure of alpha by depth, tau, and the predicted speed-up if known, over steps."""
    depth = len(looks[-1].acceptance.alpha)
    plotted_depths = sorted({0, depth // 2, depth - 1})
    alphas = tuple(
        Curve(
            name=f"depth {d + 1}",
            line=number,
            points=tuple(Point(look.step, *look.acceptance.alpha[d]) for look in looks),
        )
        for number, d in enumerate(plotted_depths)
    )
    tau = Curve(
        name=f"K = {depth}",
        line=len(plotted_depths),
        points=tuple(Point(look.step, look.acceptance.tau(depth)) for look in looks),
    )
    panels = [
        Panel(title="Acceptance", x="steps", y="alpha", items=alphas, from_zero=True),
        Panel(title="Tokens a round", x="steps", y="tau", items=(tau,)),
    ]
    gains = tuple(Point(look.step, look.gain.speedup) for look in looks if look.gain)
    if gains:
        gained = Curve(name="at the best K", line=len(plotted_depths) + 1, points=gains)
        panels.append(Panel(title="Predicted", x="steps", y="speed-up", items=(gained,)))
    return Figure(title=title, panels=tuple(panels))


def page(looks: Sequence[Look], best: Look, title: str, ended: str) -> str:
    """Return an HTML page of acceptance, its curve, and every evaluation of a training.

    Args:
        best: the evaluation whose weights were written.
        title: title of the page.
        ended: reason of an early end; empty if the training was not cut short.
    """
    depth = len(best.acceptance.alpha)
    first = looks[0].acceptance.tau(depth)
    section = Section(
        title=title,
        status="good" if best.acceptance.tau(depth) > first else "open",
        line=f"At K = {depth} tau came from {first:.2f} to {best.acceptance.tau(depth):.2f} "
        f"tokens a round in {best.step} steps, on {best.acceptance.texts} held-out texts",
        notes=(ended,) if ended else (),
        says="alpha is the chance that a token is kept when those before it are.",
        figures=(curve(looks, title),),
        tables=(
            TextTable(
                title="Every look at held-out texts",
                headings=("step", "loss", "tau", *(f"alpha {d + 1}" for d in range(depth))),
                rows=tuple(_row(look, depth) for look in looks),
            ),
        ),
        answers=True,
    )
    return html(Report(title, (), sections=(section,)))


def _row(look: Look, depth: int) -> tuple[str, ...]:
    alphas = (_share(share) for share in look.acceptance.alpha)
    return f"{look.step}", f"{look.loss:.4f}", f"{look.acceptance.tau(depth):.3f}", *alphas


def _share(share: Share) -> str:
    return f"{share.value:.3f} ({share.low:.3f} to {share.high:.3f})"


@dataclass(frozen=True, slots=True)
class Trained:
    """Result of a training."""

    folder: Path
    drafter: str
    best: Look
    looks: tuple[Look, ...]
    ended: str  # reason of an early end


def finish(
    course: TrainingLoop,
    folder: Folder,
    texts: Texts,
    options: DraftTraining | HeadTraining,
    target: ModelSpec,
    loss: Spec,
    chat: bool,
    command: Sequence[str],
) -> Trained:
    """Write the weights of the best evaluation, the model card, the curve and the page."""
    student, out = course.student, folder.result
    student.network.load_state_dict(course.best)
    student.write(out, getattr(torch, options.save_as))
    default_source = "which asked itself the questions" if chat else "from nothing"
    prompt_sources = ", ".join(options.prompts)
    how = (
        f"asked the prompts of {prompt_sources}"
        if prompt_sources not in ("", SELF)
        else default_source
    )
    facts = {
        "target": str(target),
        "what": f"A drafter of kind {student.drafter}",
        "temperature": options.temperature,
        "top_p": f" and top-p {options.top_p}" if options.top_p < 1 else "",
        "count": len(texts.texts),
        "tokens": texts.tokens,
        "numbers": texts.header.get("numbers", "the numbers of its checkpoint"),
        "asked": how,
        "empty": texts.header["left_out"]["empty"],
        "shared": texts.header["left_out"]["of tasks"],
        "loss": loss,
        "batch_tokens": options.batch_tokens,
        "on_policy": options.on_policy,
        "seed": options.seed,
        "command": shlex.join(command) or "spsbench.extensions.training.library",
    }
    replace_file(out / "README.md", card(course, facts).encode())
    mark = mark_of(course.teacher.model)
    figures = {**course.chosen.to_json(), **facts, "loss": str(loss), "target_mark": mark}
    replace_file(out / TRAINING, (json.dumps(figures, indent=1) + "\n").encode())
    title = f"{student.drafter} for {target}"
    replace_file(folder.curve, png(curve(course.looks, title)))
    html_page = page(course.looks, course.chosen, title, course.ended)
    replace_file(folder.page, html_page.encode())
    return Trained(out, student.drafter, course.chosen, tuple(course.looks), course.ended)
