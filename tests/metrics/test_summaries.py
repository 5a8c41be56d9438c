"""Summaries against brute force over the same simulated records."""

import math
import statistics
from dataclasses import replace

import pytest

from spsbench.metrics.intervals import Estimate
from spsbench.metrics.summaries import summaries
from spsbench.settings.models import ModelSpec
from spsbench.settings.records import RoundRecord, Score, TreeRound
from spsbench.spec import Spec
from tests.simulation import PREFILL, cell, failure, record, run

ARS, SPS = cell(0), cell(4)
N = 12


@pytest.fixture(scope="module")
def records():
    return [r for c in (ARS, SPS) for r in run(c, 0.7, N, repeats=2, spread=0.1)]


@pytest.fixture(scope="module")
def made(records):
    return summaries([ARS, SPS], iter(records))[1]


def of(records, c):
    return [r for r in records if r.cell == c.id]


def mean(summary, name):
    estimate = summary.figures[name]
    return estimate.mean


def test_every_figure_by_brute_force(records, made):
    own = of(records, SPS)
    flat = [r for one in own for r in one.rounds]
    tokens = sum(r.emitted for r in flat)
    seconds = math.fsum(r.seconds for r in flat)
    drafted = sum(r.drafted for r in flat)
    accepted = sum(r.accepted for r in flat)
    draft, target = (math.fsum(column) for column in zip(*[r[6:8] for r in flat], strict=True))
    expected = {
        "alpha": math.fsum(r.overlap or 0 for r in flat) / sum(r.tested for r in flat),
        "alpha_counted": accepted / sum(r.tested for r in flat),
        "draft_acceptance": accepted / drafted,
        "block_efficiency": tokens / len(flat),
        "efficiency": tokens / len(flat) / 5,
        "accepted_length": accepted / len(flat),
        "text_tokens": tokens / len(own),
        "mean_token_time_ms": 1e3 * seconds / tokens,
        "token_time_with_prefill_ms": 1e3 * (seconds + 2 * N * PREFILL) / tokens,
        "loop_time_ms": 1e3 * seconds / len(flat),
        "ttft_ms": 1e3 * statistics.mean(PREFILL + one.rounds[0].seconds for one in own),
        "answer_ms": 1e3 * (PREFILL + seconds / len(own)),
        "prefill_ms": 1e3 * PREFILL,
        "draft_share": draft / seconds,
        "target_share": target / seconds,
        "verify_share": 1 - (draft + target) / seconds,
        "draft_pass_ms": 1e3 * draft / drafted,
        "target_pass_ms": 1e3 * target / len(flat),
    }
    for i in range(1, 5):
        at = [r for r in flat if r.tested >= i]
        expected[f"alpha_at.{i}"] = sum(r.accepted >= i for r in at) / len(at)
    assert {name: mean(made, name) for name in expected} == pytest.approx(expected)


def test_time_to_the_horizon_by_brute_force(records):
    times = []
    for one in of(records, SPS):
        done, clock = 0, 0.0
        for r in one.rounds:
            done, clock = done + r.emitted, clock + r.seconds
            if done >= 50:
                times.append(1e3 * clock)
                break
    made = summaries([SPS], of(records, SPS), horizon=50)[0]
    assert made.horizon == 50
    assert mean(made, "horizon_time_ms") == pytest.approx(statistics.mean(times))
    assert made.spread["sd"] == pytest.approx(statistics.stdev(times))
    assert made.spread["p50"] == pytest.approx(statistics.median(times))
    assert made.spread["p90"] is not None
    assert made.spread["p99"] is None  # of 24 generations none lies beyond it
    assert summaries([SPS], of(records, SPS), horizon=10**6)[0].horizon == SPS.max_new_tokens


def test_speedup_and_costs_by_brute_force(records, made):
    slow, fast = ([r for one in of(records, c) for r in one.rounds] for c in (ARS, SPS))

    def token_time(rounds):
        return sum(r.seconds for r in rounds) / sum(r.emitted for r in rounds)

    def target_pass(rounds):
        return sum(r.target_seconds for r in rounds) / len(rounds)

    assert mean(made, "speedup") == pytest.approx(token_time(slow) / token_time(fast))

    def with_prefill(rounds):
        return token_time(rounds) + 2 * N * PREFILL / sum(r.emitted for r in rounds)

    assert mean(made, "answer_speedup") == pytest.approx(with_prefill(slow) / with_prefill(fast))
    c = sum(r.draft_seconds for r in fast) / sum(r.drafted for r in fast) / target_pass(slow)
    v = target_pass(fast) / target_pass(slow)
    assert mean(made, "cost_ratio") == pytest.approx(c)
    assert mean(made, "verify_ratio") == pytest.approx(v)
    alpha = mean(made, "alpha")
    tokens = sum((1 - alpha ** (r.drafted + 1)) / (1 - alpha) for r in fast) / len(fast)
    tokens = min(tokens, mean(made, "block_efficiency"))
    cost = sum(r.drafted for r in fast) / len(fast) * c + v
    assert mean(made, "predicted_speedup") == pytest.approx(tokens / cost)


