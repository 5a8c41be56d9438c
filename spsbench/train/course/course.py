"""The course of a training: steps, looks at acceptance, checkpoints, and its end."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spsbench.errors import DataError, UsageError
from spsbench.loop.sampling import Warp
from spsbench.train.course.batches import Batches
from spsbench.train.course.checkpoint import newest, save, there
from spsbench.train.course.outlook import Gain, Prices, foreseen
from spsbench.train.course.precision import FLOAT32, products
from spsbench.train.course.teacher import Teacher, laws_of
from spsbench.train.course.watch import Seen, Share, watch
from spsbench.train.losses.laws import Loss
from spsbench.train.students.student import Batch, Moment, Student

FADES = 0.8  # weight of a depth beside the one before (EAGLE-3's code)
WARMUP, COOLDOWN = 0.03, 0.4  # shares of all steps
CLIP = 1.0
DECAY = 0.01
RISE = 0.004  # of tau at the last depth: less is none
OVERRUN = 1.3  # of the minutes: a machine may have become busy since they were counted in steps
PROBED = 3  # steps that are timed before the number of steps is settled


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How it is taught, and when it ends."""

    loss: Loss
    warp: Warp
    warped: bool  # whether the loss is of laws as they will be used
    rate: float
    steps: int | None
    minutes: float
    micro_tokens: int
    evaluations: int
    patience: int
    worth: float
    products: str = FLOAT32


@dataclass(slots=True)
class Look:
    """Acceptance after so many steps."""

    step: int
    loss: float
    seen: Seen
    gain: Gain | None
    hoped: Gain | None

    def to_json(self) -> dict[str, Any]:
        """For the log; no time in it, so that a resumed log is the same."""
        return {
            "step": self.step,
            "loss": self.loss,
            "alpha": [list(share) for share in self.seen.alpha],
            "reach": [list(share) for share in self.seen.reach],
            "texts": self.seen.texts,
            "places": self.seen.places,
            "gain": None if self.gain is None else list(self.gain),
            "hoped": None if self.hoped is None else list(self.hoped),
        }

    @classmethod
    def of(cls, values: dict[str, Any]) -> "Look":
        """From the log."""
        alpha, reach = (tuple(Share(*each) for each in values[n]) for n in ("alpha", "reach"))
        gain, hoped = (Gain(*values[n]) if values[n] else None for n in ("gain", "hoped"))
        seen = Seen(reach, alpha, values["texts"], values["places"])
        return cls(values["step"], values["loss"], seen, gain, hoped)


