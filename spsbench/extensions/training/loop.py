"""The training loop: optimiser, steps, evaluations of acceptance, checkpoints, and early stops."""

import io
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spsbench.errors import DataError, UsageError, WriteError
from spsbench.extensions.training.acceptance import (
    Acceptance,
    DrafterCosts,
    Gain,
    Share,
    accepted,
    foreseen,
)
from spsbench.extensions.training.batches import Batches, OnPolicyTexts, products
from spsbench.extensions.training.gradients import Gradients, Rules
from spsbench.extensions.training.students.student import Batch, Student
from spsbench.extensions.training.teacher import Teacher
from spsbench.store.atomic import replace_file

RISE = 0.004  # the smallest rise of tau at the last depth that counts


@dataclass(slots=True)
class Look:
    """Acceptance after `step` steps: an evaluation."""

    step: int
    loss: float
    acceptance: Acceptance
    gain: Gain | None
    hoped: Gain | None

    @property
    def tau(self) -> float:
        """Return the tokens that a round emits with the longest draft."""
        return self.acceptance.tau(len(self.acceptance.reach))

    def to_json(self) -> dict[str, Any]:
        """Return the line of the log, without times, so that a resumed log is identical."""
        return {
            "step": self.step,
            "loss": self.loss,
            "alpha": [list(share) for share in self.acceptance.alpha],
            "reach": [list(share) for share in self.acceptance.reach],
            "texts": self.acceptance.texts,
            "places": self.acceptance.places,
            "gain": None if self.gain is None else list(self.gain),
            "hoped": None if self.hoped is None else list(self.hoped),
        }

    @classmethod
    def of(cls, values: dict[str, Any]) -> "Look":
        """Return the evaluation that `to_json` wrote."""
        alpha, reach = (tuple(Share(*share) for share in values[n]) for n in ("alpha", "reach"))
        gain, hoped = (Gain(*values[n]) if values[n] else None for n in ("gain", "hoped"))
        acceptance = Acceptance(reach, alpha, values["texts"], values["places"])
        return cls(values["step"], values["loss"], acceptance, gain, hoped)


def why_end(looks: Sequence[Look], rules: Rules) -> str:
    """Return the reason to end a training after its last evaluation; empty to continue."""
    now, taus = looks[-1], [look.tau for look in looks]
    if rules.patience and len(taus) > rules.patience:
        before = max(taus[: -rules.patience])
        if max(taus[-rules.patience :]) < before + RISE:
            return (
                f"tau has not risen for {rules.patience} looks: stopping. "
                "Learn on with `resume` `patience` 0"
            )
    if rules.worth and now.gain is not None and now.hoped is not None:
        best = max(now.gain.speedup, now.hoped.speedup)
        if best < rules.worth:
            return (
                f"{now.gain.speedup:.2f}x now, {best:.2f}x at best by the curve: stopping. "
                "Learn on with `resume` `worth` 0"
            )
    return ""


BETAS = (0.9, 0.95)
DECAY = 0.01