def test_rounds_without_a_draft_are_predicted_as_plain_rounds():
    """A drafter by rule: half of the rounds draft nothing, the others two tokens of K = 4."""
    plain = RoundRecord(0, 0, 0, 1, None, 1.0, 0.0, 1.0)
    kept = RoundRecord(2, 2, 1, 2, None, 1.1, 0.0, 1.1)
    every = [record(ARS, f"s{i}", 0, [plain] * 30) for i in range(N)]
    every += [record(SPS, f"s{i}", 0, [plain, kept] * 10) for i in range(N)]
    made = summaries([ARS, SPS], every)[1]
    assert mean(made, "alpha_counted") == pytest.approx(1 / 2)
    assert mean(made, "block_efficiency") == pytest.approx(1.5)
    assert made.predicted_speedup is None  # no distribution is known of these drafts: no alpha
    known = [
        replace(r, rounds=[each._replace(overlap=float(each.accepted)) for each in r.rounds])
        for r in every
    ]
    made = summaries([ARS, SPS], known)[1]
    tokens = 1 + (1 / 2 + 1 / 4) / 2  # 1 + alpha + alpha^2 in every second round
    assert mean(made, "predicted_speedup") == pytest.approx(tokens / 1.05)


def test_speedup_is_over_the_pairs_that_both_have(records):
    lost = {("s0", 0), ("s1", 1)}
    kept = [r for r in records if r.cell == SPS.id or (r.sample, r.repeat) not in lost]
    flagged = [
        record(SPS, r.sample, r.repeat, r.rounds, flags=("first",))
        if r.cell == SPS.id and r.sample == "s5"
        else r
        for r in kept
    ]
    made = summaries([ARS, SPS], flagged)[1]
    assert made.speedup.n == 2 * N - 4
    assert made.n == 2 * N
    assert made.timed == 2 * N - 2
    assert made.mean_token_time_ms.n == 2 * N - 2


def test_the_baseline_is_its_own_and_nobody_elses(records):
    base = summaries([ARS, SPS], records)[0]
    assert base.speedup[:3] == pytest.approx((1, 1, 1))
    assert base.predicted_speedup is base.cost_ratio is base.alpha is None
    for change in (
        {"temperature": 0.5},
        {"top_p": 0.9},
        {"target": ModelSpec("large", dtype="bfloat16")},
        {"target": ModelSpec("large", engine=Spec("eager"))},
        {"task": Spec("humaneval")},
    ):
        stranger = cell(0, **change)
        both = [record(stranger, r.sample, r.repeat, r.rounds) for r in of(records, ARS)]
        made = summaries([stranger, SPS], both + of(records, SPS))[1]
        assert made.speedup is made.cost_ratio is made.verify_ratio is None


def test_failures_are_counted_and_in_no_figure(records, made):
    worse = summaries([ARS, SPS], [*records, failure(SPS, "s99"), failure(SPS, "s98")])[1]
    assert worse.failures == 2
    assert worse.n == made.n
    assert worse.figures == made.figures


def test_only_failures_and_nothing_at_all():
    failed, empty = summaries([SPS, ARS], [failure(SPS, "a")])
    assert (failed.n, failed.failures, empty.n, empty.failures) == (0, 1, 0, 0)
    assert all(value is None for s in (failed, empty) for value in s.figures.values())
    assert summaries([], []) == []


def test_rounds_that_do_not_test_one_by_one():
    block = RoundRecord(4, -1, 2, 3, None, 0.02, 0.008, 0.01)
    plain = RoundRecord(4, 3, 2, 3, None, 0.02, 0.008, 0.01)
    only, mixed = (
        summaries([SPS], [record(SPS, s, 0, rows) for s in "ab"])[0]
        for rows in ([block], [block, plain])
    )
    assert only.alpha is only.alpha_counted is None
    assert only.alpha_at == (None,) * 4
    assert mixed.alpha is None
    assert mean(mixed, "alpha_counted") == pytest.approx(2 / 3)
    assert mean(mixed, "alpha_at.3") == 0


def test_texts_whose_rounds_are_not_told_are_in_no_figure_of_rounds():
    told = RoundRecord(4, 3, 2, 3, None, 0.02, 0.0, 0.0)
    sums = RoundRecord(8, -1, 4, 6, None, 0.05, 0.0, 0.0, passes=2)
    unknown = RoundRecord(0, 0, 0, 50, None, 0.9, 0.0, 0.0, passes=0)
    rows = {"a": [told], "b": [sums], "c": [unknown]}
    row = summaries([SPS], [record(SPS, s, 0, rounds) for s, rounds in rows.items()])[0]
    assert mean(row, "block_efficiency") == pytest.approx((3 + 6) / 3)
    assert mean(row, "efficiency") == pytest.approx((3 + 6) / 3 / 5)
    assert mean(row, "accepted_length") == pytest.approx((2 + 4) / 3)
    assert mean(row, "loop_time_ms") == pytest.approx(1e3 * (0.02 + 0.05) / 3)
    assert mean(row, "text_tokens") == pytest.approx(59 / 3)
    assert mean(row, "mean_token_time_ms") == pytest.approx(1e3 * 0.97 / 59)
    only = summaries([SPS], [record(SPS, "c", 0, [unknown])])[0]
    assert only.block_efficiency is only.efficiency is only.loop_time_ms is None


