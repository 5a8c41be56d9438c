"""Arithmetic of turns, ratios, verdicts and tables, on made-up numbers."""

import pytest

from arena.contenders.contender import Setting
from arena.figures import (
    agreement,
    best_bandwidth,
    block_cost,
    decoding,
    outside_models,
    peak_bytes,
    ratio,
    spread,
    steady_bytes,
    step,
)
from arena.goals import (
    ARS,
    BESIDE,
    BLOCK,
    GAIN,
    GOALS,
    LLAMA_ARS,
    LLAMA_SPS,
    LOAD,
    LOAD_HF,
    MEMORY,
    SPS,
    STEP,
    Sizes,
    fastest_plain,
    results,
)
from arena.report import record, text
from arena.table import engines_table, goals_table, same, shown
from arena.turns import Run

MIB = 2**20
BANDWIDTH = 1e9  # bytes a second
SIZES = Sizes(target=10**7, both=100 * MIB)  # so a token takes 10 ms at least


def turn(seconds, size=1, rounds=10, **more):
    """Even rounds between a first and a last one that must not count."""
    blocks = [(size, 99.0), *[(size, seconds)] * rounds, (1, 99.0)]
    tokens = list(range(size * rounds))
    base = {"tokens": tokens, "blocks": blocks, "parts": {}, "whole": False}
    return {**base, "rss": 300 * MIB, "peak": 500 * MIB, **more}


def engine(ars, sps, size=4, **arms):
    """Two repeats, the second at half the speed."""
    turns = {"ars": [turn(ars), turn(2 * ars)], "sps": [turn(sps, size), turn(2 * sps, size)]}
    return {
        "turns": {**turns, **arms},
        "steps": [
            {
                "one": [0.010, 0.011, 0.012],
                "block": [0.022],
                "draft": [0.001],
                "bandwidth": [BANDWIDTH / 2],
            }
        ]
        * 2,
        "loads": [{"seconds": 3.0, "before": 100 * MIB, "peak": 700 * MIB}],
        "arms": ["ars", "sps"],
    }


def test_the_first_and_the_last_block_are_not_decoding():
    found = decoding(turn(0.02, size=4))
    assert (found.tokens, found.passes) == (40, 10)
    assert found.ms_per_pass == pytest.approx(20)
    assert found.ms_per_token == pytest.approx(5)
    assert found.tau == 4


def test_a_turn_of_two_blocks_says_nothing():
    assert decoding(turn(0.02, rounds=0)) is None
    assert ratio([turn(0.02, rounds=0)], [turn(0.02)]) is None


def test_where_no_block_has_a_prefill_all_count():
    found = decoding({"blocks": [(2.5, 1.0)] * 2, "whole": True})
    assert found.tau == 2.5


def test_ratios_pair_the_repeats():
    """The machine was half as fast in the second repeat, for both: the ratio does not see it."""
    found = ratio([turn(0.01, 4), turn(0.02, 4)], [turn(0.02, 2), turn(0.04, 2)])
    assert found.by_pass == pytest.approx((0.5, 0.5, 0.5))
    assert found.by_token == pytest.approx((0.25, 0.25, 0.25))


def test_steps_are_medians_of_medians():
    facts = engine(0.1, 0.2)
    assert step(facts, "one") == pytest.approx((11, 11, 11))
    assert block_cost(facts) == pytest.approx((2, 2, 2))
    assert step({"steps": [{}]}, "one") is None
    assert block_cost({"steps": [{"one": [1.0]}]}) is None


def test_memory_is_over_what_was_there_before():
    facts = engine(0.1, 0.2)
    assert steady_bytes(facts) == 200 * MIB
    assert peak_bytes(facts) == 600 * MIB


def test_the_best_of_all_readings_is_the_bandwidth():
    assert best_bandwidth([{"a": 1.0, "b": 3.0}, {"a": 2.0}]) == 3.0


def test_what_is_in_no_model_is_overhead():
    parts = {"rounds": 10.0, "drafting": 3.0, "target": 6.0}
    assert outside_models([turn(1, parts=parts)]) == pytest.approx((0.1, 0.1, 0.1))
    assert outside_models([turn(1)]) is None


def test_texts_agree_up_to_the_shorter():
    assert agreement({"tokens": [1, 2]}, {"tokens": [1, 2, 3]}) is None
    assert agreement({"tokens": [1, 5]}, {"tokens": [1, 2, 3]}) == 1
    assert same([{"tokens": [1]}, {"tokens": [2]}], [{"tokens": [1]}] * 2) == "1 of 2"


def found(ours, hf, pair="gpt2-large"):
    engines = {"fast": ours, "hf": hf}
    made = results(engines, pair, "bfloat16", bandwidth=BANDWIDTH, sizes=SIZES)
    return {result.what: result for result in made}


def test_transformers_is_its_fastest_variant():
    hf = engine(0.4, 0.4, **{"ars-static": [turn(0.2), turn(0.4)]})
    assert fastest_plain(hf) == ["ars-static", "ars"]
    assert found(engine(0.1, 0.2), hf)[ARS].value.median == pytest.approx(0.5)


