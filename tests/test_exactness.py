"""Losslessness, proved: whole generations of the shipping loop have the target's own distribution.

By enumeration of every uniform (`spsbench.audit.exact.enumeration`), over tables that visit ties,
zeros, equal distributions and disjoint supports, for every exact verifier of the registry, with
every warp and every way to end. Equal means within 1e-12 in total variation, at both ends of cells.
"""

from functools import cache, partial

import pytest

from spsbench.audit.exact.cases import Case
from spsbench.audit.exact.draft_kinds import ArgmaxDrafter, FixedDrafter
from spsbench.audit.exact.enumeration import prove
from spsbench.audit.exact.pairings import STOPPING, made_schedule, schedules
from spsbench.audit.exact.tables import KINDS, ToyPair
from spsbench.methods.drafters.copy import CopyDrafter
from spsbench.methods.drafters.hybrid import HybridDrafter
from spsbench.methods.drafters.lookahead import LookaheadDrafter
from spsbench.methods.drafters.model import NoDrafter
from spsbench.methods.drafters.ngram import NgramDrafter
from spsbench.methods.drafters.recycling import RecyclingDrafter
from spsbench.methods.drafters.suffix import SuffixDrafter
from spsbench.methods.schedules.by_history import Constant
from spsbench.registry import BUILT_IN
from tests.oracles.written_rules import case, cells_of
from tests.parts import ends_with
from tests.variants import first

# A new exact verifier is proved here: it is in the registry, and its thresholds are found.
EXACT = {e.name: e.load() for e in BUILT_IN if (e.kind, e.guarantee) == ("verifiers", "exact")}
BY_RULE = {
    "argmax": ArgmaxDrafter,
    "ngram": lambda lm: NgramDrafter(2, 1),
    "frequent": lambda lm: NgramDrafter(2, 1, "frequent"),
    "recent, of the prompt": lambda lm: NgramDrafter(2, 1, "recent", "prompt"),
    "suffix": lambda lm: SuffixDrafter(),
    "suffix, a tree": lambda lm: SuffixDrafter(2.0, 0, 0.0, nodes=4),
    "copy": lambda lm: CopyDrafter(),
    "recycling": lambda lm: RecyclingDrafter(),
    "recycling, a tree": lambda lm: RecyclingDrafter(width=2, nodes=4),
    "lookahead": lambda lm: LookaheadDrafter(2, 2, 2),
    "lookahead, three levels": lambda lm: LookaheadDrafter(1, 3, 2),
    "hybrid, a tree": lambda lm: HybridDrafter(
        SuffixDrafter(nodes=3), RecyclingDrafter(), least=2, vocab_size=2
    ),
}
SEEDS = (1, 4)

CHAINS = ("sps", "block", "match")  # the others are one of these on a chain: a sample is quick


def rules_of(*quick):
    """Every exact rule, the `quick` ones in each run."""
    slow = pytest.mark.slow
    return pytest.mark.parametrize(
        "name", [n if n in quick else pytest.param(n, marks=slow) for n in EXACT]
    )


every_rule = rules_of("sps", "block")  # one-sample match has a draw at each node: ten times slower
every_chain_rule = rules_of(*CHAINS)


def proved(name, pair, **fields):
    exact(prove(case(name, EXACT[name](), pair, **fields)))


def exact(proof):
    assert proof.constant, "a decision changed inside a cell"
    assert proof.mass == pytest.approx(1, abs=1e-12)
    assert proof.distance < 1e-12


@cache
def sampled(name, k, seed):
    return prove(case(name, EXACT[name](), ToyPair(3, seed), schedule=Constant(k)))


@pytest.mark.parametrize("name", EXACT)
def test_each_rule_on_small_cases(name):
    """Two rounds of two tokens, and tokens that only q or only p has."""
    proved(name, ToyPair(2, 3), tokens=3, schedule=Constant(2))
    proved(name, ToyPair(3, 1), tokens=2, schedule=Constant(1))


