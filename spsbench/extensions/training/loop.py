"""The training loop: gradients, steps, evaluations of acceptance, checkpoints, and early stops."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import torch
from torch import Tensor, nn

from spsbench.errors import DataError, UsageError
from spsbench.extensions.training.acceptance import (
    Evaluation,
    Gain,
    extrapolate_reach,
    measure_acceptance,
)
from spsbench.extensions.training.batches import (
    FLOAT32,
    Batches,
    Teacher,
    TeacherOutput,
    TextBatch,
    collate,
    products,
)
from spsbench.extensions.training.folder import newest, save
from spsbench.extensions.training.losses import ACCEPTANCES, TOKEN_LOSSES, Distributions, loss_of
from spsbench.extensions.training.options import DraftTraining, HeadTraining
from spsbench.extensions.training.students.student import Student, StudentPrediction
from spsbench.extensions.training.texts import continue_texts
from spsbench.loop.sampling import Warp
from spsbench.spec import Spec

MIN_RISE = 0.004  # an evaluation whose last-depth tau rose less is no better one


def pace(done: float, remaining: float, warmup: float, cooldown: float) -> float:
    """Return the share of the highest rate: a linear warmup, a plateau, then a linear cooldown.

    `done` and `remaining` steps both include this one; `warmup` and `cooldown` are steps, too.
    """
    return min(1.0, done / max(warmup, 1), remaining / max(cooldown, 1))


BETAS, DECAY = (0.9, 0.95), 0.01  # AdamW's
WARMUP, COOLDOWN = 0.03, 0.4  # shares of all steps
CLIP = 1.0
OVERRUN = 1.3  # times the minutes; a machine may be busier than when the steps were timed
PROBED = 3  # steps timed to derive the number of steps from the minutes
DEPTH_DECAY = 0.8  # weight of a depth relative to the depth before (EAGLE-3's code)
MAX_TEXTS_NAMED = 8  # texts named in a message
SAVED = ("step", "steps", "best", "best_step", "losses", "seconds", "ended")  # in checkpoints
NOTHING = TeacherOutput((), torch.empty(0))  # in place of the output of a target that is not run
LATE = (
    f"the steps take more than {OVERRUN:g} times the `minutes`: stopping. To learn for longer, "
    "start again with more `minutes`, or with `steps`"
)


@dataclass(slots=True)
class TrainingLoop:
    """Loop that trains a student on its target; `run` continues from the newest checkpoint."""

    student: Student
    teacher: Teacher  # the target
    batches: Batches
    held_out: Sequence[TextBatch]  # texts of the evaluations
    options: DraftTraining | HeadTraining
    loss_spec: Spec
    folder: Path  # where checkpoints are
    dtype: str = FLOAT32  # that of matrix products
    ends: frozenset[int] = frozenset()  # tokens that end a text of the student's own
    best_gain: Callable[[Sequence[float]], Gain] | None = None  # by reach; None: no costs known
    watch: Callable[["TrainingLoop"], None] = lambda loop: None  # called after each evaluation
    stop: Callable[[], bool] = lambda: False  # polled after each step; True stops the training
    evaluations: list[Evaluation] = field(default_factory=list)
    step: int = 0
    steps: int = 0  # in the whole training; 0: not known yet
    best: dict[str, Tensor] = field(default_factory=dict)  # weights, on the host
    best_step: int = -1
    losses: list[float] = field(default_factory=list)  # since the last evaluation
    saved: int = 0  # the step of the last checkpoint
    seconds: float = 0.0  # total time spent on steps and evaluations
    ended: str = ""  # reason of an early end

    def run(self) -> bool:
        """Train to the end, or an early one, whose reason `ended` is; return False if stopped.

        It goes on from the newest checkpoint. Each evaluation, and a stop, writes a checkpoint.
        DataError: a loss that is no number. UsageError: `minutes` or held-out texts are too short.
        """
        network = self.student.network
        peak = self.options.rate or self.student.rate
        optimiser = torch.optim.AdamW(network.parameters(), peak, BETAS, weight_decay=DECAY)
        network.eval()  # no dropout: a resumed training has the same randomness
        self._resume(optimiser)
        if self.steps == 0:
            self.steps = self.options.steps or self._affordable()
        if not self.evaluations:
            self._evaluate(float("nan"))
            self._save(optimiser)
        began, before = time.perf_counter(), self.seconds
        every = max(1, self.steps // self.options.evaluations)
        late = False
        while True:
            due = self.step % every == 0 or self.step == self.steps or late
            if due and self.step > self.now.step:  # else evaluated before a resume
                self._evaluate(sum(self.losses) / len(self.losses))
                if self.step < self.steps:
                    self.ended = self._why_end() or (LATE if late else "")
                self._save(optimiser)
            if self.step == self.steps or self.ended:
                return True
            loss = self.add_gradients(self.step)
            lengths = WARMUP * self.steps, COOLDOWN * self.steps
            for group in optimiser.param_groups:
                group["lr"] = peak * pace(self.step + 1, self.steps - self.step, *lengths)
            nn.utils.clip_grad_norm_(network.parameters(), CLIP)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            self.losses.append(loss)
            self.step += 1
            self.seconds = before + time.perf_counter() - began
            late = self._is_late()
            if self.stop():
                self._save(optimiser)
                return False

    @property
    def seconds_left(self) -> float | None:
        """Return the predicted seconds until the end, 0 or more; None before the first of `steps`.

        Without `steps` they are at most those left of `OVERRUN` times the minutes; before the first
        step, those of all the minutes.
        """
        timed, limit = self.options.steps is None, self.options.minutes * 60
        if self.step == 0:
            return limit if timed else None
        seconds_left = self.seconds / self.step * (self.steps - self.step)
        most = OVERRUN * limit - self.seconds if timed else seconds_left
        return max(0.0, min(seconds_left, most))

    @property
    def now(self) -> Evaluation:
        """Return the last evaluation."""
        return self.evaluations[-1]

    @property
    def chosen(self) -> Evaluation:
        """Return the best evaluation, whose weights are the result."""
        return next(point for point in self.evaluations if point.step == self.best_step)

    @property
    def warp(self) -> Warp:
        """Return the temperature and truncation at which the drafter is used."""
        return Warp(self.options.temperature, top_p=self.options.top_p)

    def add_gradients(self, step: int) -> float:
        """Add gradients of `step`; return its mean loss at depth 1. DataError: it is not finite."""
        parts = [
            (numbers, self._batch(step, numbers))
            for numbers in self.batches.parts(step, self.options.micro_tokens)
        ]
        rows = max(1, sum(int(batch.in_continuation.sum()) for _, batch in parts))
        total = 0.0
        for numbers, batch in parts:
            with products(batch.ids.device, self.dtype):
                losses = list(self._losses(batch))
            summed = sum(
                (values.sum() * DEPTH_DECAY**d for d, values in enumerate(losses)), torch.zeros(())
            )
            if not bool(torch.isfinite(summed)):
                listed = ", ".join(map(str, numbers[:MAX_TEXTS_NAMED]))
                raise DataError(
                    f"the loss is {float(summed.detach())} (step {step + 1}, texts {listed}): "
                    f"expected a number. The checkpoint of step {self.saved} is kept. Give a "
                    "lower `rate`, or another `loss`"
                )
            torch.autograd.backward(summed / rows)
            total += float(losses[0].detach().sum())
        return total / rows

    def _batch(self, step: int, numbers: Sequence[int]) -> TextBatch:
        """Return the texts `numbers` as a batch; in on-policy steps the student continues prompts.

        Each is as long as the text's own at most, a function of the weights, the seed and the step.
        """
        texts, options, device = self.batches.texts, self.options, self.teacher.parts.device
        chosen = [texts[i] for i in numbers]
        if not self._is_on_policy(step):
            return collate(chosen, device)
        written = continue_texts(
            self.student.network,  # a draft model
            [prompt for prompt, _ in chosen],
            most=max(len(text) for _, text in chosen),
            warp=self.warp,
            ends=self.ends,
            vocab=self.teacher.vocab,
            seed=((options.seed * 1_000_003 + step) * 1_000_003 + numbers[0]) * 2 + 1,
        )
        continued = [
            (prompt, tokens[: len(text)])
            for (prompt, text), tokens in zip(chosen, written, strict=True)
        ]
        return collate(continued, device)

    def _is_on_policy(self, step: int) -> bool:
        share = self.options.on_policy
        return math.floor((step + 1) * share) > math.floor(step * share)

    def _losses(self, batch: TextBatch) -> Iterator[Tensor]:
        """Yield the losses of each depth, [N] at the rows that the student predicts there.

        The auxiliary loss of the student's kind is added. The target runs only if the loss or the
        student needs it.
        """
        loss, name, warp = loss_of(self.loss_spec), self.loss_spec.name, self.warp
        tokens_only, warped = name in TOKEN_LOSSES, name in ACCEPTANCES
        unused = tokens_only and not self.student.needs_target
        output = NOTHING if unused else self.teacher.teach(batch)
        q = NOTHING.logits
        if not tokens_only:
            logits = output.logits.flatten(0, 1)[batch.in_continuation]
            q = warp(logits) if warped else logits.float().softmax(-1)
            q = q if self.student.ids is None else q[:, self.student.ids]
        heat = warp.temperature if warped and warp.temperature > 0 else 1.0
        for prediction in self.student.predict(batch, output, self.student.depth):
            values = loss(self._distributions(prediction, batch, q, heat))
            yield values if prediction.extra is None else values + prediction.extra

    def _distributions(
        self, prediction: StudentPrediction, batch: TextBatch, q: Tensor, temperature: float
    ) -> Distributions:
        """Return log p, q and log q, [N, Vd], at a prediction's rows; without q where `q` is empty.

        `q` has a row for each of the batch's that predicts a continuation, in order. p is the
        softmax of logits over `temperature`, above 0; `tokens` are the next ones as columns of p,
        -1 where p has none.
        """
        tokens, ids = batch.next_tokens[prediction.rows], self.student.ids
        if ids is not None:
            column = torch.full((self.teacher.vocab,), -1, device=ids.device)
            column[ids] = torch.arange(len(ids), device=ids.device)
            tokens = column[tokens]
        log_p = (prediction.logits.float() / temperature).log_softmax(-1)
        if not len(q):
            return Distributions(log_p=log_p, tokens=tokens)
        q_there = q[(batch.in_continuation.cumsum(0) - 1)[prediction.rows]]
        return Distributions(log_p=log_p, tokens=tokens, q=q_there, log_q=q_there.log())

    def _evaluate(self, loss: float) -> None:
        """Append an evaluation, keep the weights of the one with the highest tau, call `watch`.

        `loss` is the mean of the steps since the last evaluation, whose losses are cleared. It has
        gains where costs are known. UsageError: the held-out texts are too short.
        """
        evaluation = self._acceptance()
        if not evaluation.reach:
            raise UsageError(
                "texts held out are shorter than a draft: expected longer ones. Give more `tokens`,"
                " or other `prompts`"
            )
        evaluation.step, evaluation.loss = self.step, loss
        self.evaluations.append(evaluation)
        if self.best_gain is not None:
            evaluation.gain = self.best_gain([share.value for share in evaluation.reach])
            reach = extrapolate_reach(self.evaluations, self.steps)
            evaluation.projected_gain = None if reach is None else self.best_gain(reach)
        if self.best_step < 0 or evaluation.tau() > self.chosen.tau():
            self.best_step = self.step
            weights = self.student.network.state_dict()
            self.best = {name: weight.detach().cpu().clone() for name, weight in weights.items()}
        self.losses = []
        self.watch(self)

    def _acceptance(self) -> Evaluation:
        with products(self.teacher.parts.device, self.dtype):
            return measure_acceptance(self.student, self.teacher, self.held_out, self.warp)

    def _why_end(self) -> str:
        """Return the reason to end after the last evaluation; empty to continue.

        Tau has not risen for `patience` evaluations, or no gain, now or projected, is worth it.
        """
        patience, worth, now = self.options.patience, self.options.worth, self.now
        taus = [point.tau() for point in self.evaluations]
        if patience and len(taus) > patience:
            before = max(taus[:-patience])
            if max(taus[-patience:]) < before + MIN_RISE:
                return (
                    f"tau has not risen for {patience} evaluations: stopping. "
                    "Learn on with `resume` `patience` 0"
                )
        if worth and now.gain is not None and now.projected_gain is not None:
            best = max(now.gain.speedup, now.projected_gain.speedup)
            if best < worth:
                return (
                    f"{now.gain.speedup:.2f}x now, {best:.2f}x at best by the curve: stopping. "
                    "Learn on with `resume` `worth` 0"
                )
        return ""

    def _is_late(self) -> bool:
        """Return whether the steps exceed `OVERRUN` times the minutes."""
        timed = self.options.steps is None and self.step < self.steps
        return timed and self.seconds > OVERRUN * self.options.minutes * 60

    def _affordable(self) -> int:
        """Return the number of steps, 1 or more, that the minutes allow next to the evaluations.

        An evaluation and `PROBED` steps are timed, and all they give is discarded. UsageError:
        there is no time for one of each.
        """
        began = time.perf_counter()
        self._acceptance()
        evaluation_seconds = time.perf_counter() - began
        began = time.perf_counter()
        for step in self._probed():
            self.add_gradients(step)
            self.student.network.zero_grad(set_to_none=True)
        step_seconds = (time.perf_counter() - began) / PROBED
        seconds = self.options.minutes * 60
        if evaluation_seconds + step_seconds > seconds:
            raise UsageError(
                f"`minutes` is {self.options.minutes:g}: expected "
                f"{(evaluation_seconds + step_seconds) / 60:.2g} or more, "
                "for a step and an evaluation. Give more, or fewer `held_out` texts"
            )
        count = min(
            self.options.evaluations, max(1, int(0.3 * seconds / max(evaluation_seconds, 1e-9)))
        )
        return max(1, int((seconds - count * evaluation_seconds) / step_seconds))

    def _probed(self) -> list[int]:
        """Return the steps to time, with the training's share of on-policy steps."""
        due = [step for step in range(1000) if self._is_on_policy(step)]
        plain = [step for step in range(1000) if not self._is_on_policy(step)]
        count = max(round(PROBED * self.options.on_policy) if plain else PROBED, 1) if due else 0
        return due[:count] + plain[: PROBED - count]

    def _save(self, optimiser: torch.optim.Optimizer) -> None:
        """Write a checkpoint of all that the loop needs to go on from this step; set `saved`."""
        network = self.student.network.state_dict()
        state = {name: getattr(self, name) for name in SAVED}
        state["network"] = {name: weight.detach().cpu() for name, weight in network.items()}
        state["optimiser"] = optimiser.state_dict()
        state["looks"] = [point.to_json() for point in self.evaluations]
        save(self.folder, self.step, state)
        self.saved = self.step

    def _resume(self, optimiser: torch.optim.Optimizer) -> None:
        """Load the newest checkpoint into this loop, its network and `optimiser`, if there is one.

        A training that ended early is judged anew: by other options it may go on. DataError: no
        checkpoint can be read.
        """
        state = newest(self.folder)
        if state is None:
            return
        self.student.network.load_state_dict(state["network"])
        optimiser.load_state_dict(state["optimiser"])
        self.evaluations = msgspec.convert(state["looks"], list[Evaluation])
        for name in SAVED:
            setattr(self, name, state[name])
        self.saved = self.step
        if self.ended:
            self.ended = LATE if self._is_late() else self._why_end()
