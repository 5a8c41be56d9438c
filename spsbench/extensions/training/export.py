"""Export of a training: the drafter's weights, its model card, the curve and the HTML page."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from spsbench.extensions.training.acceptance import Evaluation
from spsbench.extensions.training.folder import Folder
from spsbench.extensions.training.loop import TrainingLoop
from spsbench.extensions.training.prompts import SELF
from spsbench.extensions.training.texts import TargetTexts
from spsbench.heads.head import TRAINING, mark_of
from spsbench.reports.html import html
from spsbench.reports.plots import png
from spsbench.reports.reporter import Figure, Panel, Point, Report, Section, TextTable, curves
from spsbench.settings.models import ModelSpec
from spsbench.settings.options import flag_of
from spsbench.store.atomic import replace_file

TEXT = (resources.files(__package__) / "card.md").read_text("utf-8")  # a model card's


def card(loop: TrainingLoop, facts: Mapping[str, Any]) -> str:
    """Return the model card of a finished training in Markdown.

    `facts` are values for names in `card.md` that the loop does not give, as `finish` lists.
    """
    point = loop.chosen
    best = max(range(1, len(point.reach) + 1), key=point.tau)
    k = point.gain.k if point.gain else min(best, 4)
    gain = ""
    if point.gain is not None:
        gain = (
            f"\nPredicted speed-up on the machine that trained it: {point.gain.speedup:.2f}x "
            f"with K = {point.gain.k}.\n"
        )
    early = f" of {loop.steps} ({loop.ended})" if loop.ended else ""
    share = facts["on_policy"]
    drafter = loop.student.drafter
    return TEXT.format(
        **facts,
        products=loop.dtype,
        drafter=drafter,
        named=facts["target"].replace(" with ", f" {flag_of('adapter')} "),
        flag="" if drafter == "model" else f"{flag_of('drafter')} {drafter} ",
        k=k,
        rows="\n".join(
            f"| {d} | {a.value:.3f} | {a.low:.3f} .. {a.high:.3f} | {point.tau(d):.2f} |"
            for d, a in enumerate(point.alpha, 1)
        ),
        gain=gain,
        steps=loop.step,
        own=f", {share:.0%} of them on its own texts, judged by the target," if share else "",
        early=early,
        chosen=point.step,
        texts=point.texts,
        places=point.places,
        sizes=", ".join(f"{name} {value}" for name, value in loop.student.describe().items()),
    )


def curve(points: Sequence[Evaluation], title: str) -> Figure:
    """Return a figure over steps: alpha by depth, tau, and the predicted speed-up where known.

    Of the depths the first, the middle and the last are drawn. `points` are one or more.
    """
    depth = len(points[-1].alpha)
    plotted_depths = sorted({0, depth // 2, depth - 1})
    alphas = curves(
        (f"depth {d + 1}", (Point(point.step, *point.alpha[d]) for point in points))
        for d in plotted_depths
    )
    taus = (Point(point.step, point.tau()) for point in points)
    gains = (Point(point.step, point.gain.speedup) for point in points if point.gain)
    tau = curves([(f"K = {depth}", taus)], len(plotted_depths))
    gained = curves([("at the best K", gains)], len(plotted_depths) + 1)
    panels = [
        Panel(title="Acceptance", x="steps", y="alpha", items=alphas, from_zero=True),
        Panel(title="Tokens a round", x="steps", y="tau", items=tau),
    ]
    if gained:
        panels.append(Panel(title="Predicted", x="steps", y="speed-up", items=gained))
    return Figure(title=title, panels=panels)


def training_page(points: Sequence[Evaluation], best: Evaluation, title: str, ended: str) -> str:
    """Return an HTML page of acceptance, its curve, and every evaluation of a training.

    `best` is the evaluation whose weights were written; `ended` says why early, or nothing.
    """
    depth, first = len(best.alpha), points[0].tau()
    section = Section(
        title=title,
        status="good" if best.tau() > first else "open",
        line=f"At K = {depth} tau came from {first:.2f} to {best.tau():.2f} "
        f"tokens a round in {best.step} steps, on {best.texts} held-out texts",
        notes=(ended,) if ended else (),
        says="alpha is the chance that a token is accepted when those before it are.",
        figures=(curve(points, title),),
        tables=(
            TextTable(
                title="Every evaluation on held-out texts",
                headings=("step", "loss", "tau", *(f"alpha {d + 1}" for d in range(depth))),
                rows=tuple(_point_columns(point) for point in points),
            ),
        ),
        answers=True,
    )
    return html(Report(title, (), sections=(section,)))


def _point_columns(point: Evaluation) -> tuple[str, ...]:
    alphas = (f"{a.value:.3f} ({a.low:.3f} to {a.high:.3f})" for a in point.alpha)
    return f"{point.step}", f"{point.loss:.4f}", f"{point.tau():.3f}", *alphas


@dataclass(frozen=True, slots=True)
class Trained:
    """Result of a training; `folder` holds the drafter, whose weights are those of `best`."""

    folder: Path
    drafter: str
    best: Evaluation
    evaluations: tuple[Evaluation, ...]
    ended: str  # reason of an early end


def finish(
    loop: TrainingLoop,
    folder: Folder,
    texts: TargetTexts,
    target: ModelSpec,
    chat: bool,
    command: Sequence[str],
) -> Trained:
    """Write the best evaluation's weights, the model card, `TRAINING`, the curve and the page.

    The student then has those weights. WriteError: a file cannot be written.
    """
    student, options, out = loop.student, loop.options, folder.result
    student.network.load_state_dict(loop.best)
    student.write(out, getattr(torch, options.save_as))
    sources = ", ".join(options.prompts)
    origin = "which asked itself the questions" if chat else "from nothing"
    origin = f"asked the prompts of {sources}" if sources not in ("", SELF) else origin
    facts = {
        "target": str(target),
        "what": f"A drafter of kind {student.drafter}",
        "temperature": options.temperature,
        "top_p": f" and top-p {options.top_p}" if options.top_p < 1 else "",
        "count": len(texts.texts),
        "tokens": texts.tokens,
        "numbers": texts.header.get("numbers", "the numbers of its checkpoint"),
        "asked": origin,
        "empty": texts.header["left_out"]["empty"],
        "shared": texts.header["left_out"]["of tasks"],
        "loss": str(loop.loss_spec),
        "batch_tokens": options.batch_tokens,
        "on_policy": options.on_policy,
        "seed": options.seed,
        "command": shlex.join(command) or "spsbench.extensions.training.command",
    }
    replace_file(out / "README.md", card(loop, facts).encode())
    figures = {**loop.chosen.to_json(), **facts, "target_mark": mark_of(loop.teacher.model)}
    replace_file(out / TRAINING, (json.dumps(figures, indent=1) + "\n").encode())
    title = f"{student.drafter} for {target}"
    replace_file(folder.curve, png(curve(loop.evaluations, title)))
    html_page = training_page(loop.evaluations, loop.chosen, title, loop.ended)
    replace_file(folder.page, html_page.encode())
    return Trained(out, student.drafter, loop.chosen, tuple(loop.evaluations), loop.ended)
