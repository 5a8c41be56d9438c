"""The replay identity against the shipping loop: every path of every uniform, given the text."""

import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from spsbench.audit.exact.cases import Case, Outcome, warped
from spsbench.audit.exact.draft_kinds import ArgmaxDrafter
from spsbench.audit.exact.enumeration import Walk, following
from spsbench.audit.exact.tables import KINDS, Pair
from spsbench.loop.types import Round
from spsbench.methods.drafters.ngram import NgramDrafter
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.block import Block
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.sps import Sps
from spsbench.planning.forecast.acceptance_chances import Chances, Looked, Sampled, Stopped
from spsbench.planning.forecast.ceilings import hindsight, informed
from spsbench.planning.forecast.replay import (
    Always,
    Follows,
    RoundDistribution,
    Span,
    Turn,
    replay,
    simulate,
)
from spsbench.plugins import make
from spsbench.registry import entries
from spsbench.spec import Spec
from tests.oracles.written_rules import case
from tests.parts import ByHistory

RULES = {"sps": Sps, "match": Match, "block": Block}
PLAIN = ("plain", "equal")
Rounds = tuple[tuple[int, int], ...]


def paths(case: Case) -> dict[Outcome, dict[Rounds, float]]:
    """Text -> the rounds that made it, (drafted, accepted) each, with their joint chance."""
    q, p = warped(case.q, **case.warp), warped(case.p, **case.warp)
    found: dict[Outcome, dict[Rounds, float]] = defaultdict(lambda: defaultdict(float))
    script: list[int] | None = []
    while script is not None:
        walk = Walk(case, q, p, script, upper=False)
        outcome, rounds = walk.run()
        found[outcome][tuple((r[0], r[1]) for r in rounds)] += walk.weight
        script = following(walk.trail)
    return found


def along(case: Case, text: tuple[int, ...], rule: Any) -> Sampled:
    q, p = warped(case.q, **case.warp), warped(case.p, **case.warp)
    before = [case.prompt + text[:t] for t in range(len(text))]
    return Sampled(
        np.array([q(x)[token] for x, token in zip(before, text, strict=True)]),
        np.array([p(x)[token] for x, token in zip(before, text, strict=True)]),
        rule,
    )


def check(
    case: Case, policy: Any, chances: Callable[[tuple[int, ...]], Chances], reach: int | None = None
) -> int:
    """Compare every text; how many there were."""
    every = paths(case)
    for (text, finish), rounds in every.items():
        law = replay(chances(text), Span(len(text), case.tokens, reach), policy)
        total = sum(rounds.values())
        seen = np.zeros(len(law.rounds))
        for each, weight in rounds.items():
            seen[len(each)] += weight / total
        assert np.abs(seen - law.rounds).max() < 1e-9, (text, seen, law.rounds)

        def mean(value: Callable[[int, int], float], rounds=rounds, total=total) -> float:
            return sum(w * sum(value(*r) for r in each) for each, w in rounds.items()) / total

        assert law.drafted == pytest.approx(mean(lambda n, a: n), abs=1e-9)
        assert law.emitted == len(text)
        if finish == "length":
            assert law.unknown == 0
            assert law.accepted == pytest.approx(mean(lambda n, a: a), abs=1e-9)
            assert law.tested == pytest.approx(mean(lambda n, a: min(a + 1, n)), abs=1e-9)
            assert law.accepted + law.mean_rounds == pytest.approx(len(text))
    return len(every)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_every_text_and_constant_k(rule: str, k: int) -> None:
    tokens = 3 if (rule, k) == ("match", 3) else 4
    one = case(rule, RULES[rule](), Pair(2, 4, PLAIN), tokens=tokens, schedule=Constant(k))
    assert check(one, Always(k), lambda text: along(one, text, rule)) == 2**tokens


@pytest.mark.parametrize("rule", RULES)
def test_every_kind_of_law(rule: str) -> None:
    for kind in sorted(set(KINDS)):
        one = case(rule, RULES[rule](), Pair(2, 3, (kind,)), tokens=3, schedule=Constant(2))
        check(one, Always(2), lambda text, one=one: along(one, text, rule))


@pytest.mark.parametrize("rule", RULES)
def test_a_schedule_that_looks_back(rule: str) -> None:
    one = case(rule, RULES[rule](), Pair(2, 1), tokens=4, schedule=ByHistory())
    check(one, Follows(ByHistory()), lambda text: along(one, text, rule))


