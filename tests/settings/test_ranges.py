"""Ranges of whole numbers as a user writes them."""

import pytest

from spsbench.settings.options import parse_range, repeated


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("4", [4]),
        ("1..8", [1, 2, 3, 4, 5, 6, 7, 8]),
        ("1..8..3", [1, 4, 7]),
        ("8,1..3", [8, 1, 2, 3]),
        ("4,4", [4]),
        ("0", [0]),
        (" 1 .. 2 , 64 ", [1, 2, 64]),
        ("3..3", [3]),
    ],
)
def test_what_is_meant(text, numbers):
    assert parse_range(text, low=0, high=64) == numbers


@pytest.mark.parametrize("text", ["0..999999999999", "0..9999,0", ",".join(["0..4000"] * 3)])
def test_more_numbers_than_anybody_means_are_refused_at_once(text):
    with pytest.raises(ValueError, match="numbers: expected at most 10,000"):
        parse_range(text, low=0, high=10**12)
    assert len(parse_range("0..9999", low=0, high=10**12)) == 10_000


def test_what_is_named_twice():
    assert repeated("4,1..4,2,9", low=0, high=64) == [4, 2]
    assert repeated("1..8", low=0, high=64) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("8..2", "is empty"),
        ("1..8..0", "is empty"),
        ("3-", "got '3-'"),
        ("a,b", "got 'a'"),
        ("", "got ''"),
        ("1,,2", "got ''"),
        ("-1", "got '-1'"),
        ("1..65", "outside 0..64"),
        ("1000000000", "outside 0..64"),
        ("1.5", "got '1.5'"),
        ("8:2", "got '8:2'"),
    ],
)
def test_what_cannot_be_meant_is_refused(text, said):
    with pytest.raises(ValueError, match=said) as refused:
        parse_range(text, low=0, high=64)
    assert repr(text) in str(refused.value)