def test_a_pass_is_held_against_the_read_beside_it():
    """Not against that of another moment: here both change together."""
    ours = engine(0.1, 0.2)
    for steps in ours["steps"]:
        steps |= {"one": [0.012, 0.024, 0.012], "beside": [BANDWIDTH, BANDWIDTH / 2, BANDWIDTH]}
    assert found(ours, engine(0.25, 0.5))[BESIDE].value == pytest.approx((1.2, 1.2, 1.2))


def test_verdicts():
    ours = engine(0.1, 0.2)
    by_name = found(ours, engine(0.25, 0.5))
    assert by_name[ARS].verdict == "aim"  # 0.4 and no more
    assert by_name[SPS].verdict == "pass"  # 0.4 against 0.4 and 0.33
    assert by_name[BLOCK].verdict == "miss"  # 2 against 1.2
    assert by_name[STEP].verdict == "aim"  # 1.1 against 1.25
    assert by_name[BESIDE].value.median == pytest.approx(0.55)  # memory was half as fast then
    assert by_name[MEMORY].verdict == "miss"  # twice the weights
    assert by_name[GAIN].verdict == ""  # a goal of the bundled pair only


def test_the_bundled_pair_has_one_goal_only():
    judged = {what for what, r in found(engine(1, 1), engine(1, 1), "nano").items() if r.goal}
    assert judged == {GAIN}


def test_loading_is_held_against_the_same_loader_without_packing():
    ours, plain = engine(1, 1), engine(1, 1)
    plain["loads"] = [{"seconds": 2.0, "before": 0, "peak": 0}]
    engines = {"fast": ours, "eager": plain, "hf": engine(1, 1)}
    made = results(engines, "llama-1b", "bfloat16", bandwidth=BANDWIDTH, sizes=SIZES)
    by_name = {result.what: result for result in made}
    assert by_name[LOAD].value.median == pytest.approx(1.5)
    assert (by_name[LOAD].verdict, by_name[LOAD_HF].verdict) == ("pass", "")


def test_equal_tau_is_by_pass():
    """Their draft was luckier: by token they would look better than their passes are."""
    by_name = found(engine(0.1, 0.2, size=2), engine(0.1, 0.4, size=4))
    assert by_name[SPS].value.median == pytest.approx(0.5)


def test_aims_are_below_musts():
    assert all(goal.aim < goal.must for goal in GOALS)


def test_tables():
    engines = {"fast": engine(0.1, 0.2), "hf": engine(0.4, 0.8)}
    lines = engines_table(engines, 10, 10**7).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2].startswith("| fast | ars | 150.0 (100.0 to 200.0) | 1.00 |")
    assert "2 of 2" in lines[2]
    assert "2 of 2" not in engines_table(engines, 10, 10**7, greedy=False)
    made = results(engines, "gpt2-large", "bfloat16", bandwidth=BANDWIDTH, sizes=SIZES)
    assert "| ArS / HF generate | 0.25 | 0.5 | 0.4 | aim reached |" in goals_table(list(made))
    assert shown(None) == "n/a"
    assert shown(spread([1.0, 2.0, 4.0]), 2) == "2.00 (1.00 to 4.00)"


def test_weights_of_as_many_bits_are_held_against_each_other():
    engines = {"fast@int8": engine(0.1, 0.2), "fast": engine(0.9, 0.9)}
    engines |= {"llamacpp@int8": engine(0.1, 0.4), "llamacpp@int4": engine(0.9, 0.9)}
    made = results(
        engines, "tinyllama", "float32", bandwidth=BANDWIDTH, sizes=SIZES, ours="fast@int8"
    )
    by_name = {result.what: result for result in made}
    assert by_name[LLAMA_SPS].value.median == pytest.approx(0.5)
    assert by_name[LLAMA_SPS].verdict == by_name[LLAMA_ARS].verdict == "aim"
    assert by_name[BLOCK].goal is None
    assert STEP not in by_name  # a limit of other weights
    row = next(line for line in engines_table(engines, 10, 10**7).splitlines() if "@int8" in line)
    assert row.count("n/a") == 3


def test_the_report_names_what_failed_and_what_made_it():
    nothing = engine(0.1, 0.2) | {"turns": {}, "steps": []}  # loaded, and out at its first turn
    engines = {"eager": engine(0.1, 0.2), "fast": nothing}
    run = Run([{"a": 1e9}], engines, {"openvino": "no such module", "fast": "planted"})
    setting = Setting("t", "d", "float32", 4, 0.0, None, 2, 64)
    about = {
        "cpu": "a processor", "prompts": 2, "prompt_tokens": 8, "tokens": 40,
        "command": "python benchmarks/peers.py --quick", "ours": ["eager", "fast"],
    }  # fmt: skip
    pair = {"name": "small", "bytes": 10**7, "weights": 2 * 10**7}
    made = record(run, setting, pair, about)
    assert made["limit_ms"] == pytest.approx(10)
    shown_text = text(made)
    for part in (
        "a processor",
        "--quick",
        "Not measured, openvino: no such",
        "| openvino | failed |",
    ):
        assert part in shown_text
