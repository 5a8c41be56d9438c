"""The compatibility table: right for our rules, and honest about other people's."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from spsbench.audit.exact import pairings as chosen
from spsbench.audit.exact import rules
from spsbench.audit.exact.cases import Case
from spsbench.audit.exact.discovery import DiscoveredRule
from spsbench.audit.exact.draft_kinds import REFERENCE, DraftKind, FixedDrafter
from spsbench.audit.exact.enumeration import prove
from spsbench.audit.exact.pairings import RulePairing, drafter_kinds, pairings, schedules
from spsbench.audit.exact.rules import enumerate_pairing, enumerate_pairings, pairing
from spsbench.audit.exact.tables import ToyPair
from spsbench.cli.rules import conclusion, exit_code_of
from spsbench.errors import Exit, UsageError
from spsbench.loop.types import LM, Context, Draft, GoOn, Guarantee, Noise, Verdict
from spsbench.methods.drafters.model import ModelDrafter
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.block import Block
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.sps import Sps
from spsbench.methods.verifiers.walk_down import SAMPLED_CHAINS
from spsbench.plugins import make
from spsbench.registry import entries
from spsbench.spec import Spec
from tests.oracles.defects import Lenient
from tests.oracles.written_rules import case
from tests.variants import first
from tests.workers.inline import inline

pytestmark = pytest.mark.usefixtures("few_settings")

MODEL = DraftKind("model", ModelDrafter)


@dataclass(frozen=True)
class GreedyOnly(Match):
    """Compares with the target's likeliest token, at any temperature."""

    guarantee: ClassVar[Guarantee] = Guarantee.GREEDY

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        n = len(draft.tokens)
        own, slots = q.argmax(-1), torch.arange(n)
        a = (own[:-1] == draft.tokens).long().cumprod(0).sum()
        return Verdict(slots.where(slots < a, -1), own[a], (a + 1).clamp(max=n))


@dataclass(frozen=True)
class Breaks(Sps):
    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        raise OSError("no such file")


@dataclass(frozen=True)
class Fearful(Match):
    """Refuses what it could do."""

    accepts = SAMPLED_CHAINS


def row(verifier, kind=MODEL):
    return pairing("mine", verifier, kind, "constant", lambda: Constant(2))


@pytest.mark.parametrize(
    "verifier", first(1, [Block(), Sps(), Match()]), ids=lambda v: type(v).__name__
)
def test_our_rules_are_exact_with_sampled_chains(verifier):
    found = row(verifier)
    assert (found.verdict, found.refused, found.error) == ("exact", None, None)
    assert found.distance is not None
    assert found.distance < 1e-13  # block's own thresholds are rounded so
    assert found.emitted is not None
    assert found.emitted > 1.3


@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=pytest.mark.slow if k.rounds else (), id=k.name) for k in REFERENCE],
)
def test_match_goes_with_every_kind_and_sps_is_rightly_refused(kind):
    assert row(Match(), kind).verdict == "exact"
    found = row(Sps(), kind)
    assert found.verdict == "refused"
    assert found.distance is not None
    assert found.distance > 0.03


SPEC_RL = Path(__file__).parents[2] / "docs" / "examples" / "spec_rl.py"


def test_a_lossy_rule_that_claims_to_be_exact_is_found_out():
    found = row(make("verifiers", Spec.parse(f"{SPEC_RL}:SpecCut")))
    assert found.verdict == "BIASED"
    assert found.distance is not None
    assert found.distance > 1e-3
    assert found.error is None, "its law was found, not only that it is another one"
    assert exit_code_of([found]) is Exit.BIAS


@pytest.mark.parametrize("name", ["sps", "block", "match"])
def test_what_is_discovered_is_what_is_known(name):
    """The search and the thresholds that were written down give one distribution, and one cost."""
    verifier = {"sps": Sps(), "block": Block(), "match": Match()}[name]
    for pair, fields in (
        (ToyPair(2, 3, ("plain",)), {"tokens": 3}),
        (ToyPair(3, 4), {"tokens": 2, "warp": {"top_p": 0.7}}),
    ):
        known = prove(case(name, verifier, pair, **fields))
        rule = DiscoveredRule(verifier)
        found = prove(Case(verifier, rule, pair.q, pair.p, pair.vocab, **fields))
        assert found.exact
        assert found.emitted == pytest.approx(known.emitted, abs=1e-12)