def adamw(parameters: Iterable[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    """Return the optimiser of a student, with the highest learning rate `rate`."""
    return torch.optim.AdamW(parameters, lr=rate, betas=BETAS, weight_decay=DECAY)


def pace(done: float, remaining: float, warmup: float, cooldown: float) -> float:
    """Return the share of the highest rate: a linear warmup, a plateau, then a linear cooldown.

    Args:
        done: steps done, this one included; the other arguments have the same unit.
        remaining: steps left, this one included.
        warmup: length of the rise.
        cooldown: length of the fall.
    """
    return min(1.0, done / max(warmup, 1), remaining / max(cooldown, 1))


WARMUP, COOLDOWN = 0.03, 0.4  # shares of all steps
CLIP = 1.0
OVERRUN = 1.3  # times the minutes; a machine may be busier than when the steps were timed
PROBED = 3  # steps timed to derive the number of steps from the minutes
LATE = (
    f"the steps take more than {OVERRUN:g} times the `minutes`: stopping. To learn for longer, "
    "start again with more `minutes`, or with `steps`"
)


@dataclass(slots=True)
class TrainingLoop:
    """Loop that trains a student on its target; `run` continues from the newest checkpoint.

    Attributes:
        student: the network that learns.
        teacher: the target.
        batches: training texts.
        held_out: texts for evaluation.
        rules: loss, rate and end of the training.
        folder: folder of the checkpoints.
        prices: costs of a round, where they are known.
        on_policy: on-policy texts of the student.
        watch: callback after each evaluation.
        stop: returns whether to stop; polled after each step.
    """

    student: Student
    teacher: Teacher
    batches: Batches
    held_out: Sequence[Batch]
    rules: Rules
    folder: Path
    prices: DrafterCosts | None = None
    on_policy: OnPolicyTexts | None = None
    watch: Callable[["TrainingLoop"], None] = lambda course: None
    stop: Callable[[], bool] = lambda: False
    looks: list[Look] = field(default_factory=list)
    step: int = 0
    steps: int = 0
    best: dict[str, Tensor] = field(default_factory=dict)
    best_step: int = -1
    losses: list[float] = field(default_factory=list)  # since the last evaluation
    saved: int = 0  # the step of the last checkpoint
    seconds: float = 0.0  # total time spent on steps and evaluations
    ended: str = ""  # reason of an early end

    def run(self) -> bool:
        """Train to the end; return False if stopped from outside, with all steps saved."""
        network, gradients = self.student.network, self._gradients()
        optimiser = adamw(network.parameters(), self.rules.rate)
        network.eval()  # no dropout: a resumed training has the same randomness
        self._resume(optimiser)
        if self.steps == 0:
            self.steps = self.rules.steps or self._affordable(gradients)
        if not self.looks:
            self._look(float("nan"))
            self._save(optimiser)
        return self._learn(optimiser, gradients)

    def _learn(self, optimiser: torch.optim.Optimizer, gradients: Gradients) -> bool:
        """Run the remaining steps and evaluations; return False if stopped, all saved."""
        began, before = time.perf_counter(), self.seconds
        every = max(1, self.steps // self.rules.evaluations)
        late = False
        while True:
            due = self.step % every == 0 or self.step == self.steps or late
            if due and self.step > self.now.step:  # else evaluated before a resume
                self._look(sum(self.losses) / len(self.losses))
                if self.step < self.steps:
                    self.ended = why_end(self.looks, self.rules) or (LATE if late else "")
                self._save(optimiser)
            if self.step == self.steps or self.ended:
                return True
            loss = gradients.add(self.step, self.steps, self.saved)
            self._step(optimiser, loss)
            self.seconds = before + time.perf_counter() - began
            late = self._is_late()
            if self.stop():
                self._save(optimiser)
                return False

    def _step(self, optimiser: torch.optim.Optimizer, loss: float) -> None:
        for group in optimiser.param_groups:
            group["lr"] = self.rules.rate * self._pace()
        nn.utils.clip_grad_norm_(self.student.network.parameters(), CLIP)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        self.losses.append(loss)
        self.step += 1

    @property
    def seconds_left(self) -> float | None:
        """Return the predicted seconds until the end; None before the first timed step."""
        counted = self.rules.steps is None
        if self.step == 0:
            return self.rules.minutes * 60 if counted else None
        seconds_left = self.seconds / self.step * (self.steps - self.step)
        most = OVERRUN * self.rules.minutes * 60 - self.seconds if counted else seconds_left
        return max(0.0, min(seconds_left, most))

    @property
    def now(self) -> Look:
        """Return the last evaluation."""
        return self.looks[-1]

    @property
    def chosen(self) -> Look:
        """Return the best evaluation, whose weights are the result."""
        return next(look for look in self.looks if look.step == self.best_step)

    def _gradients(self) -> Gradients:
        return Gradients(self.student, self.teacher, self.batches, self.rules, self.on_policy)

    def _pace(self) -> float:
        done, remaining = self.step + 1, self.steps - self.step
        return pace(done, remaining, WARMUP * self.steps, COOLDOWN * self.steps)

    def _look(self, loss: float) -> None:
        acceptance = self._evaluate()
        if not acceptance.reach:
            raise UsageError(
                "texts held out are shorter than a draft: expected longer ones. Give more `tokens`,"
                " or other `prompts`"
            )
        gain = hoped = None
        if self.prices is not None:
            gain = self.prices.best([share.value for share in acceptance.reach])
            steps = [look.step for look in self.looks] + [self.step]
            ahead = foreseen(
                steps, [look.acceptance for look in self.looks] + [acceptance], self.steps
            )
            hoped = None if ahead is None else self.prices.best(ahead)
        look = Look(self.step, loss, acceptance, gain, hoped)
        if self.best_step < 0 or look.tau > self.chosen.tau:
            self.best_step = self.step
            weights = self.student.network.state_dict()
            self.best = {name: weight.detach().cpu().clone() for name, weight in weights.items()}
        self.looks.append(look)
        self.losses = []
        self.watch(self)

    def _evaluate(self) -> Acceptance:
        with products(self.teacher.parts.device, self.rules.products):
            return accepted(self.student, self.teacher, self.held_out, self.rules.warp)

    def _is_late(self) -> bool:
        """Return whether the steps exceed `OVERRUN` times the minutes."""
        counted = self.rules.steps is None and self.step < self.steps
        return counted and self.seconds > OVERRUN * self.rules.minutes * 60

    def _affordable(self, gradients: Gradients) -> int:
        """Return the number of steps that the minutes allow.

        An evaluation and `PROBED` steps are timed, and their gradients are discarded.
        """
        began = time.perf_counter()
        self._evaluate()
        evaluation_seconds = time.perf_counter() - began
        began = time.perf_counter()
        for step in self._probed():
            gradients.add(step, self.steps)
            self.student.network.zero_grad(set_to_none=True)
        step_seconds = (time.perf_counter() - began) / PROBED
        seconds = self.rules.minutes * 60
        if evaluation_seconds + step_seconds > seconds:
            raise UsageError(
                f"`minutes` is {self.rules.minutes:g}: expected "
                f"{(evaluation_seconds + step_seconds) / 60:.2g} or more, "
                "for a step and a look at acceptance. Give more, or fewer `held_out` texts"
            )
        looks = min(
            self.rules.evaluations, max(1, int(0.3 * seconds / max(evaluation_seconds, 1e-9)))
        )
        return max(1, int((seconds - looks * evaluation_seconds) / step_seconds))

    def _probed(self) -> list[int]:
        """Return the steps to time, with the training's share of on-policy steps."""
        if self.on_policy is None:
            return list(range(PROBED))
        due = [step for step in range(1000) if self.on_policy.is_due(step)]
        plain = [step for step in range(1000) if not self.on_policy.is_due(step)]
        count = round(PROBED * self.on_policy.share) if plain else PROBED
        count = max(count, 1) if due else 0
        return due[:count] + plain[: PROBED - count]

    def _save(self, optimiser: torch.optim.Optimizer) -> None:
        network = self.student.network.state_dict()
        state = {
            "step": self.step,
            "steps": self.steps,
            "network": {name: weight.detach().cpu() for name, weight in network.items()},
            "optimiser": optimiser.state_dict(),
            "best": self.best,
            "best_step": self.best_step,
            "looks": [look.to_json() for look in self.looks],
            "losses": self.losses,
            "seconds": self.seconds,
            "ended": self.ended,
        }
        save(self.folder, self.step, state)
        self.saved = self.step

    def _resume(self, optimiser: torch.optim.Optimizer) -> None:
        state = newest(self.folder)
        if state is None:
            return
        self.student.network.load_state_dict(state["network"])
        optimiser.load_state_dict(state["optimiser"])
        self.step, self.steps, self.saved = state["step"], state["steps"], state["step"]
        self.best, self.best_step = state["best"], state["best_step"]
        self.looks = [Look.of(values) for values in state["looks"]]
        self.losses, self.seconds = state["losses"], state["seconds"]
        if state["ended"]:  # another `patience` or `worth` may continue the training
            self.ended = LATE if self._is_late() else why_end(self.looks, self.rules)


KEPT = 2
NAMED = re.compile(r"step-(\d+)\.pt")


def save(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Write `step-N.pt`, and remove all but the newest `KEPT` checkpoints."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError.of(error, folder) from error
    buffer = io.BytesIO()
    torch.save(state, buffer)
    replace_file(folder / f"step-{step:08d}.pt", buffer.getvalue())
    for _, path in checkpoints_in(folder)[:-KEPT]:
        path.unlink(missing_ok=True)


def checkpoints_in(folder: Path) -> list[tuple[int, Path]]:
    """List (step, file) of the checkpoints, the oldest first."""
    matches = ((NAMED.fullmatch(path.name), path) for path in folder.glob("step-*.pt"))
    return sorted((int(name[1]), path) for name, path in matches if name)


def newest(folder: Path) -> dict[str, Any] | None:
    """Return the newest checkpoint that can be read, or None if `folder` has no checkpoint."""
    files = checkpoints_in(folder)
    for _, path in reversed(files):
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            return state
        except Exception:  # any error of an unpickler: an older checkpoint may be whole
            continue
    if files:
        raise DataError(
            f"no checkpoint can be read ({folder}): expected one of {len(files)}. Start over with "
            "`overwrite`"
        )
    return None
