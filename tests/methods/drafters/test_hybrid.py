"""Two drafters in one: who drafts, what the other sees, and the distribution that comes out."""

import pytest
import torch

from spsbench.audit.exact.cases import Case
from spsbench.audit.exact.discovery import DiscoveredRule
from spsbench.audit.exact.enumeration import prove
from spsbench.audit.exact.tables import TableLM, ToyPair, open_over
from spsbench.errors import PlugInError, UsageError
from spsbench.loop.drafter_context import Drawn, Plan, Weights
from spsbench.loop.guards import plan_of
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Context, Draft, Drafter, Purpose, Schedule, always
from spsbench.methods.drafters.hybrid import HybridDrafter
from spsbench.methods.drafters.model import ModelDrafter
from spsbench.methods.drafters.suffix import SuffixDrafter
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.block import Block
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.sps import Sps
from spsbench.spec import Spec
from tests.decoding import rounds_of
from tests.methods.drafters.asked import NOISE, PREFILL, asked

PAIR = ToyPair(3, 4)


def hybrid(first, then, least=2):
    return HybridDrafter(first, then, least=least, vocab_size=3)


def law(verifier, make, pair=PAIR, **fields):
    rule = DiscoveredRule(verifier)
    settings = {"prompt": (1, 0, 1, 1, 0), "schedule": Constant(2), **fields}
    return prove(Case(verifier, rule, pair.q, pair.p, pair.vocab, drafter=make, **settings))


@pytest.mark.parametrize("verifier", [Sps(), Block(), Match()])
@pytest.mark.parametrize("least", [1, 2])
def test_its_distribution_is_the_target_s(verifier, least):
    proof = law(
        verifier,
        lambda lm: open_over(lm, Spec("hybrid", (("least", least),))),
        ToyPair(2, 3, ("plain",)),
        tokens=4,
    )
    assert proof.exact
    assert {"none", "some", "all"} <= proof.kinds


class Coin(Drafter):
    """By rule, as it says; but it looks at the noise of what may be drafted in its place."""

    drawn = Drawn.POINT

    def draft(self, context, k, noise, go_on):
        heads = k > 0 and float(noise.uniform(Purpose.DRAFT, 1)[0]) < 0.5
        return Draft(torch.tensor([0] if heads else [], dtype=torch.int64), None)


def test_a_first_one_that_draws_is_refused():
    """Were its noise the other's, the distribution of what the other draws would be bent."""
    drafter = hybrid(Coin(), ModelDrafter(TableLM(PAIR.p, 3)))
    drafter.begin([0, 1], PREFILL)
    with pytest.raises(UsageError):
        asked(drafter, [0, 1], 2)


def test_the_first_drafts_where_it_has_enough_to_say():
    text = [0, 1, 2, 0, 1, 2, 0]
    model = ModelDrafter(TableLM(PAIR.p, 3, text=text))
    drafter = hybrid(SuffixDrafter(), model, least=3)
    drafter.begin(text, PREFILL)
    draft = asked(drafter, text, 4)
    assert draft.tokens.tolist() == [1, 2, 0]
    assert draft.probs.tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0]]
    text += [2, 1]  # nothing followed that; the model takes up all that it has missed
    drafted = asked(drafter, text, 4)
    assert len(drafted.tokens) == 4
    text += [0]  # all was rejected: the model forgets it, though it rests
    asked(drafter, text, 0)
    assert model.lm.length <= len(text) - 1


class RuleAlone(Schedule):
    """Asks the rule alone in every second round, for as much as `rule`."""

    def __init__(self, rule=2):
        self._rule = rule

    def k(self, history):
        return 2 * (len(history) % 2)

    def rule_k(self, history):
        return self._rule


def test_a_schedule_asks_the_rule_alone():
    text, prompt = [0, 1, 2, 0, 1, 2, 0], [0, 1, 2, 0]
    model = ModelDrafter(TableLM(PAIR.p, 3, text=text))
    drafter = hybrid(SuffixDrafter(), model, least=3)
    drafter.begin(text, PREFILL)
    context = Context(text, Warp(), None, rule_k=4)
    draft = drafter.draft(context, 0, NOISE, always)
    assert (draft.tokens.tolist(), draft.by_rule) == ([1, 2, 0], True)
    draft = drafter.draft(context._replace(rule_k=0), 2, NOISE, always)
    assert (len(draft.tokens), draft.by_rule) == (2, False)
    lm = TableLM(ToyPair(3, 6).q, 3)
    how = {"prompt": prompt, "warp": Warp(), "schedule": RuleAlone(3)}
    done = rounds_of(lm, hybrid(SuffixDrafter(), ModelDrafter(TableLM(PAIR.p, 3))), 24, **how)
    assert {turn.by_rule for turn in done} == {True, False}
    assert max(turn.drafted for turn in done if turn.by_rule) == 3
    assert max(turn.drafted for turn in done if not turn.by_rule) <= 2


def test_a_schedule_that_names_no_number_for_the_rule_is_refused():
    drafter = hybrid(SuffixDrafter(), ModelDrafter(TableLM(PAIR.p, 3)))
    with pytest.raises(PlugInError):
        rounds_of(TableLM(PAIR.q, 3), drafter, 4, warp=Warp(), schedule=RuleAlone("few"))


@pytest.mark.parametrize(
    ("spec", "plan"),
    [
        ("hybrid", Plan(Drawn.IID, weights=Weights.MODEL)),
        ("hybrid:first=copy,then=recycling", Plan(Drawn.POINT)),
        ("hybrid:first=suffix:nodes=8+factor=2.0", Plan(Drawn.POINT, True, Weights.MODEL)),
        ("hybrid:first=suffix,then=self", Plan(Drawn.IID, target=True)),
    ],
)
def test_its_plan_is_of_both(spec, plan):
    assert plan_of(Spec.parse(spec)) == plan


def test_beyond_the_context_of_one_the_other_goes_on():
    text = [0, 1, 2, 0, 1, 2, 0]
    drafter = hybrid(SuffixDrafter(), ModelDrafter(TableLM(PAIR.p, 3, limit=5)), least=3)
    drafter.begin(text, PREFILL)
    assert drafter.limit is None
    assert asked(drafter, text, 4).tokens.tolist() == [1, 2, 0]
    assert asked(drafter, [*text, 2, 1], 4).tokens.tolist() == [2]  # short, but all there is