def test_the_distribution_of_a_lossy_rule_is_measured_exactly():
    """`u < q / p` with u shrunk to 0.9 u: the first token's distribution has a formula."""
    pair = ToyPair(3, 2, ("plain",))
    rule = DiscoveredRule(Lenient())
    found = prove(Case(Lenient(), rule, pair.q, pair.p, 3, tokens=2, schedule=Constant(1)))
    q, p = pair.q((0,)), pair.p((0,))
    kept = [b * min(1.0, a / (0.9 * b)) for a, b in zip(q, p, strict=True)]
    rest = [max(a - b, 0.0) for a, b in zip(q, p, strict=True)]
    first = [k + (1 - sum(kept)) * r / sum(rest) for k, r in zip(kept, rest, strict=True)]
    got = [sum(w for (out, _), w in found.low.items() if out[0] == x) for x in range(3)]
    assert got == pytest.approx(first, abs=1e-12)


def test_a_greedy_promise_is_held_to_greedy_decoding():
    assert row(GreedyOnly()).verdict == "greedy-exact"
    claims_more = type("ClaimsMore", (GreedyOnly,), {"guarantee": Guarantee.EXACT})
    assert row(claims_more()).verdict == "BIASED"


def test_what_breaks_is_not_shown():
    found = row(Breaks())
    assert (found.verdict, found.distance) == ("not shown", None)
    line = r"PlugInError: verifier tests.audit.test_rules:Breaks failed: OSError: no such file"
    assert found.error is not None
    assert re.fullmatch(rf"{line} \(test_rules.py, line \d+\)", found.error)
    assert exit_code_of([found]) is Exit.NOT_VALID


def test_the_last_line_says_how_far_it_is_proved():
    found = [row(Match(), REFERENCE[0]), row(Match(), REFERENCE[1])]
    assert {each.lookahead for each in found} == {6}
    assert "whole texts up to K = 2 and single rounds up to K = 6" in conclusion(found)
    assert "rounds up to K = 4 to 6" in conclusion([replace(found[0], lookahead=4), found[1]])
    assert conclusion(found).endswith("; not enumerated: larger K, vocabularies and trees")


class NeedsWeights(ModelDrafter):
    """More than a session is asked for."""

    def __init__(self, lm: LM, weights: str) -> None:
        super().__init__(lm)


class ReadsLayers(ModelDrafter):
    layers = (1,)


@pytest.mark.parametrize(
    ("made", "says"), [(NeedsWeights, "TypeError: .*'weights'"), (ReadsLayers, "hidden layers")]
)
def test_a_drafter_that_cannot_be_made_is_a_row_with_its_reason(made, says):
    found = row(Sps(), DraftKind("eagle", made))
    assert found.verdict == "left out"
    assert re.search(says, found.left_out or "")
    rest = [row(Match(), REFERENCE[0]), found]
    assert exit_code_of(rest) is Exit.OK
    assert "; 1 left out, see below; not enumerated: " in conclusion(rest)
    assert exit_code_of([*rest, replace(found, left_out=None, error="OSError")]) is Exit.NOT_VALID
    assert exit_code_of([*rest, replace(rest[0], distance=0.1)]) is Exit.BIAS
    assert exit_code_of([found]) is Exit.NOT_VALID


WORK = [
    RulePairing(Spec("synthetic", (("alpha", 0.5),)), "none", "constant"),
    RulePairing(Spec("sps"), "(argmax chain)", "constant"),
    RulePairing(Spec("synthetic"), "none", "constant"),
]


def test_rows_come_in_order(monkeypatch):
    inline(monkeypatch)
    told = []
    assert enumerate_pairings(WORK, 2, lambda each, row: told.append(each)) == [
        enumerate_pairing(each) for each in WORK
    ]
    assert sorted(map(str, told)) == sorted(map(str, WORK))


@pytest.mark.slow
def test_rows_of_other_processes_are_those_of_this_one():
    theirs, ours = (enumerate_pairings(WORK, crew, lambda *_: None) for crew in (2, 1))
    for their, own in zip(theirs, ours, strict=True):
        assert their.distance == pytest.approx(own.distance, rel=1e-12)  # sums of another order
        assert replace(their, distance=own.distance) == own


class Misreports(ModelDrafter):
    """Draws from p and reports p^0.9."""

    def draft(self, *given: object) -> Draft:
        draft = super().draft(*given)
        if draft.probs is None:
            return draft
        law = draft.probs**0.9
        return replace(draft, probs=law / law.sum(-1, keepdim=True))


def test_the_distribution_of_a_foreign_drafter_is_found_by_drafting():
    spec = Spec(f"{__file__}:Misreports")
    (walked,) = pairings([Spec("sps")], [Spec("constant")], [spec])
    assert walked.drafter == str(spec)
    wrong = enumerate_pairing(walked)
    assert (wrong.verdict, wrong.error) == ("BIASED", None)
    assert wrong.smallest
    assert conclusion([wrong]).endswith(f"with drafter {spec} alone")


def test_a_drafter_that_draws_too_much_is_left_out():
    found = enumerate_pairing(RulePairing(Spec("spectr"), "chains:n=5", "constant"))
    assert found.verdict == "left out"
    assert "draws 10 tokens a round at K = 2" in (found.left_out or "")


