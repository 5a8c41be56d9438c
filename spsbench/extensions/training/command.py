"""`sps train`, and training as a function: a draft model or a head for a target."""

import json as encoder
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from spsbench.cli import options as o
from spsbench.cli.bench import resume_command
from spsbench.cli.terminal import say, write
from spsbench.errors import Exit, UsageError
from spsbench.extensions.training.options import TRAINED, DraftTraining, HeadTraining, Training
from spsbench.hardware.files import clock
from spsbench.hardware.memory import importing_libraries, keep_memory
from spsbench.hardware.signals import graceful
from spsbench.heads.families import head_part
from spsbench.messages import ignore, takes_say
from spsbench.models.prepare import prepare_access
from spsbench.settings.cell import Cell
from spsbench.settings.cell_from_options import OF_CELL
from spsbench.settings.execution import Access, OutputFolder
from spsbench.settings.grid import Grid
from spsbench.settings.options import options_of, parse

log = logging.getLogger(__name__)

OUT = {"draft": "trained-draft", "head": "trained-head"}
TRIAL_TEXTS = 64  # a fourth of them is held out
MAX_DEPTHS_SHOWN = 4  # depths in a line
WITHOUT = {"shard", "score", *OF_CELL} - {*TRAINED, *options_of(Training)}
commands = typer.Typer(
    no_args_is_help=True, help="Train a drafter for a target, on texts that the target writes."
)


@commands.command("draft")
@o.take_options(DraftTraining, Grid, OutputFolder, Access, without=WITHOUT)
def draft(format: o.TableFormat = "table", **options: Any) -> None:
    """Train a draft model: layers copied from the target, or a model of your own."""
    raise typer.Exit(run_training("draft", options, json=format == "json"))


@commands.command("head")
@o.take_options(HeadTraining, Grid, OutputFolder, Access, without=WITHOUT)
def head(format: o.TableFormat = "table", **options: Any) -> None:
    """Train a head that reads the target's hidden states."""
    raise typer.Exit(run_training("head", options, json=format == "json"))


def show_evaluation(loop: Any) -> None:
    """Print the last evaluation of a `TrainingLoop` on stderr: alpha, tau, speed-up, time left."""
    point = loop.now
    alpha = " ".join(f"{share.value:.3f}" for share in point.alpha[:MAX_DEPTHS_SHOWN])
    parts = [f"step {point.step}/{loop.steps}"]
    parts += [] if point.loss != point.loss else [f"loss {point.loss:.3f}"]
    parts += [f"alpha {alpha}", f"tau {point.tau():.2f} (K={len(point.alpha)})"]
    if point.gain is not None:
        parts.append(f"{point.gain.speedup:.2f}x with K={point.gain.k}")
    if point.projected_gain is not None:
        parts.append(f"at best {point.projected_gain.speedup:.2f}x")
    if loop.seconds_left is not None:
        parts.append(f"{clock(loop.seconds_left)} left")
    say("  ".join(parts))


def run_training(what: str, options: Mapping[str, Any], *, json: bool) -> int:
    """Train a `what`, draft or head, and return the exit code; stdout has the result's folder.

    With `json` its figures are there instead; progress goes to stderr. A signal stops the training,
    with its own exit code and a line of how to go on. The process keeps the memory that it frees.
    """
    command = ["sps", *sys.argv[1:]]
    keep_memory()  # here and not in the library: the process is ours
    out = Path(options.get("out") or OUT[what])
    with graceful() as interrupt:
        trained = train(
            what,
            watch=show_evaluation,
            stop=lambda: interrupt.requested,
            command=command,
            **options,
        )
    if trained is None:
        say(f"stopped. Continue with: {resume_command(out)}")
        return interrupt.code
    point = trained.best
    if trained.ended:
        say(trained.ended)
    summary = {
        "folder": str(trained.folder),
        "drafter": trained.drafter,
        "tau": point.tau(),
        "ended": trained.ended,
        **point.to_json(),
    }
    if json:
        write(encoder.dumps(summary) + "\n")
        return Exit.OK
    alphas = ", ".join(f"{share.value:.3f}" for share in point.alpha)
    say(f"best at step {point.step}: alpha by depth {alphas}; tau {point.tau():.2f}")
    target = options.get("target") or "nano"
    target += f" --adapter {adapter}" if (adapter := options.get("adapter")) else ""
    flag = "" if trained.drafter == "model" else f" --drafter {trained.drafter}"
    say(f"use it: sps generate --target {target} --draft {trained.folder}{flag} ...")
    write(f"{trained.folder}\n")
    return Exit.OK


