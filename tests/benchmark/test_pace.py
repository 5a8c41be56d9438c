"""How far a run is, in words: slow rates are seen, and the speed-up is the final table's."""

from dataclasses import replace

import pytest

from spsbench.benchmark.estimate import RunProgress, rate
from spsbench.cli import progress
from spsbench.metrics.summaries import summaries
from spsbench.settings.records import RoundRecord
from tests.simulation import cell, failure, record, run
from tests.waiting import wait_until

ARS, SPS = cell(0), cell(4)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(412.3, "412"), (9.96, "10"), (4.14, "4.1"), (0.42, "0.42"), (0.0123, "0.012"), (0, "0")],
)
def test_rates_below_one_token_a_second_are_seen(value, shown):
    assert rate(value) == shown


def test_the_live_speedup_is_that_of_the_table():
    records = [r for c in (ARS, SPS) for r in run(c, 0.7, 9, spread=0.2)]
    records[0] = replace(records[0], flags=("first",))  # in no time
    records[12] = replace(records[12], flags=("loaded",))
    records[11] = failure(SPS, "s2")
    late = [
        r for r in records if not (r.cell == SPS.id and r.sample in ("s7", "s8"))
    ]  # no pair yet
    pace = RunProgress(18, [ARS, SPS])
    for each in late:
        pace.add(SPS if each.cell == SPS.id else ARS, each)
    made = summaries(
        [ARS, SPS], [replace(r, flags=tuple(set(r.flags) - {"loaded"})) for r in late]
    )[1].speedup
    assert made.n == 5
    assert f"speed-up {made.mean:.2f}x so far," in str(pace)


def test_live_tau_counts_passes_and_leaves_out_texts_whose_rounds_are_not_told():
    pace, row = RunProgress(2, [SPS]), RoundRecord(8, -1, 4, 6, None, 0.05, 0.0, 0.0, passes=2)
    for sample, rounds in ("a", [row]), ("b", [row._replace(emitted=50, passes=0)]):
        pace.add(SPS, record(SPS, sample, 0, rounds))
    assert "tau 3.00" in str(pace)


def wait_for(words, capsys):
    """Wait until `words` are said on stderr."""
    pieces: list[str] = []

    def is_said():
        pieces.append(capsys.readouterr().err)
        return words in "".join(pieces)

    assert wait_until(is_said)


def test_a_line_comes_while_one_sample_takes_long(capsys):
    with progress.progress(RunProgress(3), every=0.01):
        wait_for("0/3, 0 tokens/s", capsys)  # a long prefill: nobody calls show
    with progress.alive("auditing", every=0.01):
        wait_for("auditing, for 0:00:0", capsys)
    capsys.readouterr()
    with progress.alive("auditing"):
        pass
    assert capsys.readouterr().err == ""
