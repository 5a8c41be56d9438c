"""Acceptance on held-out texts, by the exact overlap of distributions rather than by counting.

`best_gain` turns acceptance into a predicted speed-up on this machine, and `extrapolate_reach`
extends the curve of acceptance to a later step.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
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
Row = tuple[Tensor, Tensor]  # a text's [D] sums: rounds that keep a depth, that come to it


class Share(NamedTuple):
    """An estimate with its 95 % interval, over texts."""

    value: float
    low: float
    high: float


class Gain(NamedTuple):
    """The best K and its predicted speed-up."""

    speedup: float
    k: int


class Evaluation(msgspec.Struct, kw_only=True):
    """Acceptance of a student after some steps, and the gains that it predicts.

    It is a line of the log, without times, so that a resumed log is identical.

    Attributes:
        loss: mean since the last evaluation; NaN before the first step.
        alpha: by depth, the chance that a token is kept when those before it are.
        reach: by depth, the chance that a round keeps so many tokens or more; empty if no
            held-out text is long enough.
        texts: number of held-out texts.
        places: number of positions in the texts at which a round is assumed to begin.
        gain: None: no costs are known.
        projected_gain: at the end of the training; None: too early to say.
    """

    step: int = 0
    loss: float = math.nan
    alpha: tuple[Share, ...] = ()
    reach: tuple[Share, ...] = ()
    texts: int = 0
    places: int = 0
    gain: Gain | None = None
    projected_gain: Gain | None = msgspec.field(default=None, name="hoped")

    def tau(self, k: int | None = None) -> float:
        """Return the expected tokens of a round of `k` drafted ones; None: the longest draft."""
        return 1.0 + sum(share.value for share in self.reach[:k])

    def to_json(self) -> dict[str, Any]:
        """Return plain values by the names of the log, from which `msgspec.convert` reads back."""
        return dict(msgspec.to_builtins(self))


def measure_acceptance(
    student: Student, teacher: Teacher, batches: Sequence[TextBatch], warp: Warp
) -> Evaluation:
    """Return acceptance along texts that the target wrote by the same warp, without step and gain.

    A round that begins at a position keeps its first d tokens with probability E[c_1 ... c_(d-1)
    s_d] over texts drawn from q. Here c = min(1, p/q) of the text's own token, and with s = sum
    min(p, q) the sum over all drafts x of min(p(x), q(x)) is that expectation. The texts are the
    only sample, and are resampled for intervals. All texts too short for a draft: `Evaluation()`.
    """
    rows = [row for batch in batches for row in _score_batch(student, teacher, batch, warp)]
    if not rows:
        return Evaluation()
    reached, came = (torch.stack(sums).numpy() for sums in zip(*rows, strict=True))  # [texts, D]
    draws = np.random.default_rng(0).integers(len(rows), size=(RESAMPLED, len(rows)))

    def share(part: np.ndarray, whole: np.ndarray) -> Share:
        value = float(part.sum() / max(whole.sum(), 1e-300))
        resampled = part[draws].sum(1) / np.maximum(whole[draws].sum(1), 1e-300)
        low, high = np.percentile(resampled, LEVEL)
        return Share(value, float(low), float(high))

    depths = range(reached.shape[1])
    return Evaluation(
        reach=tuple(share(reached[:, d], came[:, 0]) for d in depths),
        alpha=tuple(share(reached[:, d], came[:, d]) for d in depths),
        texts=len(rows),
        places=int(came[:, 0].sum()),
    )


@torch.no_grad()
def _score_batch(student: Student, teacher: Teacher, batch: TextBatch, warp: Warp) -> list[Row]:
    """Return (kept, came) of each text with a round: [D] expected rounds that keep, reach a depth.

    A round begins at each row that depth 0 predicts with D tokens, a whole draft, left in the text.
    """
    depth = min(student.most, max(student.depth, 8)) if student.most > 1 else 1
    sums: list[Row] = []
    output = teacher.teach(batch)
    predictions = list(student.predict(batch, output, depth))
    unique = {id(prediction): prediction for prediction in predictions}  # one in a draft model
    scores = {i: _chances(p, batch, output, student.ids, warp) for i, p in unique.items()}
    chances, overlaps = zip(*(scores[id(p)] for p in predictions), strict=True)
    predicted = torch.zeros_like(batch.in_continuation).index_fill(0, predictions[0].rows, True)
    for row, (length, is_predicted) in enumerate(
        zip(batch.lengths.tolist(), predicted.view(batch.ids.shape).cpu(), strict=True)
    ):
        begins = is_predicted[: max(length - len(predictions), 0)].nonzero()[:, 0]
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
    return sums


def _chances(
    prediction: StudentPrediction,
    batch: TextBatch,
    output: TeacherOutput,
    ids: Tensor | None,
    warp: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """Return [B, T] min(1, p/q) of the text's token, and [B, T] sum of min(p, q), on the host.

    Rows not predicted are 0. `ids`: [Vd] tokens of the columns (None: all); `warp`: logits -> p.
    """
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


FEWEST = 5  # evaluations before a curve is fitted to them
BEGINNING = 1 / 3  # share of the steps before which a curve predicts nothing
CONTEXT = 256  # cached tokens at which the cost of a round is taken


def best_gain(costs: Costs, method: Drafting, reach: Sequence[float]) -> Gain:
    """Return the best predicted speed-up of `method`, and its K, 1 to the length of `reach`.

    `reach[d]`: the chance that a round keeps d + 1 tokens or more; there is one item or more.
    """
    context = min(CONTEXT, costs.passes.contexts[-1])
    plain, gains = costs.round(PLAIN, 0, 0, context).sum(0), []
    for k in range(1, len(reach) + 1):
        gained = (1.0 + sum(reach[:k])) * plain / costs.round(method, k, k, context).sum(0)
        gains.append(Gain(float(np.median(gained)), k))
    return max(gains, key=lambda gain: gain.speedup)


def extrapolate_reach(curve: Sequence[Evaluation], end: int) -> list[float] | None:
    """Return reach by depth at step `end`, extrapolated optimistically over log(steps).

    It is at least the last one: the line is fitted to the later half of the evaluations, and its
    slope, plus two standard errors, is 0 or more. A depth reaches no further than the one before.
    None before `FEWEST` evaluations or `BEGINNING` of the steps: the curve is steep at the start.
    """
    if len(curve) < FEWEST or curve[-1].step < BEGINNING * end:
        return None
    count = max(3, len(curve) // 2)
    x = np.log([max(point.step, 1) for point in curve[-count:]])
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
