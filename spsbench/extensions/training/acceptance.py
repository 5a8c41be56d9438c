"""Acceptance on held-out texts, by the exact overlap of distributions rather than by counting.

`best_gain` turns acceptance into a predicted speed-up on this machine, and `extrapolate_reach`
extends the curve of acceptance to a later step.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from spsbench.extensions.training.batches import Teacher, TeacherOutput, TextBatch
from spsbench.extensions.training.losses import overlap_of
from spsbench.extensions.training.students.student import Student, StudentPrediction
from spsbench.loop.sampling import Warp
from spsbench.metrics.costs import PLAIN, Costs
from spsbench.settings.method import Drafting

RESAMPLED = 400
LEVEL = (2.5, 97.5)
Row = tuple[Tensor, Tensor]  # a text: [D] sums of kept, [D] of arrived


class Share(NamedTuple):
    """An estimate with its 95 % interval, over texts."""

    value: float
    low: float
    high: float


class StudentAcceptance(NamedTuple):
    """Acceptance of a student at one step.

    Attributes:
        reach: by depth, the chance that a round keeps so many tokens or more.
        alpha: by depth, the chance that a token is kept when those before it are.
        texts: number of held-out texts.
        places: number of positions in the texts at which a round is assumed to begin.
    """

    reach: tuple[Share, ...]
    alpha: tuple[Share, ...]
    texts: int
    places: int

    def tau(self, k: int) -> float:
        """Return the expected number of tokens that a round of `k` drafted tokens emits."""
        return 1.0 + sum(share.value for share in self.reach[:k])


def measure_acceptance(
    student: Student, teacher: Teacher, batches: Sequence[TextBatch], warp: Warp
) -> StudentAcceptance:
    """Return acceptance along texts that the target wrote by the same warp.

    A round that begins at a position keeps its first d tokens with probability E[c_1 ... c_(d-1)
    s_d] over texts drawn from q. Here c = min(1, p/q) of the text's own token, and with s = sum
    min(p, q) the sum over all drafts x of min(p(x), q(x)) is that expectation. The texts are the
    only sample in the estimate.
    """
    parts = [_score_batch(student, teacher, batch, warp) for batch in batches]
    rows = [row for part, _ in parts for row in part]
    return _sum_rows(rows, sum(count for _, count in parts))


@torch.no_grad()
def _score_batch(
    student: Student, teacher: Teacher, batch: TextBatch, warp: Warp
) -> tuple[list[Row], int]:
    """Return the rows of the texts of a batch, and the number of positions where rounds begin."""
    depth = min(student.most, max(student.depth, 8)) if student.most > 1 else 1
    sums: list[Row] = []
    count = 0
    output = teacher.teach(batch)
    predictions = list(student.predict(batch, output, depth))
    by_depth: list[tuple[Tensor, Tensor]] = []
    for d, prediction in enumerate(predictions):
        # a draft model predicts every depth by one pass
        same = d > 0 and prediction is predictions[d - 1]
        by_depth.append(
            by_depth[-1] if same else _chances(prediction, batch, output, student.ids, warp)
        )
    chances, overlaps = zip(*by_depth, strict=True)
    continuation = batch.in_continuation.view(batch.ids.shape)
    for row in range(len(batch.ids)):
        places = continuation[row].nonzero()[:, 0]
        first, last = int(places[0]), int(places[-1])
        begins = _begins(first, last, len(predictions), batch, row, predictions[0].rows)
        if not len(begins):
            continue
        arrived = torch.ones(len(begins), dtype=torch.float64)
        reached, came = [], []
        for d in range(len(predictions)):
            at = begins + d
            came.append(arrived.sum())
            reached.append((arrived * overlaps[d][row, at]).sum())
            arrived = arrived * chances[d][row, at]
        sums.append((torch.stack(reached), torch.stack(came)))
        count += len(begins)
    return sums, count


def _begins(first: int, last: int, depth: int, batch: TextBatch, row: int, rows: Tensor) -> Tensor:
    """Return the positions where a whole draft fits and every depth has features."""
    width = batch.ids.shape[1]
    feature_rows = rows[(rows >= row * width) & (rows < (row + 1) * width)] - row * width
    low = int(feature_rows.min()) if len(feature_rows) else last + 1
    begin = max(first, low)
    return torch.arange(begin, max(begin, last - depth + 2))


def _chances(
    prediction: StudentPrediction,
    batch: TextBatch,
    output: TeacherOutput,
    ids: Tensor | None,
    warp: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """Return [B, T] min(1, p/q) of the text's token, and [B, T] sum of min(p, q), on the host."""
    q = warp(output.logits.flatten(0, 1)[prediction.rows])
    logits = prediction.logits.to(q.dtype)
    if ids is not None:
        logits = q.new_full(q.shape, -torch.inf).index_copy(1, ids, logits)
    p = warp(logits)
    tokens = batch.next_tokens[prediction.rows][:, None]
    chance = (p.gather(1, tokens) / q.gather(1, tokens)).clamp(max=1.0).nan_to_num(0.0)[:, 0]
    results = []
    for values in (chance, overlap_of(p, q)):
        flat = torch.zeros(batch.ids.numel(), dtype=torch.float64)
        flat[prediction.rows.cpu()] = values.double().cpu()
        results.append(flat.view(batch.ids.shape))
    return results[0], results[1]


