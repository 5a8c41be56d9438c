"""Costs of rounds by hand and by rooflines, and the closed forms."""

from fractions import Fraction

import pytest

from spsbench.errors import UsageError
from spsbench.planning.logs.formulas import rates_of, speedup, tokens, work
from spsbench.planning.logs.prices import Ratios, parse_roofline, priced_batches


def test_ratios():
    price = Ratios(draft=0.1, row=0.02, models=frozenset({"A"}))
    assert price.rounds("A", "sps", 2, 0).tolist() == pytest.approx([1.2, 1.22, 1.24])
    assert price.rounds("ngram", "sps", 2, 0).tolist() == pytest.approx([1.0, 1.02, 1.04])


def test_a_roofline_is_flat_until_it_computes():
    roofline = parse_roofline("bandwidth=1e12,flops=1e15,params=1e9")
    (alone,) = priced_batches([1], roofline, frozenset())
    assert alone.rounds("ngram", "sps", 8, 100).tolist() == [1.0] * 9
    (many,) = priced_batches([1000], roofline, frozenset())
    assert many.rounds("ngram", "sps", 2, 100).tolist() == pytest.approx([1.0, 2.0, 3.0])


@pytest.mark.parametrize("text", ["h100", "params=8e9", "h101,params=8e9", "h100,params=x"])
def test_rooflines_that_are_none(text):
    with pytest.raises(UsageError):
        parse_roofline(text)


@pytest.mark.parametrize("k", [1, 3, 7])
def test_closed_forms_against_fractions(k):
    alpha, draft = Fraction(7, 10), Fraction(1, 20)
    expected = sum(alpha**i for i in range(k + 1))
    assert tokens(0.7, k) == pytest.approx(float(expected))
    assert tokens(1.0, k) == k + 1
    assert speedup(0.7, k, 0.05, 0.0) == pytest.approx(float(expected / (1 + k * draft)))
    theorem = (1 - alpha) * (k * draft + k + 1) / (1 - alpha ** (k + 1))
    assert work(0.7, k, 0.05) == pytest.approx(float(theorem))


def test_rates():
    assert rates_of("0.5,1") == [0.5, 1.0]
    for text in ("", "1.1", "x", "nan"):
        with pytest.raises(UsageError):
            rates_of(text)