@dataclass(slots=True)
class Course:
    """A student, its teacher, its texts; `run` goes on from the newest checkpoint.

    Attributes:
        folder: of the checkpoints.
        prices: of a round, where they are known.
        told: called after each look.
        stop: asked after each step whether to end.
    """

    student: Student
    teacher: Teacher
    batches: Batches
    held_out: Sequence[Batch]
    rules: Rules
    folder: Path
    prices: Prices | None = None
    told: Callable[["Course"], None] = lambda course: None
    stop: Callable[[], bool] = lambda: False
    looks: list[Look] = field(default_factory=list)
    step: int = 0
    steps: int = 0
    best: dict[str, Tensor] = field(default_factory=dict)
    best_step: int = -1
    losses: list[float] = field(default_factory=list)  # since the last look
    seconds: float = 0.0  # spent in all
    ended: str = ""  # why, where it was before its time

    def run(self) -> bool:
        """Teach to the end; False where it was stopped from outside, with all of it saved.

        Raises:
            DataError: a loss that is no number; the checkpoint of before is there.
            UsageError: too little time for one look.
        """
        optimiser = torch.optim.AdamW(
            self.student.network.parameters(),
            lr=self.rules.rate,
            betas=(0.9, 0.95),
            weight_decay=DECAY,
        )
        self.student.network.eval()  # without dropout: a resumed course has no other chance in it
        self._resume(optimiser)
        if self.steps == 0:
            self.steps = self.rules.steps or self._affordable()
        if not self.looks:
            self._look(float("nan"))
            self._save(optimiser)
        began, before = time.perf_counter(), self.seconds
        every = max(1, self.steps // self.rules.evaluations)
        while self.step < self.steps and not self.ended:
            for group in optimiser.param_groups:
                group["lr"] = self.rules.rate * self._pace()
            self.losses.append(self._gradients())
            nn.utils.clip_grad_norm_(self.student.network.parameters(), CLIP)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            self.step += 1
            self.seconds = before + time.perf_counter() - began
            late = self._is_late()
            if self.step % every == 0 or self.step == self.steps or late:
                self._look(sum(self.losses) / len(self.losses))
                self.losses = []
                self.ended = self._reason() or ("the time is up: stopping" if late else "")
                self._save(optimiser)
            elif self.stop():
                self._save(optimiser)
                return False
        return True

    @property
    def now(self) -> Look:
        """The last look."""
        return self.looks[-1]

    @property
    def chosen(self) -> Look:
        """The best one, whose weights are the result."""
        return next(look for look in self.looks if look.step == self.best_step)

    def _gradients(self) -> float:
        """Add the gradients of a step; the mean loss of a row at depth 1."""
        parts = self.batches.parts(self.step, self.rules.micro_tokens)
        rows = sum(int(batch.wanted.sum()) for _, batch in parts)
        total = 0.0
        for numbers, batch in parts:
            with products(batch.ids.device, self.rules.products):
                each = list(self._losses(batch))
            summed = sum(
                (values.sum() * FADES**d for d, values in enumerate(each)), torch.zeros(())
            )
            if not bool(torch.isfinite(summed)):
                where = f"step {self.step + 1}, texts {', '.join(map(str, numbers[:8]))}"
                kept = max((step for step, _ in there(self.folder)), default=0)
                raise DataError(
                    f"the loss is {float(summed.detach())} ({where}): expected a number. The "
                    f"checkpoint of step {kept} is kept. Give a lower --rate, or another --loss"
                )
            torch.autograd.backward(summed / max(rows, 1))
            total += float(each[0].detach().sum())
        return total / max(rows, 1)

    def _losses(self, batch: Batch) -> Iterable[Tensor]:
        lesson, rules = self.teacher.teach(batch), self.rules
        warp = rules.warp if rules.warped else None
        heat = rules.warp.temperature if rules.warped and rules.warp.temperature > 0 else 1.0
        for guess in self.student.taught(batch, lesson, self._moment()):
            laws = laws_of(guess, batch, lesson, self.student.ids, warp, heat)
            values = rules.loss(laws)
            yield values if guess.extra is None else values + guess.extra

    def _moment(self) -> Moment:
        """The step; nothing of it depends on when a course was stopped and gone on with."""
        return Moment(min(self.step / max(self.steps, 1), 1.0), self.batches.seed + self.step)

    def _pace(self) -> float:
        """Share of the highest rate: a rise, a stretch, a fall to nothing."""
        done, left = self.step + 1, self.steps - self.step
        return min(
            1.0, done / max(1.0, WARMUP * self.steps), left / max(1.0, COOLDOWN * self.steps)
        )

    def _look(self, loss: float) -> None:
        seen = self._watched()
        if not seen.reach:
            raise UsageError(
                "texts held out are shorter than a draft: expected longer ones. Give more --tokens,"
                " or other --prompts"
            )
        gain = hoped = None
        if self.prices is not None:
            gain = self.prices.best([share.value for share in seen.reach])
            steps = [look.step for look in self.looks] + [self.step]
            ahead = foreseen(steps, [look.seen for look in self.looks] + [seen], self.steps)
            hoped = None if ahead is None else self.prices.best(ahead)
        self.looks.append(Look(self.step, loss, seen, gain, hoped))
        depth = len(seen.reach)
        if self.best_step < 0 or seen.tau(depth) > self.chosen.seen.tau(depth):
            self.best_step = self.step
            weights = self.student.network.state_dict()
            self.best = {name: weight.detach().cpu().clone() for name, weight in weights.items()}
        self.told(self)

    def _watched(self) -> Seen:
        with products(self.teacher.parts.device, self.rules.products):
            return watch(self.student, self.teacher, self.held_out, self.rules.warp)

    def _reason(self) -> str:
        """Why it is to end now, if it is."""
        rules, now = self.rules, self.now
        if self.step >= self.steps:
            return ""
        depth = len(now.seen.reach)
        taus = [look.seen.tau(depth) for look in self.looks]
        if rules.patience and len(taus) > rules.patience:
            before = max(taus[: -rules.patience])
            if max(taus[-rules.patience :]) < before + RISE:
                return f"tau has not risen for {rules.patience} looks: stopping"
        if rules.worth and now.gain is not None and now.hoped is not None:
            best = max(now.gain.speedup, now.hoped.speedup)
            if best < rules.worth:
                return f"{now.gain.speedup:.2f}x now, {best:.2f}x at best by the curve: stopping"
        return ""

    def _is_late(self) -> bool:
        """Whether it takes far longer than was reckoned."""
        counted = self.rules.steps is None and self.step < self.steps
        return counted and self.seconds > OVERRUN * self.rules.minutes * 60

    def _affordable(self) -> int:
        """Steps that the minutes allow: a look and some steps are timed, and undone.

        Raises:
            UsageError: not even one look and one step.
        """
        before = {k: v.detach().clone() for k, v in self.student.network.state_dict().items()}
        began = time.perf_counter()
        self._watched()
        look = time.perf_counter() - began
        began = time.perf_counter()
        for _ in range(PROBED):
            self._gradients()
            self.student.network.zero_grad(set_to_none=True)
            self.step += 1
        each = (time.perf_counter() - began) / PROBED
        self.step = 0
        self.student.network.load_state_dict(before)
        seconds = self.rules.minutes * 60
        if look + each > seconds:
            raise UsageError(
                f"--minutes is {self.rules.minutes:g}: expected {(look + each) / 60:.2g} or more, "
                "for a step and a look at acceptance. Give more, or fewer --held-out texts"
            )
        looks = min(self.rules.evaluations, max(1, int(0.3 * seconds / max(look, 1e-9))))
        return max(1, int((seconds - looks * look) / each))

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

    def _resume(self, optimiser: torch.optim.Optimizer) -> None:
        held = newest(self.folder)
        if held is None:
            return
        self.student.network.load_state_dict(held["network"])
        optimiser.load_state_dict(held["optimiser"])
        self.step, self.steps = held["step"], held["steps"]
        self.best, self.best_step = held["best"], held["best_step"]
        self.looks = [Look.of(each) for each in held["looks"]]
        self.losses, self.seconds = held["losses"], held["seconds"]
        self.ended = held["ended"]