@every_rule
@pytest.mark.parametrize("k", [0, 1, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_sampled_drafts(name, k, seed):
    exact(sampled(name, k, seed))


@every_rule
@pytest.mark.parametrize("kind", sorted(set(KINDS)))
def test_sampled_drafts_where_all_prefixes_are_of_one_kind(name, kind):
    proved(name, ToyPair(2, 3, (kind,)), tokens=4)


@every_chain_rule
@pytest.mark.parametrize(
    "warp",
    [
        {"temperature": 0.0},
        {"temperature": 0.5},
        {"top_k": 2},
        {"top_p": 0.6},
        {"min_p": 0.4},
        {"temperature": 1.5, "top_k": 2, "top_p": 0.7},
    ],
    ids=str,
)
def test_warps(name, warp):
    proved(name, ToyPair(3, 4), warp=warp)
    proved(name, ToyPair(3, 5, ("plain", "ties")), warp=warp, tokens=2)


@every_rule
@pytest.mark.parametrize("eos", [{1}, {0, 2}], ids=str)
def test_eos_inside_a_block(name, eos):
    proved(name, ToyPair(3, 1), eos=frozenset(eos))
    proved(name, ToyPair(2, 3, ("plain",)), eos=frozenset(eos))


@every_rule
@pytest.mark.parametrize("tokens", [1, 2, 4])
def test_budgets(name, tokens):
    proved(name, ToyPair(2, 6), tokens=tokens)


@every_rule
def test_stop_inside_a_block(name):
    proved(name, ToyPair(3, 1), stop=ends_with((1,), (0, 2)))
    proved(name, ToyPair(2, 3, ("plain",)), stop=ends_with((0, 1)), tokens=4)


@every_rule
@pytest.mark.parametrize(("target", "draft"), [(3, None), (4, 2), (None, 3), (None, 1), (2, 2)])
def test_context_limits(name, target, draft):
    limits = {"target_limit": target, "draft_limit": draft}
    proved(name, ToyPair(2, 3, ("plain",)), tokens=4, **limits)
    proved(name, ToyPair(3, 4), **limits)


OURS = {name: partial(made_schedule, name) for name in schedules() if name != "constant"}


@pytest.mark.parametrize("schedule", OURS)
def test_every_schedule(schedule):
    pair = ToyPair(2, 3, ("plain",))
    proved("sps", pair, tokens=3, schedule=OURS[schedule]())
    if schedule in STOPPING.values():  # it does stop
        stopping, always = (
            prove(case("sps", EXACT["sps"](), pair, tokens=3, schedule=each, one_round=True))
            for each in (OURS[schedule](), Constant(9))
        )
        assert stopping.emitted < always.emitted - 0.01


@every_chain_rule
@pytest.mark.parametrize("k", first(2, (3, 4, 5, 6)))
def test_one_round_of_larger_k(name, k):
    """All paths of one round: a text of K + 1 tokens that the target alone completes."""
    alone = {"tokens": k + 1, "schedule": Constant(k), "one_round": True}
    proved(name, ToyPair(2, 10 + k, ("plain",)), prompt=(0, 1, 0), **alone)
    if k == 4:
        proved(name, ToyPair(2, 3), **alone)
        proved(name, ToyPair(2, 3), eos=frozenset({1}), **alone)
    if k == 3:
        proved(name, ToyPair(3, 8, ("plain", "ties")), warp={"top_k": 2}, **alone)


@pytest.mark.parametrize("drafter", BY_RULE)
def test_match_is_exact_for_drafts_from_the_text_and_from_earlier_passes(drafter):
    """Over rounds: what is looked up in the third was drafted, kept or not, in the first."""
    make = BY_RULE[drafter]
    proof = prove(
        case(
            "match",
            EXACT["match"](),
            ToyPair(2, 3, ("plain",)),
            drafter=make,
            prompt=(0, 1, 0, 1, 0),
            tokens=5,
            schedule=Constant(2),
        )
    )
    assert proof.exact
    assert len(proof.kinds - {"plain"}) > 1 or "tree" in drafter


@pytest.mark.parametrize(
    ("tokens", "parents"),
    [
        ((0, 1, 2, 0), (-1, -1, 0, 1)),
        ((0, 0, 1, 2, 1), (-1, -1, 0, 0, 1)),  # equal siblings: the second is never reached
        ((2, 1, 0, 1, 2), (-1, 0, 0, 1, 1)),
    ],
    ids=str,
)
def test_match_is_exact_on_trees(tokens, parents):
    for pair in ToyPair(3, 2, ("plain",)), ToyPair(3, 4):
        drafter = FixedDrafter(tokens, parents)
        proved("match", pair, drafter=lambda lm, d=drafter: d, schedule=Constant(2))
        proved("match", pair, drafter=lambda lm, d=drafter: d, eos=frozenset({0}))
        proved("match", pair, drafter=lambda lm, d=drafter: d, target_limit=4)  # cut by nodes


@every_rule
def test_no_drafter_is_autoregressive_sampling(name):
    proved(name, ToyPair(3, 4), drafter=lambda lm: NoDrafter())


@every_rule
def test_the_proofs_above_reach_every_branch(name):
    """Without rejections, full acceptances and all kinds of probs they would prove little."""
    seen, kinds = set(), set()
    for seed in SEEDS:
        proof = sampled(name, 2, seed)
        seen |= proof.kinds
        for output, _ in proof.low:
            kinds |= {ToyPair(3, seed).kind((0, *output[:i])) for i in range(len(output))}
    assert seen == {"plain", "none", "some", "all"}
    assert kinds == set(KINDS)


def test_block_verification_keeps_more_on_the_paper_s_example():
    """Sun et al. 2024, section 3: 10/9 accepted tokens token-wise, 11/9 block-wise."""
    q, p = (lambda x: (1 / 3, 2 / 3)), (lambda x: (2 / 3, 1 / 3))
    for name, expected in ("sps", 10 / 9), ("block", 11 / 9):
        proof = prove(Case(rule := EXACT[name](), cells_of(name, rule), q, p, 2))
        assert proof.exact
        assert proof.emitted - 1 == pytest.approx(expected, abs=1e-12)
