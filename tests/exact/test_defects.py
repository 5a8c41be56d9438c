"""The power of every law: each planted defect is seen by the walks that should see it.

The control of each walk: nothing planted, nothing seen.
"""

from unittest.mock import patch

import pytest

from spsbench.audit.exact import pairings, rules
from spsbench.audit.exact.enumeration import prove
from spsbench.audit.exact.tables import InconsistentFeedError, TableLM
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.sps import Sps
from spsbench.spec import Spec
from tests.oracles.defects import DEFECTS, PLAIN, RULES, WALKS, StaleLM
from tests.oracles.written_rules import case

AUDITED = [defect for defect in DEFECTS if defect.kind]
QUICK = {  # one of each kind of walk
    "the last test draws the last token too",
    "the bonus comes from row 2 at most",
    "siblings in the order of their ids",
    "each sibling tested as if it were alone",
    "a sibling by rule leaves its mass to the next",
    "one draw for a path",
    "the first row's penalty is used for all",
}


LATE = {"late sps", "late block", "late match"}
PROVED = LATE | {"sps", "block", "match", "recursive", "traversal", "spectr", "match trees"}
"""Silent by tests/test_exactness.py and tests/test_trees_exactness.py too."""


@pytest.mark.parametrize(
    "walk", [pytest.param(w, marks=[pytest.mark.slow] * (w in PROVED)) for w in WALKS]
)
def test_a_walk_is_silent_without_a_defect(walk):
    assert WALKS[walk]({}) == 0.0


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_defect_is_seen(defect):
    with defect.plant() as parts:
        assert WALKS[defect.seen_by](parts) > 1e-6


@pytest.mark.needs_fast
@pytest.mark.parametrize(
    "defect",
    [
        pytest.param(defect, id=defect.name, marks=[pytest.mark.slow] * (defect.name not in QUICK))
        for defect in AUDITED
    ],
)
def test_a_wrong_rule_is_biased_by_what_sps_verify_rules_walks_unasked(defect):
    """Not `u <= q / p`: its law is wrong by the chance of u = 0 alone."""
    kind = next(kind for kind in pairings.drafter_kinds() if kind.name == defect.kind)
    with defect.plant() as parts, patch.object(rules, "smallest", lambda make: []):
        verifier = parts.get("verifier", RULES.get(defect.seen_by.split()[-1]))
        assert pairings.is_apt(verifier, Spec("mine"), kind)
        row = rules.pairing("mine", verifier, kind, "constant", lambda: Constant(2))
    assert row.verdict == "BIASED"
    assert (row.distance or 0) > 1e-3
    assert not defect.seen_by.startswith("late") or row.lookahead in (3, 4, 5)


def test_the_tables_refuse_a_cache_that_keeps_what_was_rejected():
    def checked(case, text, target):
        kind = StaleLM if target else TableLM
        return kind(case.q if target else case.p, case.vocab, text=text, target=target)

    with pytest.raises(InconsistentFeedError):
        prove(case("sps", Sps(), PLAIN, lm=checked))


def test_every_walk_has_a_defect():
    assert {defect.seen_by for defect in DEFECTS} == set(WALKS)