def test_a_drafter_alone_goes_with_every_rule_and_its_small_forms():
    walked = pairings(drafts=[Spec("tree")])
    assert {each.drafter for each in walked} == set(chosen.SMALL["tree"])
    assert {each.verifier.name for each in walked} == {e.name for e in entries("verifiers")}
    with pytest.raises(UsageError, match="no drafter 'beam'"):
        pairings(drafts=[Spec("beam")])


def test_a_needless_refusal_is_told():
    found = row(Fearful(), REFERENCE[0])
    assert found.verdict == "refused, though exact here"
    assert exit_code_of([found]) is Exit.OK


def test_plug_ins_of_other_packages_are_in_the_table(registered):
    registered("verifiers", "generous", "tests.oracles.defects:Lenient")
    registered("verifiers", "broken", "tests.nowhere:Rule")
    registered("schedules", "slow", "tests.parts:ByHistory")
    rules = [Spec(name) for name in ("generous", "broken", "sps")]
    walked = pairings(rules)
    assert {each.verifier for each in walked} == set(rules)
    assert "slow" in {each.schedule for each in walked}
    found = {
        rule.name: enumerate_pairing(RulePairing(rule, "model", "slow")).verdict for rule in rules
    }
    assert found == {"generous": "BIASED", "broken": "not shown", "sps": "exact"}


@pytest.mark.parametrize(
    ("planted", "verdict"),
    [("SeesTheDraw", "BIASED"), ("RewritesTheLaw", "BIASED"), ("SeesTheSlotBefore", "exact")],
)
def test_a_schedule_is_exact_unless_it_sees_the_token_that_it_drops(
    planted, verdict, registered, monkeypatch
):
    monkeypatch.setattr(rules, "smallest", lambda make: [])
    registered("schedules", "planted", f"tests.audit.planted_schedules:{planted}")
    found = enumerate_pairing(RulePairing(Spec("sps"), "model", "planted"))
    assert found.verdict == verdict
    assert exit_code_of([found]) is (Exit.OK if verdict == "exact" else Exit.BIAS)


def test_every_plug_in_of_the_registry_is_enumerated():
    named = {kind.name.partition(":")[0] for kind in drafter_kinds()}
    assert {entry.name for entry in entries("drafters")} < named
    names = [Spec.parse(name).name for name in schedules()]
    assert names == [entry.name for entry in entries("schedules")]
    walked = pairings([Spec("sps"), Spec("lenient")])
    assert {each.schedule for each in walked if each.drafter == "model"} == {*schedules()}
    other = {each[:2] for each in walked if each.schedule != "constant"}
    assert other == {(Spec("sps"), "model")}  # what a schedule can spoil
    whole, deep = set(pairings()), {each._replace(deep=False) for each in pairings(deep=True)}
    assert whole < deep
    assert {each.drafter for each in whole} == {kind.name for kind in drafter_kinds()}
    rules = {str(each.verifier) for each in whole if each.drafter == "suffix"}
    assert rules == {"match"}
    assert (Spec("recursive"), "suffix") in {each[:2] for each in deep}
    asked = Spec.parse("confidence:t=0.7")
    assert pairings([Spec("sps")], [asked]) == [RulePairing(Spec("sps"), "model", str(asked))]
    with pytest.raises(UsageError, match="no schedule 'beam'"):
        pairings([], [Spec("beam")])
    with pytest.raises(UsageError, match="no verifier 'beam'"):
        pairings([Spec("beam")])


@pytest.mark.slow
@pytest.mark.timeout(600)  # 52 s of a core
def test_the_whole_table():
    found = list(map(enumerate_pairing, pairings()))
    assert exit_code_of(found) is Exit.OK
    needless = {row.verifier for row in found if row.refused and not row.wrong}
    assert needless == {"spectr"}  # of tokens without distributions it keeps none
    kinds = {"exact", "lossy", "refused", "refused, though exact here", "left out"}
    assert {row.verdict for row in found} == kinds
    in_rounds = {kind.name for kind in drafter_kinds() if kind.rounds}
    exact = [row for row in found if row.verdict == "exact" and row.drafter not in in_rounds]
    assert {row.lookahead for row in exact} == {3, 6}


@pytest.mark.parametrize("one_round", [True, False])
def test_a_drafter_that_does_not_repeat_itself_is_not_shown(one_round):
    calls = []

    class Fickle(FixedDrafter):
        def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
            calls.append(k)
            return Draft(torch.tensor([len(calls) % 2] * k, dtype=torch.int64), None)

    pair, rule = ToyPair(2, 3, ("plain",)), DiscoveredRule(Match())
    case = Case(Match(), rule, pair.q, pair.p, 2, drafter=lambda lm: Fickle(()))
    assert not prove(replace(case, one_round=one_round)).whole
