"""Rows before and behind a marker in the texts."""

from fractions import Fraction

import pytest

from spsbench.errors import UsageError
from spsbench.metrics.summaries import summaries
from spsbench.reports import segments
from spsbench.reports.segments import Segments
from spsbench.settings.cell_from_options import make_cell
from spsbench.settings.records import Record, RoundRecord

CELL = make_cell(k=2)


class Letters:
    """Each token is one letter."""

    def decode(self, token_ids, *, skip_special_tokens=False):
        return "".join(map(chr, token_ids))


def record(text, accepted, **fields):
    """A generation in rounds of two drafted tokens of which some were accepted."""
    rounds = [RoundRecord(2, min(a + 1, 2), a, a + 1, 1.0, 0.1, 0.05, 0.05) for a in accepted]
    assert len(text) == sum(each.emitted for each in rounds)
    more = {"prompt_tokens": 3, "text": text, "finish": "length", "prefill_seconds": 0.1}
    tokens = list(map(ord, text))
    return Record(cell=CELL.id, sample=text, tokens=tokens, rounds=rounds, **more, **fields)


@pytest.fixture
def cut(monkeypatch):
    monkeypatch.setattr(segments, "tokenizer_of", lambda model: Letters())
    return Segments([CELL], "</t>")


def test_the_round_that_completes_the_marker_is_the_last_before_it(cut):
    before, behind = cut(record("ab</t>cdefg", [2, 2, 2, 1], experts=[1.0, 2.0, 3.0, 4.0]))
    assert (before.group, behind.group) == ("before </t>", "behind </t>")
    assert ["".join(map(chr, part.tokens)) for part in (before, behind)] == ["ab</t>", "cdefg"]
    assert [len(part.rounds) for part in (before, behind)] == [2, 2]
    assert before.experts is None
    assert "unlike" in before.flags


@pytest.mark.parametrize(
    ("text", "accepted", "rounds"),
    [
        ("abcdef", [2, 2], [2]),  # no marker
        ("a</t>b", [2, 2], [2]),  # it ends in the last round
        ("</t>ab", [0, 2, 1], [2, 1]),
        ("<</t>abc</t>", [2, 2, 2, 2], [2, 2]),  # the first counts
    ],
)
def test_texts_have_one_part_or_two(cut, text, accepted, rounds):
    assert [len(part.rounds) for part in cut(record(text, accepted))] == rounds


class SpecialEnd(Letters):
    """`>` is a special token, as `[/THINK]` is in some tokenizers."""

    def decode(self, token_ids, *, skip_special_tokens=False):
        text = super().decode(token_ids)
        return text.replace(">", "") if skip_special_tokens else text


def test_a_marker_may_be_a_special_token(monkeypatch):
    monkeypatch.setattr(segments, "tokenizer_of", lambda model: SpecialEnd())
    parts = Segments([CELL], "</t>")(record("ab</t>cdefg", [2, 2, 2, 1]))
    assert [len(part.rounds) for part in parts] == [2, 2]


def test_rows_of_both_parts_stand_before_that_of_all(cut):
    records = [record("ab</t>cdefg", [2, 2, 2, 1]), record("xy</t>z", [2, 1, 1])]
    rows = summaries([CELL], records, segments=cut)
    assert [row.group for row in rows] == ["before </t>", "behind </t>", None]
    taus = [float(row.block_efficiency.mean) for row in rows]
    expected = [Fraction(6 + 7, 2 + 3), Fraction(5, 2), Fraction(11 + 7, 4 + 3)]
    assert taus == [pytest.approx(float(tau)) for tau in expected]
    assert rows[0].mean_token_time_ms is None
    assert rows[2] == summaries([CELL], records)[0]


def test_failures_and_texts_without_ids_have_no_parts(cut):
    failed = record("", [], error="out of memory")
    assert list(cut(failed)) == []


def test_a_tokenizer_that_is_not_here_is_named(monkeypatch):
    monkeypatch.setattr(segments, "tokenizer_of", lambda model: None)
    with pytest.raises(UsageError, match="needs the tokenizer of"):
        list(Segments([CELL], "</t>")(record("abc", [2])))
