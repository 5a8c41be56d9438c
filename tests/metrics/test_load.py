"""Timings under load: shown apart and marked, never lost; ratios of pairs are kept."""

from dataclasses import replace

import pytest

from spsbench.metrics.summaries import summaries
from tests.simulation import cell, run

ARS, SPS = cell(0), cell(4)
N, SLOWER = 12, 3.0


def under_load(record):
    """The same, three times as slow in wall time, by the same work of the processor."""
    rounds = [
        r._replace(
            seconds=SLOWER * r.seconds,
            draft_seconds=SLOWER * r.draft_seconds,
            target_seconds=SLOWER * r.target_seconds,
        )
        for r in record.rounds
    ]
    return replace(record, rounds=rounds, flags=("loaded",))


@pytest.fixture(scope="module")
def quiet():
    made = [r for c in (ARS, SPS) for r in run(c, 0.7, N)]
    return [
        replace(r, rounds=[one._replace(processor_seconds=2 * one.seconds) for one in r.rounds])
        for r in made
    ]


def test_times_are_of_quiet_timings_where_there_are_some(quiet):
    busy = {f"s{i}" for i in range(8)}
    mixed = [under_load(r) if r.sample in busy else r for r in quiet]
    row, alone = (
        summaries([ARS, SPS], rows)[1]
        for rows in (mixed, [r for r in quiet if r.sample not in busy])
    )
    assert (row.n, row.timed, row.loaded) == (N, N - 8, 8)
    assert row.mean_token_time_ms == alone.mean_token_time_ms
    assert row.speedup == alone.speedup
    assert not row.speedup.loaded


def test_a_ratio_is_of_pairs_whose_timings_are_both_quiet(quiet):
    busy = {ARS.id: {"s0", "s1", "s2"}, SPS.id: {"s3", "s4"}}
    mixed = [under_load(r) if r.sample in busy[r.cell] else r for r in quiet]
    left_out = set().union(*busy.values())
    row, alone = (
        summaries([ARS, SPS], rows)[1]
        for rows in (mixed, [r for r in quiet if r.sample not in left_out])
    )
    assert row.speedup == alone.speedup
    assert row.speedup.n == N - 5


def test_with_nothing_quiet_times_are_marked_and_ratios_kept(quiet):
    row, calm = (summaries([ARS, SPS], rows)[1] for rows in ([under_load(r) for r in quiet], quiet))
    assert (row.timed, row.loaded) == (0, N)
    assert row.mean_token_time_ms.loaded
    assert row.mean_token_time_ms.mean == pytest.approx(SLOWER * calm.mean_token_time_ms.mean)
    assert row.speedup[:3] == pytest.approx(calm.speedup[:3])  # both of a pair were as slow
    assert row.speedup.loaded
    assert not row.speedup.undecided
    assert row.alpha == calm.alpha


def test_a_speedup_of_a_few_pairs_under_load_is_undecided(quiet):
    few = [under_load(r) for r in quiet if r.sample in ("s1", "s2")]
    assert summaries([ARS, SPS], few)[1].speedup.undecided


def test_uneven_load_widens_the_interval_of_the_speedup(quiet):
    uneven = [under_load(r) if r.cell == ARS.id and r.sample in ("s1", "s5") else r for r in quiet]
    widths = []
    for rows in (quiet, [replace(r, flags=("loaded",)) for r in uneven]):
        gained = summaries([ARS, SPS], rows)[1].speedup
        widths.append(gained.high - gained.low)
    assert widths[1] > 2 * widths[0]


def test_first_calls_are_in_no_time_even_under_load(quiet):
    first = [replace(r, flags=("first", "loaded")) for r in quiet]
    made = summaries([ARS, SPS], first)[1]
    assert (made.n, made.timed, made.loaded) == (N, 0, 0)
    assert made.speedup is made.mean_token_time_ms is None
