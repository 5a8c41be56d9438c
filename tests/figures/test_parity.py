"""Verdicts of parity, and that they are wrong no more often than they say."""

import numpy as np
import pytest

from spsbench.figures.parity import MARGINS, Verdict, parities, parity, student
from spsbench.settings.records import Score
from tests.simulation import cell


def arms(difference: float, noise: float, n: int, seed: int = 0, level: float = 0.4) -> tuple:
    draw = np.random.default_rng(seed)
    ars = np.clip(level + draw.normal(0, 0.1, n), 0, 1)
    sps = ars + difference + draw.normal(0, noise, n)
    return tuple({f"s{i}": float(v) for i, v in enumerate(arm)} for arm in (ars, sps))


@pytest.mark.parametrize(
    ("difference", "noise", "n", "verdict"),
    [
        (0.0, 0.02, 2000, Verdict.EQUIVALENT),
        (0.001, 0.002, 2000, Verdict.EQUIVALENT),  # there for certain, and too small to matter
        (0.02, 0.02, 200, Verdict.DIFFERENT),
        (0.0, 0.2, 50, Verdict.UNDECIDED),
        (0.0, 0.0, 5, Verdict.UNDECIDED),  # too few to say
    ],
)
def test_verdicts(difference: float, noise: float, n: int, verdict: Verdict) -> None:
    found = parity("rouge2", *arms(difference, noise, n), MARGINS["rouge2"])
    assert found is not None
    assert found.verdict is verdict
    assert found.difference.n == n
    assert found.difference.mean == pytest.approx(found.sps - found.ars)


@pytest.mark.parametrize("level", [0.0, 1.0, 0.005, 0.5])
def test_arms_at_the_floor_or_ceiling_or_all_alike_say_nothing(level: float) -> None:
    arm = {f"s{i}": level for i in range(164)}
    found = parity("pass@1", arm, arm, 0.012)
    assert found is not None
    assert found.verdict is Verdict.NOT_INFORMATIVE
    assert str(found) == "not informative"


def test_identical_texts_are_equivalent() -> None:
    arm = {f"s{i}": i / 100 for i in range(100)}
    found = parity("rouge2", arm, arm, 0.003)
    assert found is not None
    assert str(found) == "equivalent within 0.003"
    assert found.difference == (0, 0, 0, 100)


def test_samples_are_paired() -> None:
    ars, sps = arms(0.02, 0.0, 50)
    ars["lost"], sps["other"] = 0.9, 0.1
    found = parity("rouge2", ars, dict(reversed(sps.items())), 0.003)
    assert found is not None
    assert found.difference.mean == pytest.approx(0.02)
    assert found.difference.high == pytest.approx(0.02)
    assert parity("rouge2", {"a": 1.0}, {"b": 1.0}, 0.003) is None


@pytest.mark.parametrize("margin", [0.0, -1.0, float("nan")])
def test_a_margin_must_be_one(margin: float) -> None:
    with pytest.raises(ValueError, match="margin"):
        parity("rouge2", {}, {}, margin)


@pytest.mark.parametrize(
    ("df", "quantile"), [(5, 2.5706), (10, 2.2281), (30, 2.0423), (1000, 1.9623)]
)
def test_student_is_that_of_the_tables(df: int, quantile: float) -> None:
    assert student(0.975, df) == pytest.approx(quantile, abs=0.002)


def test_at_the_margin_it_says_equivalent_at_most_one_time_in_twenty() -> None:
    margin = 0.01
    verdicts = [parity("x", *arms(margin, 0.02, 100, seed), margin) for seed in range(400)]
    wrong = sum(v is not None and v.verdict is Verdict.EQUIVALENT for v in verdicts)
    assert wrong <= 0.08 * len(verdicts)


def test_without_a_difference_its_interval_holds_zero_about_as_often_as_said() -> None:
    found = [parity("x", *arms(0.0, 0.1, 30, seed), 0.001) for seed in range(400)]
    held = sum(f.difference.low <= 0 <= f.difference.high for f in found if f)
    assert 0.92 <= held / len(found) <= 0.98


def test_each_drafting_cell_is_held_against_its_baseline() -> None:
    cells = [cell(0), cell(2), cell(4), cell(4, temperature=0.5)]
    ars, sps = arms(0.02, 0.0, 50)
    values = dict(zip((c.id for c in cells), (ars, ars, sps, sps), strict=True))
    scores = (
        Score(key, sample, 0, {"rouge2": value, "length": 9.0})
        for key, arm in values.items()
        for sample, value in arm.items()
    )
    found = [(c.k, p.metric, p.verdict) for c, p in parities(cells, scores)]
    assert found == [(2, "rouge2", Verdict.EQUIVALENT), (4, "rouge2", Verdict.DIFFERENT)]
    assert parities(cells, []) == []