def test_parts_that_nobody_measured_are_not_zero():
    rounds = [RoundRecord(4, 3, 2, 3, None, 0.02, 0.0, 0.0)]
    made = summaries([SPS], [record(SPS, s, 0, rounds) for s in "ab"])[0]
    assert made.draft_share is made.target_share is made.verify_share is None
    assert made.draft_pass_ms is made.target_pass_ms is made.processor_token_time_ms is None


def test_cut_prompts_are_counted_by_sample():
    rows = [RoundRecord(0, 0, 0, 1, None, 0.01, 0.0, 0.01)]
    cuts = [record(ARS, "a", i, rows, prompt_cut=True) for i in range(3)]
    assert summaries([ARS], [*cuts, record(ARS, "b", 0, rows)])[0].cut == 1


SCORES = (("a", 0, 0.1), ("a", 1, 0.3), ("b", 0, 0.6))


def test_a_task_combines_its_own_scores():
    seen = []

    def best(scores):
        seen.extend([one["rouge2"] for one in repeats] for repeats in scores)
        return {"best": [max(values) for values in seen]}

    scores = [Score(SPS.id, s, i, {"rouge2": v}) for s, i, v in reversed(SCORES)]
    made = summaries([SPS], [], scores, combine=lambda cell: best)[0]
    assert seen == [[0.1, 0.3], [0.6]]
    assert mean(made, "quality.best") == pytest.approx(0.45)


def test_strangers_are_refused():
    with pytest.raises(ValueError):
        summaries([ARS], [record(SPS, "a", 0, [])])
    with pytest.raises(ValueError):
        summaries([ARS], [], [Score(SPS.id, "a", 0, {})])


def test_rows_by_group_are_those_of_each_group_alone(records):
    def group(one):
        return {0: "a", 1: "b"}.get(int(one.sample[1:]) % 3)

    marked = [replace(one, group=group(one)) for one in records]
    scores = [Score(*one.key, {"length": float(len(one.rounds))}) for one in records]
    rows = summaries([ARS, SPS], iter(marked), iter(scores), by_group=True)
    assert [(row.group, row.cell.k) for row in rows] == [
        *(("a", 0), ("a", 4), ("b", 0), ("b", 4), ("", 0), ("", 4), (None, 0), (None, 4))
    ]
    assert rows[6:] == summaries([ARS, SPS], iter(records), iter(scores))
    for row in rows[:6]:
        own = [one for one in records if (group(one) or "") == row.group]
        keys = {one.key for one in own}
        alone = summaries([ARS, SPS], own, [s for s in scores if s.key in keys])
        assert replace(row, group=None) == alone[row.cell.k == 4]


def test_figures_of_trees_by_hand():
    """Three rounds: a path to a leaf, one that ends before its children, nothing kept."""
    walks = [
        TreeRound(2, (1, 3), (1, 0), (2, 2, 0)),
        TreeRound(3, (0,), (0,), (3, 2)),
        TreeRound(1, (), (), (3,)),
    ]
    tested = (2, 2, 1)
    rounds = [
        RoundRecord(6, t, len(w.path), len(w.path) + 1, None, 0.02, 0.01, 0.01, None, w)
        for w, t in zip(walks, tested, strict=True)
    ]
    made = summaries([SPS], [record(SPS, "a", 0, rounds)])[0]
    assert mean(made, "block_efficiency") == pytest.approx(6 / 3)
    assert mean(made, "efficiency") == pytest.approx(6 / (3 + 2 + 3 + 1))
    assert mean(made, "draft_acceptance") == pytest.approx(3 / 6)
    assert mean(made, "draft_pass_ms") == pytest.approx(1e3 * 0.03 / 6)
    assert mean(made, "alpha_counted") == pytest.approx(3 / 5)
    assert [mean(made, f"alpha_at.{i}") for i in (1, 2)] == [2 / 3, 1 / 2]
    assert [mean(made, f"sibling_at.{i}") for i in (1, 2, 3)] == [2 / 5, 1 / 3, 0]
    assert len(made.sibling_at) == 3
    assert made.alpha is None
    assert [r.full for r in rounds] == [True, False, False]


def test_peak_memory_is_the_greatest_of_the_records_that_have_it():
    one = cell(0)
    peaks = zip(run(one, 0.7, 3), (100.0, 300.0, None), strict=True)
    measured = [replace(each, peak_memory_mib=peak) for each, peak in peaks]
    (row,) = summaries([one], measured)
    assert row.figures["peak_memory_mib"] == Estimate(300.0, None, None, 2)
    (older,) = summaries([one], run(one, 0.7, 3))
    assert older.figures["peak_memory_mib"] is None
