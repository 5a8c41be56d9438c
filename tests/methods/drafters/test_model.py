"""A draft model: its laws are those it drew from, and its cache follows the text."""

import random

import pytest
import torch

from spsbench.audit.exact.cases import warped
from spsbench.audit.exact.tables import Pair, TableLM
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import Warp, sample
from spsbench.loop.types import Context, Purpose, Scores
from spsbench.methods.drafters.model import ModelDrafter
from spsbench.methods.schedules.by_history import Constant

PAIR = Pair(4, 8, ("plain",))
PREFILL = Scores(torch.empty(0, 4), {})
ALWAYS = Constant().go_on


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.0}, {"top_k": 2}], ids=str)
def test_tokens_are_drawn_from_the_laws_handed_over(settings):
    """Whatever became of the last draft: kept in whole, in part, not at all."""
    rng, text = random.Random(0), [0, 1]
    drafter = ModelDrafter(TableLM(PAIR.p, 4, text=text))
    law = warped(PAIR.p, **settings)
    drafter.begin(text, PREFILL)
    for index in range(12):
        noise = PhiloxStream(1).round(index)
        k = rng.randrange(5)
        draft = drafter.draft(Context(text, Warp(**settings), None), k, noise, ALWAYS)
        tokens = draft.tokens.tolist()
        assert len(tokens) == k
        assert (draft.probs is None) == (k == 0)
        u = noise.uniform(Purpose.DRAFT, k)
        for slot in range(k):
            row = torch.tensor(law((*text, *tokens[:slot])), dtype=torch.float64)
            torch.testing.assert_close(draft.probs[slot], row, rtol=0, atol=1e-12)
            assert tokens[slot] == int(sample(draft.probs[slot], u[slot]))
        text += [*tokens[: rng.randrange(k + 1)], rng.randrange(4)]


def test_the_rule_to_go_on_sees_the_law_and_never_the_token():
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
