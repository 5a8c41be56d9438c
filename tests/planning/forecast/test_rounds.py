"""The replay identity against the shipping loop: every path of every uniform, given the text."""

import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from spsbench.audit.exact.cases import Case, Outcome, warp_probs
from spsbench.audit.exact.enumeration import walks
from spsbench.audit.exact.tables import KINDS, ToyPair
from spsbench.loop.types import Round
from spsbench.methods.schedules.by_history import Constant
from spsbench.metrics.costs import PLAIN as ARS
from spsbench.metrics.costs import Costs
from spsbench.planning.candidates import simulate
from spsbench.planning.forecast.predictions import tau_of
from spsbench.planning.forecast.rounds import (
    RULES,
    Acceptances,
    Rounds,
    least_cost,
    price,
    room_of,
    rounds,
    simulate_rounds,
)
from spsbench.plugins import make
from spsbench.registry import entries
from spsbench.settings.cell import Cell
from spsbench.settings.grid import make_request
from spsbench.settings.method import Method
from spsbench.spec import Spec
from tests.oracles.forecasts import DRAFT, texts
from tests.oracles.written_rules import case
from tests.parts import ByHistory

VERIFIERS = {name: make("verifiers", Spec(name)) for name in RULES}
PLAIN = ("plain", "equal")
FREE = Costs.of_ratios(0.0, {})
History = tuple[tuple[int, int], ...]


def paths(case: Case) -> dict[Outcome, dict[History, float]]:
    """Text -> the rounds that made it, (drafted, accepted) each, with their joint chance."""
    histories: dict[Outcome, dict[History, float]] = defaultdict(lambda: defaultdict(float))
    for walk in walks(case):
        histories[walk.outcome][tuple((r[0], r[1]) for r in walk.rounds)] += walk.weight
    return histories


def along(case: Case, text: tuple[int, ...], rule: Any, most: int = 8) -> Acceptances:
    q, p = warp_probs(case.q, **case.warp), warp_probs(case.p, **case.warp)
    before = [case.prompt + text[:t] for t in range(len(text))]
    of_target, of_draft = (
        np.array([law(x)[token] for x, token in zip(before, text, strict=True)]) for law in (q, p)
    )
    return Acceptances.sampled(of_draft, of_target, rule, most)


def totals(expected: Rounds) -> Any:
    sizes = expected.sizes(0)
    return expected.totals(price(*sizes, FREE, ARS, None))


def check(
    case: Case,
    k: int,
    acceptances_of: Callable[[tuple[int, ...]], Acceptances],
    reach: int | None = None,
) -> int:
    """Compare every text with the loop's own rounds; how many there were."""
    histories = paths(case)
    for (text, finish), joint in histories.items():
        acceptances, total = acceptances_of(text), sum(joint.values())
        expected = rounds(acceptances, k, room_of(len(text), case.tokens, reach))
        starts, drafted, accepted, tested, square = defaultdict(float), 0.0, 0.0, 0.0, 0.0
        for history, weight in joint.items():
            share, position = weight / total, 0
            for n, a in history:
                starts[position] += share
                drafted += share * n
                accepted += share * a
                tested += share * min(a + 1, n)
                position += a + 1
            square += share * len(history) ** 2
        sums = totals(expected)
        weights = dict(zip(expected.starts.tolist(), expected.weights.tolist(), strict=True))
        assert weights == pytest.approx(dict(starts), abs=1e-9), text
        assert sums.rounds == pytest.approx(sum(starts.values()), abs=1e-9)
        assert expected.variance == pytest.approx(square - sum(starts.values()) ** 2, abs=1e-9)
        assert sums.drafted == pytest.approx(drafted, abs=1e-9)
        assert sums.tokens == pytest.approx(len(text))
        if finish == "length":
            assert sums.accepted == pytest.approx(accepted, abs=1e-9)
            assert sums.tested == pytest.approx(tested * acceptances.slot_by_slot, abs=1e-9)
    return len(histories)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_expected_rounds_of_every_text_are_those_of_the_loop(rule: str, k: int) -> None:
    tokens = 3 if (rule, k) == ("match", 3) else 4
    one = case(rule, VERIFIERS[rule], ToyPair(2, 4, PLAIN), tokens=tokens, schedule=Constant(k))
    assert check(one, k, lambda text: along(one, text, rule)) == 2**tokens


@pytest.mark.parametrize("rule", RULES)
def test_expected_rounds_hold_for_every_kind_of_distribution(rule: str) -> None:
    for kind in sorted(set(KINDS)):
        one = case(rule, VERIFIERS[rule], ToyPair(2, 3, (kind,)), tokens=3, schedule=Constant(2))
        check(one, 2, lambda text, one=one: along(one, text, rule))


