"""The table of what states cost: layers are scaled to the whole model."""

import pytest

import states


def test_a_kind_of_layer_counts_as_often_as_the_model_has_it():
    least = {1: {"rest": 1.0, "a": 2.0, "mixer of a": 0.5, "b": 3.0}}
    whole = states.scaled(least, {"a": 10, "b": 2})
    assert whole == {1: {"pass": pytest.approx(27.0), "mixers": pytest.approx(5.0)}}


def test_the_table_has_v_and_the_share_of_the_mixers():
    whole = {n: {"pass": float(n), "mixers": n / 4} for n in states.SIZES}
    text = states.table([{"shape": "x", "row_bytes": 74e6, "whole": whole}])
    assert "| x | 74 MB | 1000.0 | 2.00 | 4.00 | 8.00 | 25% | 25% | 25% | 25% |" in text
