"""What a walk does once for many paths changes none of its numbers."""

from typing import Any

import pytest
import torch

from spsbench.audit.exact.cases import Case
from spsbench.audit.exact.discovery import DiscoveredRule
from spsbench.audit.exact.draft_kinds import REFERENCE, DraftKind
from spsbench.audit.exact.enumeration import Walk, prove
from spsbench.audit.exact.queries import VerifierQuery
from spsbench.audit.exact.tables import Pair
from spsbench.loop.types import LM, Context, Draft, Drafter, Drawn, GoOn, Noise
from spsbench.methods.drafters.model import ModelDrafter
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.sps import Sps
from spsbench.methods.verifiers.traversal import Traversal

CHAIN = DraftKind("model", ModelDrafter)
TREE = next(kind for kind in REFERENCE if kind.name == "(i.i.d. siblings)")


def proved(verifier, kind=CHAIN, **fields):
    pair = Pair(2, 3, ("plain",))
    rule = DiscoveredRule(verifier, kind.drawn)
    given = {"tokens": 3, "schedule": Constant(2), "drafter": kind.make} | fields
    return prove(Case(verifier, rule, pair.q, pair.p, 2, **given))


@pytest.fixture
def unshared(monkeypatch):
    """Have every path ask for its own uniforms, or make its own drafts, from a call on."""
    alone = {VerifierQuery: lambda self, uniform: [], Walk: lambda self, before, same: self}
    return lambda kind: monkeypatch.setattr(kind, "after", alone[kind])


@pytest.mark.parametrize(
    ("verifier", "kind", "fields"),
    [(Sps(), CHAIN, {"tokens": 2}), (Traversal(), TREE, {"one_round": True})],
    ids=["sps", "traversal"],
)
def test_paths_together_have_the_numbers_that_each_has_alone(verifier, kind, fields, unshared):
    found = proved(verifier, kind, **fields)
    assert found.exact
    unshared(VerifierQuery)
    assert proved(verifier, kind, **fields) == found


def test_a_round_s_draft_is_made_once_at_each_end_of_its_cells(unshared):
    made = []

    class Counted(ModelDrafter):
        def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
            made.append(super().draft(context, k, noise, go_on))
            return made[-1]

    found = proved(Sps(), drafter=Counted, one_round=True)
    assert len(made) == 2 * 2**2  # both ends of each of two tokens twice
    assert found.paths > 2**2
    unshared(Walk)
    assert proved(Sps(), drafter=Counted, one_round=True) == found
    assert len(made) == 8 + 2 * found.paths
    assert found.exact


def test_a_rule_that_writes_to_a_draft_spoils_no_other_path(unshared):
    class Writes(Sps):
        def __call__(self, draft: Draft, q: torch.Tensor, noise: Noise) -> Any:
            ruled = super().__call__(draft, q, noise)
            draft.tokens.fill_(0)
            return ruled

    found = proved(Writes(), one_round=True)
    unshared(Walk)
    assert proved(Writes(), one_round=True) == found


@pytest.mark.parametrize("one_round", [True, False])
def test_a_drafter_that_does_not_repeat_itself_is_not_shown(one_round):
    calls = []

    class Fickle(Drafter):
        drawn = Drawn.POINT

        def __init__(self, lm: LM) -> None:
            self.limit = lm.limit

        def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
            calls.append(k)
            return Draft(torch.tensor([len(calls) % 2] * k, dtype=torch.int64), None)

    assert not proved(Match(), drafter=Fickle, one_round=one_round).whole
