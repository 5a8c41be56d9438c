"""A classifier of whether a slot will be kept, fitted on a trace (after DISCO, arXiv 2405.04304).

Features are known before the slot's token is sampled: the entropy of the draft's distribution, its
greatest probability, and the slot's place in the draft. The label of a position is its acceptance
probability, sum_x min(p, q) for `sps`, given that all earlier slots were accepted. Which position
is which slot depends on where rounds begin: each pair counts with its chance under rounds of many
tokens (`planning.fit.slots_of`).
"""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spsbench.errors import DataError, MissingError, UsageError
from spsbench.metrics.intervals import Floats
from spsbench.untrusted import read_json

KIND, VERSION = "spsbench disco", 2
FEWEST = 100  # positions; four coefficients need more than a few
RIDGE = 1e-3  # in positions; keeps coefficients finite where all labels are alike
STEPS = 100
DONE = 1e-10

Slots = tuple[NDArray[np.int64], NDArray[np.int64], Floats]
"""[R] positions, slots from 0, and the chances that the one is drafted as the other."""


@dataclass(frozen=True)
class Classifier:
    """Chance = logistic(bias + entropy * H(p) + peak * max p + slot * i); H in nats, i from 0."""

    bias: float
    entropy: float
    peak: float
    slot: float = 0.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not math.isfinite(value):
                raise ValueError(f"{name} is {value}: expected a finite number")

    def chances(self, entropies: Floats, peaks: Floats, slots: Floats | int = 0) -> Floats:
        """Return [L] chances that tokens are kept, by entropy, greatest probability and slot."""
        logits = self.bias + self.entropy * entropies + self.peak * peaks + self.slot * slots
        return _logistic(logits)


class Fitted(NamedTuple):
    """A classifier, and its loss on the data of the fit."""

    classifier: Classifier
    positions: int
    loss: float  # mean cross-entropy in nats a position
    plain: float  # loss of a constant: the mean label

    def __str__(self) -> str:
        return (
            f"{self.positions} positions, {self.loss:.4f} nats each: {self.plain:.4f} by their "
            "mean alone"
        )


def fit(entropies: Floats, peaks: Floats, kept: Floats, drafted: Slots) -> Fitted:
    """Fit a logistic regression of acceptance on entropy, greatest probability and slot.

    `entropies` [L] in nats and `peaks` [L] are of the draft's distributions along all texts, `kept`
    [L] the acceptance chances. `drafted` has [R] positions, the slot that each is drafted as, and
    weights. Newton's method, small ridge, standardised features; losses on all data. UsageError:
    fewer than `FEWEST` positions, an entropy or peak that is not finite, a chance not in 0 to 1.
    """
    at_positions, labels = np.stack([entropies, peaks], 1).astype(float), kept.astype(float)
    if len(labels) < FEWEST:
        raise UsageError(
            f"{len(labels)} positions to fit on: expected {FEWEST} or more. Record more text"
        )
    if not (np.isfinite(at_positions).all() and ((labels >= 0) & (labels <= 1)).all()):
        raise UsageError(
            "the trace holds an entropy that is no number, or a chance outside 0 to 1: expected a "
            "trace of these models. Record it again"
        )
    positions, slots, weights = drafted
    features = np.column_stack([at_positions[positions], slots])  # [R, 3]
    middle = np.average(features, 0, weights)
    spread = np.sqrt(np.average((features - middle) ** 2, 0, weights))
    spread = np.where(spread > 0, spread, 1.0)
    rows = np.column_stack([np.ones(len(features)), (features - middle) / spread])  # [R, 4]
    labels = labels[positions]
    standardised = _newton(rows, labels, weights)
    entropy, peak, slot = (float(value) for value in standardised[1:] / spread)
    bias = float(standardised[0] - middle @ np.array([entropy, peak, slot]))
    classifier = Classifier(bias, entropy, peak, slot)
    loss = _loss(labels, classifier.chances(*features.T), weights)
    mean = np.full_like(labels, np.average(labels, weights=weights))
    return Fitted(classifier, len(kept), loss, _loss(labels, mean, weights))


def write_classifier(path: Path, fitted: Fitted) -> None:
    """Write a classifier and its losses as JSON, over any old file; MissingError: not writable."""
    quality = {"positions": fitted.positions, "loss": fitted.loss, "plain": fitted.plain}
    values = {"kind": KIND, "version": VERSION, **asdict(fitted.classifier), "fitted": quality}
    try:
        path.write_text(json.dumps(values, indent=1) + "\n")
    except OSError as error:
        raise MissingError(
            f"cannot write {path} ({error.strerror}): expected a folder that is there. Check it"
        ) from error


def read_classifier(path: Path) -> Classifier:
    """Read a classifier that `write_classifier` wrote; SpsError: unreadable, or of another kind."""
    values = read_json(path, "a classifier")
    try:
        if (values["kind"], values["version"]) != (KIND, VERSION):
            raise ValueError(f"{values['kind']!r}, version {values['version']!r}")
        return Classifier(*(float(values[name]) for name in ("bias", "entropy", "peak", "slot")))
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} holds no classifier ({type(error).__name__}: {error}): expected what "
            "`fit` disco:out=FILE wrote. Fit it again"
        ) from error


def _newton(rows: Floats, labels: Floats, weights: Floats) -> Floats:
    """Fit weighted [R] labels by logistic ridge regression on [R, 4] rows (1 first); return [4]."""
    ridge = np.diag([0.0, RIDGE, RIDGE, RIDGE])
    mean = min(max(float(np.average(labels, weights=weights)), 1e-6), 1 - 1e-6)
    coefficients = np.array([math.log(mean / (1 - mean)), 0.0, 0.0, 0.0])
    for _ in range(STEPS):
        chances = _logistic(rows @ coefficients)
        slope = rows.T @ (weights * (labels - chances)) - ridge @ coefficients
        curvature = weights * np.maximum(chances * (1 - chances), 1e-9)
        step = np.linalg.solve(rows.T @ (rows * curvature[:, None]) + ridge, slope)
        size = float(np.abs(step).max())
        coefficients = coefficients + step * min(1.0, 4.0 / size if size > 0 else 1.0)
        if size < DONE:
            break
    return coefficients


def _loss(labels: Floats, chances: Floats, weights: Floats) -> float:
    sure = np.clip(chances, 1e-12, 1 - 1e-12)
    losses = -(labels * np.log(sure) + (1 - labels) * np.log(1 - sure))
    return float(np.average(losses, weights=weights))


def _logistic(x: Floats) -> Floats:
    return np.asarray(0.5 * (1 + np.tanh(x / 2)))
