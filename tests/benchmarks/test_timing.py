"""What all benchmarks share: calls that alternate, ratios, and results kept by processor."""

import timing


def test_calls_alternate_in_reverse_every_second_time_and_warm_up_is_left_out():
    order = []
    calls = {name: lambda name=name: order.append(name) or len(order) for name in "ab"}
    assert timing.alternate(calls, repeats=2, warm_up=1) == {"a": [4, 5], "b": [3, 6]}
    assert "".join(order) == "abbaab"


def test_a_section_is_measured_again_and_the_others_stay(tmp_path):
    for section, ratio in (("one", "1.5"), ("two", "2.5"), ("one", "3.5")):
        timing.keep(tmp_path / "kept", section, [{"ms": 7}, {"ratio": ratio}])
    page = (tmp_path / "kept.md").read_text()
    assert page.count("| ms | ratio |") == 2
    assert "| 7 |  |\n|  | 3.5 |" in page
    assert "2.5" in page
    assert "1.5" not in page
