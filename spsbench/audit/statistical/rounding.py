"""Low precision: how far rounding moves the laws, measured on the control's own texts.

A run in half precision follows a law that differs from the float32 one at every token, by rounding
alone. Its audit tests |bias| <= band instead of bias = 0: the band is the mean shift of each set's
chance between the run's precision and float32.
"""

from typing import NamedTuple

import numpy as np
from transformers import PreTrainedModel

from spsbench.audit.statistical.betting import NO_BAND
from spsbench.audit.statistical.evidence import Floats
from spsbench.audit.statistical.examine import EDGE, Examiner, masses
from spsbench.audit.statistical.forward import PRECISE, plain
from spsbench.audit.statistical.suspects import Text


class Rounding(NamedTuple):
    """What rounding may explain."""

    band: Floats  # [D] of a set's chance, on the mean over tokens
    edge: float  # of logits, or of mass at the edge of a nucleus


def no_rounding() -> Rounding:
    """That of float32."""
    return Rounding(NO_BAND, EDGE)


def rounding(model: PreTrainedModel, examiner: Examiner, texts: list[Text]) -> Rounding:
    """Compare `model` in its own precision with the scorer, on `texts`; exact models need none."""
    if model.dtype in PRECISE:
        return no_rounding()
    shifts, gap = [], EDGE
    for text in texts:
        wide = examiner.scorer.logits(text.prompt, text.tokens)
        if not len(wide):
            continue
        whole = [*text.prompt, *text.tokens[: len(wide) - 1]]
        narrow = plain(model, whole, len(wide))[:, : wide.shape[1]].numpy()
        gap = max(gap, 2 * float(np.abs(narrow - wide).max()) / examiner.warp.temperature)
        q = examiner.laws(wide).law
        sets = examiner.sets(q, examiner.suspect.on(text)(0, q))
        shifts.append(np.abs(masses(examiner.laws(narrow).law, sets) - masses(q, sets)))
    if not shifts:
        return no_rounding()
    moved = np.concatenate(shifts)
    error = moved.std(0) / np.sqrt(len(moved))
    return Rounding(moved.mean(0) + 3 * error, gap)