@pytest.mark.parametrize("rule", RULES)
def test_greedy_and_the_edges(rule: str) -> None:
    """Temperature 0, an EOS inside a draft, and a draft whose context ends before the text."""
    greedy = case(
        rule, RULES[rule](), Pair(3, 4), tokens=4, schedule=Constant(2), warp={"temperature": 0.0}
    )
    assert check(greedy, Always(2), lambda text: along(greedy, text, rule)) == 1
    ends = case(rule, RULES[rule](), Pair(2, 1), tokens=4, schedule=Constant(2), eos=frozenset({1}))
    check(ends, Always(2), lambda text: along(ends, text, rule))
    short = case(rule, RULES[rule](), Pair(2, 1), tokens=4, schedule=Constant(2), draft_limit=3)
    check(short, Always(2), lambda text: along(short, text, rule), reach=2)


def test_the_identity_is_that_of_its_rule() -> None:
    """Planted: each rule's chances taken for another's are found out."""
    one = case("block", Block(), Pair(2, 1, ("plain",)), tokens=4, schedule=Constant(3))
    with pytest.raises(AssertionError):
        check(one, Always(3), lambda text: along(one, text, "sps"))
    one = case("match", Match(), Pair(2, 4, PLAIN), tokens=3, schedule=Constant(3))
    with pytest.raises(AssertionError):
        check(one, Always(3), lambda text: along(one, text, "sps"))


@pytest.mark.parametrize(
    "drafter", [lambda lm: NgramDrafter(2, 1), ArgmaxDrafter], ids=["ngram", "argmax"]
)
def test_drafts_by_rule(drafter: Any) -> None:
    """Asked along the text, the most at once: hits, and how many it proposes."""
    import torch

    from spsbench.loop.sampling import Warp
    from spsbench.loop.types import Context, Scores

    tables, k = Pair(2, 4), 3
    one = case("match", Match(), tables, tokens=5, schedule=Constant(k), drafter=drafter)

    def looked(text: tuple[int, ...]) -> Looked:
        proposed, hits = [], []
        requested = drafter(one.session([], False))
        requested.begin(list(one.prompt), Scores(torch.empty(0, 2), {}))
        if isinstance(requested, ArgmaxDrafter):
            requested = drafter(tables_without_checks(one))
            requested.begin(list(one.prompt), Scores(torch.empty(0, 2), {}))
        for t in range(len(text)):
            context = Context(list(one.prompt + text[:t]), Warp(), None)
            draft = requested.draft(context, k, None, lambda p: torch.ones((), dtype=torch.bool))
            tokens = draft.tokens.tolist()
            proposed.append(len(tokens))
            pairs = list(zip(tokens, text[t:], strict=False))
            hits.append(next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs)))
        return Looked(proposed, hits)

    check(one, Always(k), looked)
    check(one, Follows(Constant(k)), looked)


def test_constants_are_schedules_too() -> None:
    """The short way of a constant K, and the long one of any schedule."""
    for span in (Span(9, 9), Span(9, 20), Span(9, 9, 5)):
        short = replay(coins(9), span, Always(3))
        long = replay(coins(9), span, Follows(Constant(3)))
        assert np.allclose(short.rounds, long.rounds)
        assert np.allclose(short.looked, long.looked)
        assert np.allclose([*map(tuple, short.starts)], [*map(tuple, long.starts)])
        assert short.unknown == pytest.approx(long.unknown)


def tables_without_checks(case: Case) -> Any:
    from spsbench.audit.exact.tables import TableLM

    return TableLM(case.p, case.vocab)


BY_FILE_OR_BATCH = {"disco", "budget"}
SCHEDULES = [e.name for e in entries("schedules") if e.name not in BY_FILE_OR_BATCH]


def coins(length: int = 40, rule: Any = "sps", seed: int = 0) -> Sampled:
    draw = np.random.default_rng(seed).random
    return Sampled(draw(length), draw(length), rule, draw(length))


@pytest.mark.parametrize("rule", RULES)
def test_thrown_coins_agree(rule: str) -> None:
    span = Span(40, 60)
    exact = replay(coins(rule=rule), span, Always(4))
    found = simulate(coins(rule=rule), span, Always(4), 200)
    assert exact.simulations is None
    assert found.simulations == 200
    assert found.mean_rounds == pytest.approx(
        exact.mean_rounds, abs=4 * np.sqrt(exact.variance / 200)
    )
    assert found.drafted == pytest.approx(exact.drafted, rel=0.05)


class Grows:
    """One more after a full acceptance, one less else."""

    def k(self, history: Any) -> int:
        k = 3
        for turn in history:
            k = min(k + 1, 8) if turn.full else max(k - 1, 1)
        return k


