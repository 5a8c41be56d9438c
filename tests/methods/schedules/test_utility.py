"""Schedule `utility`: trials, set phases and back-off, by costs and by the clock."""

from fractions import Fraction

from spsbench.loop.types import Round
from spsbench.methods.schedules.by_utility import Phase, Utility


def turn(k, tokens, seconds=1.0):
    return Round(k, k, tokens - 1, [0] * tokens, None, seconds, None)


def played(schedule, tokens, seconds, rounds):
    """K of each round where a round of K emits `tokens(K)` in `seconds(K)`."""
    history, chosen = [], []
    for _ in range(rounds):
        k = schedule.k(history)
        chosen.append(k)
        history.append(turn(k, tokens(k), seconds(k)))
    return chosen


def phases(chosen):
    """[(K, rounds)] of successive equal K."""
    found = []
    for k in chosen:
        if found and found[-1][0] == k:
            found[-1][1] += 1
        else:
            found.append([k, 1])
    return [tuple(phase) for phase in found]


def test_the_best_k_is_found_by_its_neighbours_and_set():
    tokens = {0: 1, 1: 2, 2: 3, 3: 4, 4: 5, 5: 5, 6: 5}
    seconds = {k: 0.5 * (1 + 0.2 * k) for k in tokens}  # of K = 4: 5 / 1.8, the most
    chosen = played(Utility(start=2, test=2, hold=5), tokens.get, seconds.get, 26)
    assert phases(chosen[:15]) == [(0, 2), (2, 2), (3, 2), (4, 2), (5, 2), (4, 5)]
    assert phases(chosen[15:]) == [(4, 2), (5, 2), (3, 2), (4, 5)]  # tried anew from there


def test_drafts_that_do_not_pay_end_and_trials_grow_rare():
    chosen = played(Utility(start=2, test=1, hold=3), lambda k: 1, lambda k: 1.0 + k, 200)
    assert phases(chosen)[:8] == [(0, 1), (2, 1), (1, 1), (0, 3), (2, 1), (1, 1), (0, 6), (2, 1)]
    assert max(rounds for k, rounds in phases(chosen) if k == 0) == 3 * 8


def test_a_success_ends_the_back_off():
    history, schedule = [], Utility(start=1, test=1, hold=2, most=1)
    chosen = []
    for number in range(30):
        k = schedule.k(history)
        chosen.append(k)
        history.append(turn(k, 2 if k and number > 10 else 1, 1.0 + 0.5 * k))
    assert phases(chosen)[:5] == [(0, 1), (1, 1), (0, 2), (1, 1), (0, 4)]
    assert set(chosen[9:]) <= {0, 1}
    assert chosen[-10:] == [1] * 10


def test_utility_is_tokens_for_cost_in_plain_rounds():
    phase = Phase(3, 0, rounds=4, tokens=9, cost=6.0, plain=1.5)
    assert phase.utility == float(Fraction(9, 4) / (Fraction(6, 4) / Fraction(3, 2)))
    assert Phase(3, 4).utility == 0.0


def test_given_costs_make_the_clock_irrelevant():
    def ks(seconds):
        schedule = Utility(start=2, test=1, hold=2, draft=0.2, row=0.1)
        return played(schedule, lambda k: 1 + min(k, 2), lambda k: seconds, 40)

    assert ks(0.0) == ks(5.0)
    assert max(ks(1.0)) == 3
