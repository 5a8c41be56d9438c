"""A draft model: its distributions are those it drew from, and its cache follows the text."""

import torch

from spsbench.audit.exact.tables import TableLM, ToyPair
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Context, Scores
from spsbench.methods.drafters.model import ModelDrafter

PAIR = ToyPair(4, 8, ("plain",))
PREFILL = Scores(torch.empty(0, 4), {})


def test_the_rule_to_go_on_sees_the_distribution_and_never_the_token():
    seen = []

    def go_on(p):
        seen.append(p)
        return torch.tensor(len(seen) < 3)

    drafter = ModelDrafter(TableLM(PAIR.p, 4))
    drafter.begin([0, 1], PREFILL)
    draft = drafter.draft(Context([0, 1], Warp(), None), 5, PhiloxStream(0).round(0), go_on)
    assert len(draft.tokens) == 2
    assert len(seen) == 3
    assert torch.equal(torch.stack(seen[:2]), draft.probs)


def test_a_prompt_beyond_its_context_is_not_fed():
    drafter = ModelDrafter(TableLM(PAIR.p, 4, limit=3))
    drafter.begin([0, 1, 2, 3], PREFILL)
    assert drafter.lm.length == 0
    assert drafter.limit == 3
    drafter.begin([0, 1, 2], PREFILL)
    assert drafter.lm.length == 2
