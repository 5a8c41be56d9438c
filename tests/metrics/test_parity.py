"""Verdicts of parity, and that they are wrong no more often than they say."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from spsbench.metrics.parity import ParityVerdict, parities, parity, parity_margins, qualities
from spsbench.settings.records import Score
from tests.simulation import cell


def arms(difference, noise, n, seed=0, level=0.4):
    draw = np.random.default_rng(seed)
    ars = np.clip(level + draw.normal(0, 0.1, n), 0, 1)
    sps = ars + difference + draw.normal(0, noise, n)
    return tuple({f"s{i}": float(v) for i, v in enumerate(arm)} for arm in (ars, sps))


@pytest.mark.parametrize(
    ("difference", "noise", "n", "verdict"),
    [
        (0.0, 0.02, 2000, ParityVerdict.EQUIVALENT),
        (0.001, 0.002, 2000, ParityVerdict.EQUIVALENT),  # certain, and too small to matter
        (0.02, 0.02, 400, ParityVerdict.DIFFERENT),
        (0.0, 0.2, 50, ParityVerdict.UNDECIDED),
        (0.0, 0.0, 5, ParityVerdict.UNDECIDED),  # too few to say
    ],
)
def test_verdicts(difference, noise, n, verdict):
    found = parity("rouge2", *arms(difference, noise, n), parity_margins()["rouge2"])
    assert found.verdict is verdict
    assert found.difference.n == n
    assert found.difference.mean == pytest.approx(found.sps - found.ars)


@pytest.mark.parametrize("level", [0.0, 1.0, 0.5])
def test_arms_at_the_floor_or_ceiling_or_all_alike_say_nothing(level):
    arm = {f"s{i}": level for i in range(164)}
    found = parity("pass@1", arm, arm, 0.012)
    assert found.verdict is ParityVerdict.NOT_INFORMATIVE
    assert str(found) == "not informative"


def test_samples_are_paired():
    ars, sps = arms(0.02, 0.0, 1000)
    ars["lost"], sps["other"] = 0.9, 0.1
    found = parity("rouge2", ars, dict(reversed(sps.items())), 0.003)
    assert found.difference.mean == pytest.approx(0.02)
    assert found.difference.high == pytest.approx(0.02, abs=0.004)
    assert found.difference.n == 1000
    assert parity("rouge2", {"a": 1.0}, {"b": 1.0}, 0.003) is None


def test_the_ordinary_interval_stands_beside_the_bound_on_the_scale_of_the_tables():
    """Of twelve texts whose scores are small and alike, the bound is wide and Student's is not."""
    ars, sps = arms(-0.0057, 0.02, 12, level=0.2)
    found = parity("rouge2", ars, sps, 0.003)
    differences = np.array([sps[name] - ars[name] for name in ars])
    side = 2.201 * differences.std(ddof=1) / math.sqrt(12)  # t of 11 degrees of freedom
    low, high = differences.mean() - side, differences.mean() + side
    assert found.usual[:4] == pytest.approx((differences.mean(), low, high, 12), abs=2e-4)
    assert found.difference.low < low < high < found.difference.high
    assert found.shown[:4] == pytest.approx(
        (100 * differences.mean(), 100 * low, 100 * high, 12), abs=0.02
    )
    means = f"rouge2 {100 * found.ars:.2f} with ArS, {100 * found.sps:.2f} with SpS over 12 samples"
    assert found.sentence.startswith(f"{means}, difference {100 * differences.mean():+.2f} [")
    assert f"bound [{100 * found.difference.low:+.2f}, " in found.sentence
    other = parity("pass@1", ars, sps, 0.012)
    assert other.sentence.startswith(f"pass@1 {other.ars:.4f} with ArS")


@pytest.mark.parametrize("margin", [0.0, -1.0, float("nan")])
def test_a_margin_must_be_one(margin):
    with pytest.raises(ValueError):
        parity("rouge2", {}, {}, margin)


def of_counts(n, gained, lost):
    """One program a problem: `gained` pass by SpS alone, `lost` by ArS alone, half the rest."""
    sps, ars = np.arange(n) % 2.0, np.arange(n) % 2.0
    ars[:gained], sps[:gained] = 0, 1
    ars[gained : gained + lost], sps[gained : gained + lost] = 1, 0
    return parity("pass@1", dict(enumerate(ars)), dict(enumerate(sps)), parity_margins()["pass@1"])


@pytest.mark.parametrize("lost", [0.0, 0.004])
@pytest.mark.parametrize("n", [6, 40, 164, 249])
def test_of_yes_and_no_the_level_is_kept(n, lost):
    """Exact, over all counts of problems solved by one arm alone, at once and at twice the margin.

    What is further out adds little, and has no verdict of equivalence.
    """
    for times in (1, 2):
        gained = lost + times * parity_margins()["pass@1"]
        both = range(math.ceil(n * gained) + 1), range(math.ceil(2 * n * lost) + 5)
        said = sum(
            multinomial(n, b, c, gained, lost)
            for b, c in itertools.product(*both)  # b beyond its mean is never called equivalent
            if of_counts(n, b, c).verdict is ParityVerdict.EQUIVALENT
        )
        assert said <= 0.05


def multinomial(n, b, c, gained, lost):
    if b + c > n or (c and not lost):
        return 0.0
    ways = math.comb(n, b) * math.comb(n - b, c)
    return ways * gained**b * lost**c * (1 - gained - lost) ** (n - b - c)


