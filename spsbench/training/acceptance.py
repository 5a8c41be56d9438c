"""Acceptance on texts held out: by exact overlap of laws, not by counting."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from spsbench.distributed.process_group import SingleProcess
from spsbench.loop.sampling import Warp
from spsbench.metrics.costs import Costs
from spsbench.training.losses import overlap
from spsbench.training.students.student import Batch, Prediction, Student, TeacherOutput
from spsbench.training.teacher import Teacher

RESAMPLED = 400
LEVEL = (2.5, 97.5)
Row = tuple[Tensor, Tensor]  # a text: [D] sums of reach, and [D] of what reached


class Share(NamedTuple):
    """An estimate with its 95 % interval, over texts."""

    value: float
    low: float
    high: float


class Seen(NamedTuple):
    """What a student is worth now.

    Attributes:
        reach: by depth, the chance that a round keeps so many tokens or more.
        alpha: by depth, the chance that a token is kept when those before it are.
        texts: how many it was seen on.
        places: at how many places of them a round was thought to begin.
    """

    reach: tuple[Share, ...]
    alpha: tuple[Share, ...]
    texts: int
    places: int

    def tau(self, k: int) -> float:
        """Tokens a round emits in expectation, when k are drafted."""
        return 1.0 + sum(share.value for share in self.reach[:k])


def watch(
    student: Student,
    teacher: Teacher,
    batches: Sequence[Batch],
    warp: Warp,
    group: SingleProcess | None = None,
) -> Seen:
    """Acceptance along texts that the target wrote by the same warp; a group shares them out.

    A round that begins at a place keeps its first d tokens with chance E[c_1 ... c_(d-1) s_d], over
    texts drawn from q, where c = min(1, p/q) of the text's own token and s = sum min(p, q): the sum
    over all drafts x of min(p(x), q(x)) is that expectation. Nothing in it is drawn but the texts.
    """
    ranks = group or SingleProcess()
    mine = [_along(student, teacher, batch, warp) for batch in ranks.shard(batches)]
    parts = ranks.unshard(mine, len(batches))
    rows = [row for part, _ in parts for row in part]
    return _summed(rows, sum(count for _, count in parts))


@torch.no_grad()
def _along(student: Student, teacher: Teacher, batch: Batch, warp: Warp) -> tuple[list[Row], int]:
    """Of the texts of a batch, and at how many places rounds begin."""
    depth = min(student.most, max(student.depth, 8)) if student.most > 1 else 1
    held: list[Row] = []
    count = 0
    lesson = teacher.teach(batch)
    found = list(student.guesses(batch, lesson, depth))
    made: list[tuple[Tensor, Tensor]] = []
    for d, guess in enumerate(found):
        same = d > 0 and guess is found[d - 1]  # a draft model foretells every depth alike
        made.append(made[-1] if same else _coins(guess, batch, lesson, student.ids, warp))
    coins, shares = zip(*made, strict=True)
    wanted = batch.wanted.view(batch.ids.shape)
    for row in range(len(batch.ids)):
        places = wanted[row].nonzero()[:, 0]
        first, last = int(places[0]), int(places[-1])
        begins = _begins(first, last, len(found), batch, row, found[0].rows)
        if not len(begins):
            continue
        arrived = torch.ones(len(begins), dtype=torch.float64)
        reached, came = [], []
        for d in range(len(found)):
            at = begins + d
            came.append(arrived.sum())
            reached.append((arrived * shares[d][row, at]).sum())
            arrived = arrived * coins[d][row, at]
        held.append((torch.stack(reached), torch.stack(came)))
        count += len(begins)
    return held, count


def _begins(first: int, last: int, depth: int, batch: Batch, row: int, rows: Tensor) -> Tensor:
    """Places at which a whole draft fits, and before which every depth has features."""
    width = batch.ids.shape[1]
    own = rows[(rows >= row * width) & (rows < (row + 1) * width)] - row * width
    low = int(own.min()) if len(own) else last + 1
    begin = max(first, low)
    return torch.arange(begin, max(begin, last - depth + 2))


def _coins(
    guess: Prediction,
    batch: Batch,
    lesson: TeacherOutput,
    ids: Tensor | None,
    warp: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """[B, T] min(1, p/q) of the token that the text has, and sum of min(p, q); on the host."""
    q = warp(lesson.logits.flatten(0, 1)[guess.rows])
    logits = guess.logits.to(q.dtype)
    if ids is not None:
        logits = q.new_full(q.shape, -torch.inf).index_copy(1, ids, logits)
    p = warp(logits)
    tokens = batch.next_tokens[guess.rows][:, None]
    chance = (p.gather(1, tokens) / q.gather(1, tokens)).clamp(max=1.0).nan_to_num(0.0)[:, 0]
    made = []
    for values in (chance, overlap(p, q)):
        flat = torch.zeros(batch.ids.numel(), dtype=torch.float64)
        flat[guess.rows.cpu()] = values.double().cpu()
        made.append(flat.view(batch.ids.shape))
    return made[0], made[1]


def _summed(held: Sequence[tuple[Tensor, Tensor]], count: int) -> Seen:
    if not held:
        return Seen((), (), 0, 0)
    reached = torch.stack([each[0] for each in held]).numpy()  # [texts, D]
    came = torch.stack([each[1] for each in held]).numpy()
    draws = np.random.default_rng(0).integers(len(held), size=(RESAMPLED, len(held)))

    def share(of: np.ndarray, beside: np.ndarray) -> Share:
        value = float(of.sum() / max(beside.sum(), 1e-300))
        again = of[draws].sum(1) / np.maximum(beside[draws].sum(1), 1e-300)
        low, high = np.percentile(again, LEVEL)
        return Share(value, float(low), float(high))

    depth = reached.shape[1]
    return Seen(
        tuple(share(reached[:, d], came[:, 0]) for d in range(depth)),
        tuple(share(reached[:, d], came[:, d]) for d in range(depth)),
        len(held),
        count,
    )


# What acceptance is worth on this machine, and what it may still become.

FEWEST = 5  # looks before a curve is drawn through them
BEGINNING = 1 / 3  # share of the steps in which a curve says nothing of the end
CONTEXT = 256  # tokens cached, at which a round is priced


class Gain(NamedTuple):
    """The best K, and what it gains."""

    speedup: float
    k: int


@dataclass(frozen=True, slots=True)
class Prices:
    """Rounds of a drafter on this machine."""

    costs: Costs
    arm: str

    def best(self, reach: Sequence[float]) -> Gain:
        """The K at which the predicted speed-up is highest, of those that `reach` is known for."""
        context = min(CONTEXT, self.costs.passes.contexts[-1])
        found = [
            Gain(
                float(self.costs.speed_up(self.arm, k, 1.0 + sum(reach[:k]), context).value),
                k,
            )
            for k in range(1, len(reach) + 1)
        ]
        return max(found, key=lambda gain: gain.speedup)


def foreseen(steps: Sequence[int], looks: Sequence[Seen], end: int) -> list[float] | None:
    """Reach by depth at step `end`, seen with hope: a line over the logarithm of steps.

    It is drawn through the later half of the looks, and two standard errors are added to its slope.
    None while there are too few, or while it begins to learn: the curve is steeper later.
    """
    if len(looks) < FEWEST or steps[-1] < BEGINNING * end:
        return None
    count = max(3, len(looks) // 2)
    x = np.log(np.maximum(steps[-count:], 1))
    found: list[float] = []
    for d in range(len(looks[-1].reach)):
        y = np.array([look.reach[d].value for look in looks[-count:]])
        spread = ((x - x.mean()) ** 2).sum()
        slope = float(((x - x.mean()) * (y - y.mean())).sum() / spread)
        rest = y - y.mean() - slope * (x - x.mean())
        error = float(np.sqrt((rest**2).sum() / max(len(x) - 2, 1) / spread))
        ahead = y[-1] + max(slope + 2 * error, 0.0) * (np.log(max(end, 1)) - x[-1])
        found.append(float(np.clip(ahead, 0.0, found[-1] if found else 1.0)))
    return found
