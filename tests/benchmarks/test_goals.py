"""The table of goals: what is recorded for a processor, against its bounds."""

import json
from types import SimpleNamespace

import pytest

import goals
from peers import Times, ratio


@pytest.fixture
def lines():
    def told(figures):
        kept = {goals.cpu_kind(): {"nano": {"date": "today", "figures": figures}}}
        minutes = dict.fromkeys((each.measurement for each in goals.GOALS), 1.0)
        return list(goals.table(kept, minutes))

    return told


def test_a_goal_is_reached_missed_or_not_measured_with_its_command(lines):
    made = lines({"stdlib": {"median": [1.5, 1.4, 1.6]}, "news": {"median": [2.19, None, None]}})
    code, news, token = made[3:6]
    assert "| 1.5 | 1.4 to 1.6 |  | yes |" in code
    assert "| 2.19 |  |  | **no** |" in news
    assert "not measured" in token
    assert "goals.py --measure draft-token" in token


def test_at_most_and_at_least_are_told_apart():
    bounds = {goal.figure: (goal.bound, goal.least) for goal in goals.GOALS}
    assert bounds["round"] == (1.35, False)
    assert bounds["best xsum 0.8"] == (1.3, True)


def test_every_goal_has_a_measurement(tmp_path):
    given = SimpleNamespace(work=tmp_path, peers_python="python", head="none", articles=None)
    assert {goal.measurement for goal in goals.GOALS} <= goals.measurements(given).keys()


def test_a_ratio_is_the_median_over_prompts_and_that_of_totals():
    plain = {(str(i), 0): Times(2.0 * (1 + i), 1 + i, 1 + i) for i in range(9)}
    sps = {(str(i), 0): Times(1.0 * (1 + i), 1 + i, 1) for i in range(9)}
    sps["8", 0] = Times(90.0, 9, 1)  # one long text that loses: the median does not see it
    found = ratio(plain, {**sps, ("only here", 0): Times(1.0, 1, 1)})
    assert found["median"][0] == 2.0
    assert found["totals"][0] == pytest.approx(90 / 126)
    assert ratio(sps, plain, "rounds")["median"][0] == pytest.approx(2.5)


def test_five_rows_of_avx2_may_take_as_many_rooflines_as_passes_elsewhere():
    goal = next(each for each in goals.GOALS if each.figure == "gpt2-large int4")
    found = {"rows": {"figures": {"gpt2-large int4": {"median": [1.2, None, None]}}}}
    bound, how = goals.bound_of(goal, "AMD EPYC, AVX2", found)
    assert bound == pytest.approx(1.5 * 1.2)
    assert how == "1.8 (1.5 x 1.2)"
    assert goals.bound_of(goal, "AMD EPYC, AVX2", {}) == (1.5, "1.5")
    assert goals.bound_of(goal, "AMD EPYC, AVX-512", found) == (1.25, "1.25")


def test_rooflines_and_the_read_are_taken_from_products_by_rows(tmp_path):
    sizes = {"inputs": 576, "weights": "bfloat16", "read": 50.0}
    one = {**sizes, "rows": 1, "GB/s": 40.0, "roofline over one": 1.0}
    five = {**sizes, "rows": 5, "GB/s": 25.0, "roofline over one": 1.1}
    (tmp_path / "rows.json").write_text(json.dumps({"here": {"rows": [one, five]}}))
    figures = goals.of_rows(tmp_path)
    assert figures["one row"]["median"][0] == pytest.approx(1.25)
    assert figures["smollm2-135m bfloat16"]["median"][0] == 1.1


def test_a_first_token_is_compared_with_the_better_peer(tmp_path):
    ratios = {"llamacpp": [0.5, 0.4, 0.6], "openvino": [1.1, 1.0, 1.2]}
    record = {"rows": [{"tokens": 64, "ratio": ratios}]}
    (tmp_path / "prefill.json").write_text(json.dumps({"here": {"bfloat16": record}}))
    figures = goals.of_prefill(tmp_path / "prefill.json")
    assert figures == {"64": {"median": ratios["openvino"], "note": "openvino"}}