def _sum_rows(rows: Sequence[tuple[Tensor, Tensor]], count: int) -> StudentAcceptance:
    """Return shares by depth with 95 % intervals from resampled texts; empty without rows.

    Each row of a text is a pair of [D] sums: positions that reached a depth, and that came to it.
    `count` is the number of positions where rounds begin.
    """
    if not rows:
        return StudentAcceptance((), (), 0, 0)
    reached = torch.stack([row[0] for row in rows]).numpy()  # [texts, D]
    came = torch.stack([row[1] for row in rows]).numpy()
    draws = np.random.default_rng(0).integers(len(rows), size=(RESAMPLED, len(rows)))

    def share(of: np.ndarray, over: np.ndarray) -> Share:
        value = float(of.sum() / max(over.sum(), 1e-300))
        again = of[draws].sum(1) / np.maximum(over[draws].sum(1), 1e-300)
        low, high = np.percentile(again, LEVEL)
        return Share(value, float(low), float(high))

    depth = reached.shape[1]
    return StudentAcceptance(
        tuple(share(reached[:, d], came[:, 0]) for d in range(depth)),
        tuple(share(reached[:, d], came[:, d]) for d in range(depth)),
        len(rows),
        count,
    )


FEWEST = 5  # evaluations before a curve is fitted to them
BEGINNING = 1 / 3  # share of the steps before which a curve predicts nothing
CONTEXT = 256  # cached tokens at which the cost of a round is taken


class Gain(NamedTuple):
    """The best K and its predicted speed-up."""

    speedup: float
    k: int


def best_gain(costs: Costs, method: Drafting, reach: Sequence[float]) -> Gain:
    """Return the K of the highest predicted speed-up of `method`, among the depths of `reach`."""
    context = min(CONTEXT, costs.passes.contexts[-1])
    plain, gains = costs.round(PLAIN, 0, 0, context).sum(0), []
    for k in range(1, len(reach) + 1):
        gained = (1.0 + sum(reach[:k])) * plain / costs.round(method, k, k, context).sum(0)
        gains.append(Gain(float(np.median(gained)), k))
    return max(gains, key=lambda gain: gain.speedup)


def extrapolate_reach(
    steps: Sequence[int], curve: Sequence[StudentAcceptance], end: int
) -> list[float] | None:
    """Return reach by depth at step `end`, extrapolated optimistically over log(steps).

    The line is fitted to the later half of the evaluations, and two standard errors are added to
    its slope. Returns None before `FEWEST` evaluations or `BEGINNING` of the steps, since the curve
    is steeper after the start.
    """
    if len(curve) < FEWEST or steps[-1] < BEGINNING * end:
        return None
    count = max(3, len(curve) // 2)
    x = np.log(np.maximum(steps[-count:], 1))
    reach: list[float] = []
    for d in range(len(curve[-1].reach)):
        y = np.array([point.reach[d].value for point in curve[-count:]])
        spread = ((x - x.mean()) ** 2).sum()
        slope = float(((x - x.mean()) * (y - y.mean())).sum() / spread)
        residuals = y - y.mean() - slope * (x - x.mean())
        error = float(np.sqrt((residuals**2).sum() / max(len(x) - 2, 1) / spread))
        ahead = y[-1] + max(slope + 2 * error, 0.0) * (np.log(max(end, 1)) - x[-1])
        reach.append(float(np.clip(ahead, 0.0, reach[-1] if reach else 1.0)))
    return reach