class Remembers(Grows):
    def memory(self, history: Any) -> int:
        return self.k(history)


def test_histories_with_the_same_memory_are_one() -> None:
    """On a short text every history is a state; on a long one the memory makes it exact."""
    short = Span(10, 10)
    by_history = replay(coins(10), short, Follows(Grows()))
    by_memory = replay(coins(10), short, Follows(Remembers()))
    assert by_history.simulations is None
    assert np.allclose(by_history.rounds, by_memory.rounds)
    assert by_history.drafted == pytest.approx(by_memory.drafted)
    long = Span(40, 40)
    assert replay(coins(), long, Follows(Remembers())).simulations is None
    assert replay(coins(), long, Follows(Grows()), simulations=5).simulations == 5


def test_replayed_rounds_have_what_schedules_read_of_rounds() -> None:
    assert Turn._fields == Round._fields
    assert {name for name in vars(Round) if name[0] != "_"} <= vars(Turn).keys()


@pytest.mark.parametrize("name", SCHEDULES)
def test_each_schedule_makes_the_rounds_that_the_loop_would_make(name) -> None:
    """With the coins of the replay, over rounds of the loop's own type."""
    schedule = make("schedules", Spec.parse(name))
    chances, span, repeats = coins(30, seed=4), Span(30, 30), 300
    law = replay(chances, span, Follows(schedule), simulations=repeats)
    counts = []
    for seed in range(repeats):
        dice, at, history = random.Random(f"replay/{seed}"), 0, list[Round]()
        while at < 30:
            slots = chances.slots(at, min(int(schedule.k(history)), span.room(at)))
            kept = int((dice.random() < np.cumprod(slots)).sum())
            overlaps = [chances.overlap(at + i) for i in range(min(kept + 1, len(slots)))]
            made = (len(slots), len(overlaps), kept, [0] * (kept + 1), sum(overlaps))
            history.append(Round(*made, seconds=0.0, finish=None))
            at += kept + 1
        counts.append(len(history))
    assert law.mean_rounds == pytest.approx(np.mean(counts), rel=0.03)


def test_a_history_sees_overlaps() -> None:
    seen: list[Any] = []

    class Looks:
        def k(self, history: Any) -> int:
            seen.extend(history[-1:])
            return 2

    chances = coins(8)
    replay(chances, Span(8, 8), Follows(Looks()))
    first = next(turn for turn in seen if turn.accepted == 1 and turn.drafted == 2)
    assert first.tested == 2
    assert first.overlap is not None


def priced(law: RoundDistribution) -> float:
    return law.cost(lambda drafted, at: 1 + 0.2 * drafted)


def test_ceilings_are_in_order() -> None:
    """Hindsight is below foresight, which is below every constant and every schedule."""
    chances, span = coins(60), Span(60, 60)
    cost = lambda drafted, at: 1 + 0.2 * drafted  # noqa: E731
    seen, known = hindsight(chances, span, 6, cost), informed(chances, span, 6, cost)
    constants = [priced(replay(chances, span, Always(k))) for k in range(7)]
    assert seen.cost + 3 * seen.error < known.cost < min(constants)
    assert known.cost < priced(replay(chances, span, Follows(Remembers())))


def test_ceilings_of_a_certain_text_are_one() -> None:
    """Coins that are 0 or 1 leave nothing to see: both ceilings are the cheapest path."""
    looked = Looked([4] * 12, [h for _ in range(3) for h in (3, 2, 1, 0)])
    span, cost = Span(12, 12), lambda drafted, at: 1 + 0.2 * drafted
    seen, known = hindsight(looked, span, 4, cost), informed(looked, span, 4, cost)
    assert seen.cost == pytest.approx(known.cost)
    assert seen.error < 1e-12
    # three tokens drafted and one of the target's own, three times
    assert known.cost == pytest.approx(2 * 1.6 + 1.6)


def test_a_stop_by_the_law_of_a_slot() -> None:
    """Along the text nothing is drafted from there on; the start after it is untouched."""
    chances = Stopped(coins(8), [2, 1, 0, 5, 4, 3, 2, 1])
    assert len(chances.slots(0, 4)) == 2
    assert len(chances.slots(2, 4)) == 0
    assert len(chances.slots(3, 4)) == 4


def test_beyond_the_end_nothing_is_claimed() -> None:
    law = replay(coins(5, seed=2), Span(5, 50), Always(4))
    assert law.unknown > 0
    assert law.rounds.sum() == pytest.approx(1)