def test_problems_it_takes():
    """None that differ show nothing of those not asked: of 164 problems too few are left."""
    assert str(of_counts(164, 0, 0)) == "undecided within 0.012, about 249 samples would decide"
    assert str(of_counts(249, 0, 0)) == "equivalent within 0.012"
    noisy = of_counts(400, 10, 10)
    assert noisy.verdict is ParityVerdict.UNDECIDED
    assert 4000 < noisy.needed < 4500
    assert of_counts(noisy.needed, noisy.needed // 40, noisy.needed // 40).verdict is (
        ParityVerdict.EQUIVALENT
    )
    assert of_counts(164, 12, 0).verdict is ParityVerdict.DIFFERENT
    assert str(of_counts(7, 0, 0)).startswith("undecided")


@pytest.mark.parametrize(
    ("noise", "margin", "n"), [(0.002, 0.003, 50), (0.05, 0.01, 50), (0.2, 0.03, 50)]
)
def test_as_many_samples_as_advised_decide_in_four_of_five_cases(noise, margin, n):
    decided = []
    for seed in range(60):
        first = parity("rouge2", *arms(0.0, noise, n, seed), margin)
        assert first.verdict is ParityVerdict.UNDECIDED
        again = parity("rouge2", *arms(0.0, noise, first.needed, 1000 + seed), margin)
        decided.append(again.verdict is ParityVerdict.EQUIVALENT)
    assert np.mean(decided) >= 0.8


def by_cell(cells, scores):
    scores = list(scores)
    return {of.id: qualities(s for s in scores if s.cell == of.id) for of in cells}


def test_each_drafting_cell_is_held_against_its_baseline():
    cells = [cell(0), cell(2), cell(4), cell(4, temperature=0.5)]
    ars, sps = arms(0.02, 0.0, 1000)
    values = dict(zip((c.id for c in cells), (ars, ars, sps, sps), strict=True))
    scores = (
        Score(key, sample, 0, {"rouge2": value, "length": 9.0})
        for key, arm in values.items()
        for sample, value in arm.items()
    )
    found = [(c.k, p.metric, p.verdict) for c, p in parities(cells, by_cell(cells, scores))]
    assert found == [
        (2, "rouge2", ParityVerdict.EQUIVALENT),
        (4, "rouge2", ParityVerdict.DIFFERENT),
    ]
    assert parities(cells, by_cell(cells, [])) == []


def test_identical_texts_need_no_sample_more():
    cells = [cell(0, temperature=0.0), cell(4, temperature=0.0)]
    scores = [Score(c.id, f"s{i}", 0, {"rouge2": i / 3}) for c in cells for i in range(3)]
    ((_, found),) = parities(cells, by_cell(cells, scores), identical={cells[1].id})
    assert found.verdict is ParityVerdict.IDENTICAL
    assert (found.difference.low, found.difference.high, found.needed) == (0.0, 0.0, 0)
    assert str(found) == "identical, since all texts are equal"
    ((_, unknown),) = parities(cells, by_cell(cells, scores))
    assert unknown.verdict is ParityVerdict.UNDECIDED
    unlike = [*scores[:-1], replace(scores[-1], metrics={"rouge2": 0.0})]
    ((_, noisy),) = parities(cells, by_cell(cells, unlike), identical={cells[1].id})
    assert noisy.verdict is ParityVerdict.UNDECIDED  # equal texts were scored unlike


def answered(chance, samples=164, repeats=24, seed=0):
    """Scores of a cell by sample and by answer, solved with a sample's `chance` each."""
    passed = np.random.default_rng(seed).random((samples, repeats)) < chance[:, None]
    by_sample = {f"s{i}": float(row.mean()) for i, row in enumerate(passed)}
    by_answer = {f"s{i}/{j}": float(x) for i, row in enumerate(passed) for j, x in enumerate(row)}
    return {"pass@1": by_sample}, {"pass@1": by_answer}


CHANCE = np.where(np.arange(164) % 20 == 0, 0.8, 0.01)


def test_answers_to_all_samples_of_a_task_decide_where_its_samples_are_too_few():
    cells = [cell(0), cell(4)]
    made = {of.id: answered(CHANCE, seed=of.k) for of in cells}
    by_sample, by_answer = ({name: both[i] for name, both in made.items()} for i in (0, 1))
    ((_, few),) = parities(cells, by_sample)
    ((_, found),) = parities(cells, by_sample, answers=by_answer)
    assert (few.verdict, found.verdict) == (ParityVerdict.UNDECIDED, ParityVerdict.EQUIVALENT)
    assert (found.ars, found.sps) == pytest.approx((few.ars, few.sps))
    assert (few.difference.n, found.difference.n) == (164, 164 * 24)
    one_alone = {cells[0].id: by_answer[cells[0].id]}
    assert parities(cells, by_sample, answers=one_alone) == [(cells[1], few)]


def test_answers_are_seldom_called_equivalent_at_the_margin():
    margin = parity_margins()["pass@1"]
    worse = CHANCE + margin * 164 / (CHANCE < 0.5).sum() * (CHANCE < 0.5)
    said = 0
    for seed in range(0, 200, 2):
        ars, sps = (answered(c, seed=s)[1] for c, s in ((CHANCE, seed), (worse, seed + 1)))
        test = parity("pass@1", ars["pass@1"], sps["pass@1"], margin)
        said += test.verdict is ParityVerdict.EQUIVALENT
    assert said <= 11  # of 100 with a chance of 0.05 each: more in one case of 240