@pytest.mark.parametrize("rule", RULES)
def test_a_schedule_that_looks_back_is_simulated_as_the_loop_runs_it(rule: str) -> None:
    one = case(rule, VERIFIERS[rule], ToyPair(2, 1), tokens=4, schedule=ByHistory())
    for (text, _), joint in paths(one).items():
        total = sum(joint.values())
        mean = sum(len(history) * weight for history, weight in joint.items()) / total
        room = room_of(len(text), one.tokens)
        expected = simulate_rounds(ByHistory(), Round, along(one, text, rule), room, 1000)
        error = 4.5 * np.sqrt(expected.variance / 1000) + 1e-9
        assert float(expected.weights.sum()) == pytest.approx(mean, abs=error)


@pytest.mark.parametrize("rule", RULES)
def test_greedy_texts_an_eos_in_a_draft_and_a_full_draft_context(rule: str) -> None:
    greedy = case(
        rule,
        VERIFIERS[rule],
        ToyPair(3, 4),
        tokens=4,
        schedule=Constant(2),
        warp={"temperature": 0.0},
    )
    assert check(greedy, 2, lambda text: along(greedy, text, rule)) == 1
    ends = case(
        rule, VERIFIERS[rule], ToyPair(2, 1), tokens=4, schedule=Constant(2), eos=frozenset({1})
    )
    check(ends, 2, lambda text: along(ends, text, rule))
    short = case(
        rule, VERIFIERS[rule], ToyPair(2, 1), tokens=4, schedule=Constant(2), draft_limit=3
    )
    check(short, 2, lambda text: along(short, text, rule), reach=2)


def test_a_simulated_round_is_cut_to_the_tokens_that_are_left() -> None:
    chances, room = acceptances(12), room_of(12, 12)
    found, expected = (
        simulate_rounds(Constant(4), Round, chances, room, 500),
        rounds(chances, 4, room),
    )
    requested = dict(zip(expected.starts.tolist(), expected.requested.tolist(), strict=True))
    for start, k in zip(found.starts.tolist(), found.requested.tolist(), strict=True):
        assert k == requested[start] == min(4, 11 - start)


BY_FILE = {"disco"}
SCHEDULES = [e.name for e in entries("schedules") if e.name not in BY_FILE]


def acceptances(length: int = 40, rule: Any = "sps", seed: int = 0) -> Acceptances:
    draw = np.random.default_rng(seed).random
    return Acceptances.sampled(draw(length), draw(length), rule, 20)


@pytest.mark.parametrize("name", SCHEDULES)
def test_each_schedule_makes_the_rounds_that_the_loop_would_make(name: str) -> None:
    schedule, chances, room, repeats = (
        make("schedules", Spec.parse(name)),
        acceptances(30, seed=4),
        room_of(30, 30),
        300,
    )
    numbers = []
    for seed in range(repeats):
        dice, position, history = random.Random(f"loop/{seed}"), 0, list[Round]()
        while position < 30:
            n = min(int(schedule.k(history)), int(room[position]))
            a = int((dice.random() < chances.kept[position, :n]).sum())
            history.append(Round(n, min(a + 1, n), a, [0] * (a + 1), None, 0.0, None))
            position += a + 1
        numbers.append(len(history))
    expected = simulate_rounds(schedule, Round, chances, room, repeats)
    assert expected.weights.sum() == pytest.approx(np.mean(numbers), rel=0.05)


def test_a_cell_with_a_schedule_is_predicted() -> None:
    cell = Cell.from_request(make_request(verifier=Spec("sps"), schedule=Spec("heuristic")))
    assert 1 < tau_of(Method.of(cell), DRAFT, texts(0.8, 2, 30), simulate) < 5


def test_the_ceiling_is_below_every_constant() -> None:
    chances, room, ks = acceptances(60), room_of(60, 60), np.arange(7)
    ceiling = least_cost(chances, room, np.tile(1 + 0.2 * ks, (60, 1)), 200)
    constants = [rounds(chances, int(k), room) for k in ks]
    assert ceiling < min(float(r.weights @ (1 + 0.2 * r.drafted)) for r in constants)


def test_the_ceiling_of_a_certain_text_is_its_cheapest_path() -> None:
    """Three tokens drafted and one of the target's own, three times."""
    looked_up = Acceptances.deterministic([h for _ in range(3) for h in (3, 2, 1, 0)], [4] * 12, 4)
    ceiling = least_cost(looked_up, room_of(12, 12), np.tile(1 + 0.2 * np.arange(5), (12, 1)), 9)
    assert ceiling == pytest.approx(3 * 1.6)


def test_slots_beyond_the_end_of_a_text_are_drafted_and_not_tested() -> None:
    sums = totals(rounds(Acceptances.sampled(np.ones(5), None, "match", 4), 4, room_of(5)))
    assert (sums.rounds, sums.tokens) == (1, 5)
    assert sums.drafted == sums.tested == 4
    sums = totals(rounds(Acceptances.sampled(np.ones(3), None, "match", 4), 4, room_of(3)))
    assert (sums.drafted, sums.tested) == (4, 3)
