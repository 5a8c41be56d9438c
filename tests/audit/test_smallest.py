"""The worked cases of the docs: published rules, where they fail, and the mending of one."""

from pathlib import Path

import pytest

from spsbench.audit.exact.cases import LOOKAHEAD, Case
from spsbench.audit.exact.counterexample import format_fraction, smallest
from spsbench.audit.exact.discovery import DiscoveredRule
from spsbench.audit.exact.draft_kinds import DraftKind
from spsbench.audit.exact.enumeration import prove
from spsbench.audit.exact.rules import Subject
from spsbench.audit.exact.tables import ToyPair
from spsbench.methods.drafters.model import ModelDrafter
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.block import Block
from spsbench.plugins import make
from spsbench.spec import Spec
from tests.variants import first

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def rule(name, file="hsd.py"):
    return make("verifiers", Spec.parse(f"{EXAMPLES / file}:{name}"))


def lines(verifier):
    kind = DraftKind("model", ModelDrafter)
    return smallest(Subject(verifier, kind, lambda: Constant(LOOKAHEAD), None).simple)


def emitted(verifier, pair, k):
    fields = {"tokens": k + 1, "schedule": Constant(k), "one_round": True}
    rules = DiscoveredRule(verifier)
    proof = prove(Case(verifier, rules, pair.q, pair.p, pair.vocab, **fields))
    assert proof.exact
    return proof.emitted


def test_hsd_as_its_code_decides_keeps_a_draft_too_often():
    """Of (1/3, 2/3) and (2/3, 1/3) at K = 2, as in section 3 of Sun et al. 2024."""
    head, *drafts, sum_up = lines(rule("Hsd"))
    assert head == (
        "2 tokens, K = 2; after every text q = (1/3, 2/3) and p = (2/3, 1/3); total variation 1/9"
    )
    assert drafts[0] == (
        "draft [0, 0] has probability 4/9: 0 accepted and [1] emitted with 3/4, all accepted with "
        "1/4"
    )
    assert drafts[2] == "draft [1, 0] has probability 2/9: all accepted with 1"
    assert len(drafts) == 4
    assert sum_up == ("so the text begins [1, 0] with 1/9 + 2/9 = 1/3: expected 2/3 x 1/3 = 2/9")


@pytest.mark.parametrize("seed", first(1, (3, 5)))
def test_mended_it_is_exact_and_keeps_what_block_verification_keeps(seed):
    pair = ToyPair(2, seed, ("plain",))
    for k in 2, 3:
        assert emitted(rule("Mended"), pair, k) == pytest.approx(emitted(Block(), pair, k))


def test_a_draw_from_q_in_place_of_the_residual_is_refused():
    """Of (1/3, 2/3) and (2/3, 1/3) a slot is 0 with min(p, q) + (1 - alpha) q = 1/3 + 1/9."""
    cut = rule("SpecCut", "spec_rl.py")
    assert lines(cut) == [
        "2 tokens, K = 1; after every text q = (1/3, 2/3) and p = (2/3, 1/3); total variation 1/9",
        "draft [0] has probability 2/3: 0 accepted and [0] emitted with 1/6, 0 accepted and [1] "
        "emitted with 1/3, all accepted with 1/2",
        "draft [1] has probability 1/3: all accepted with 1",
        "so the text begins [0] with 1/9 + 1/3 = 4/9: expected 1/3",
    ]


@pytest.mark.slow
def test_an_exact_rule_has_no_counterexample():
    assert lines(Block()) == []


def test_numbers_are_simple_fractions_where_they_are():
    assert (format_fraction(1 / 9), format_fraction(0.123456789), format_fraction(1.0)) == (
        "1/9",
        "0.123457",
        "1",
    )