def trial(cell: Cell, steps: int, folder: Path, options: Mapping[str, Any]) -> str:
    """Train a plan's drafter for `steps` on texts of its target; return a sentence on the gain.

    The sentence begins with a space, and compares speed-up and alpha before and after, of the same
    held-out texts at costs measured here; where `cell` has no draft, it says that nothing is
    trained. `cell` has the plan's drafter, whose weights the training starts from, under the
    adapter. The training is in `trial` of the plan's `folder`, and is resumed there. `options` are
    those of `sps plan`, with `prompts`; the training takes those that it has too.
    """
    if cell.draft is None:
        return " No trial: no drafter with weights is planned."
    head, out, access = head_part(cell.drafter), folder / "trial", options_of(Access)
    shared = {name: options[name] for name in (*TRAINED, *access, "chat") if name in options}
    shared |= {name: getattr(cell, name) for name in ("temperature", "top_p", "seed")}
    shared |= {"kind": head.name} if head else {}
    how: dict[str, Any] = {"prompts": [str(options["prompts"])], "start": cell.draft.id}
    how |= {"count": TRIAL_TEXTS, "held_out": TRIAL_TEXTS, "tokens": cell.max_new_tokens}
    how |= {"batch_tokens": 512, "steps": steps, "evaluations": 1, "worth": 0.0, "patience": 0}
    how |= {"out": out, "resume": out.exists(), "cost_seconds": options.get("cost_seconds", 10.0)}
    trained = train("head" if head else "draft", **shared, **how)
    before, after = trained.evaluations[0], trained.evaluations[-1]
    figures = (
        f"{f'{p.gain.speedup:.2f}x with K={p.gain.k}, ' if p.gain else ''}alpha "
        f"{p.alpha[0].value:.2f} [{p.alpha[0].low:.2f}, {p.alpha[0].high:.2f}]"
        for p in (before, after)
    )
    return f" A trial of {steps} steps: {' to '.join(figures)}, on {after.texts} held-out texts."


@takes_say
def train(
    what: str,
    *,
    watch: Callable[[Any], None] = ignore,
    stop: Callable[[], bool] = lambda: False,
    command: Sequence[str] = (),
    **options: Any,
) -> Any:
    """Train a drafter: `train("head", kind="eagle3", target="nano", minutes=10, out="head")`.

    Options are those of `sps train draft` and `sps train head`.

    Args:
        what: `draft` or `head`.
        say: receives each message for the user; None: messages go to `logging` only.
        watch: receives the `TrainingLoop` after each evaluation of acceptance.
        stop: polled; true stops the training, which `resume` continues.
        command: command line for the model card.

    Returns:
        A `spsbench.extensions.training.export.Trained`; None if it was stopped.

    Raises:
        SpsError: the message names the error and its remedy.
    """
    kind = DraftTraining if what == "draft" else HeadTraining
    options["out"] = options.get("out") or OUT[what]
    training, grid, place, access = parse(options, kind, Grid, OutputFolder, Access)
    request = grid.under({"k": (0,)}).one()
    target = request.target
    if target.ranks > 1:
        raise UsageError(f"{target.ranks} ranks (torchrun): expected one, which trains alone")
    if target.dtype not in ("auto", "float32") and target.device == "cpu":
        log.info("note: the target computes in its dtype; what learns is float32")
    prepare_access([request], access)

    with importing_libraries():
        from spsbench.extensions.training.run import Trainer

    return Trainer(target, training, grid.given, place, access, command, watch, stop).run()
