"""Token recycling: candidates are kept, newer ones in place of older, and drafted along."""

import torch

from spsbench.loop.types import Draft, Scores, Step, Verdict
from spsbench.methods.drafters.recycling import EarlierRows, RecyclingDrafter
from tests.methods.drafters.asked import PREFILL, asked

VOCAB = 9


def step(draft, rows, parents=None, kept=()):
    """A pass whose row i had its candidates in the order of `rows[i]`."""
    logits = torch.zeros(len(rows), VOCAB)
    for row, candidates in zip(logits, rows, strict=True):
        for rank, token in enumerate(candidates):
            row[token] = 10 - rank
    above = None if parents is None else torch.tensor(parents)
    verdict = Verdict(torch.tensor([]), torch.tensor(0), torch.tensor(0))
    return Step(
        Draft(torch.tensor(draft, dtype=torch.int64), None, above),
        Scores(logits, {}),
        verdict,
        kept,
    )


def test_a_chain_follows_the_candidates_of_the_last_passes():
    drafter = RecyclingDrafter(width=2)
    drafter.begin([1], PREFILL)
    assert asked(drafter, [1], 4).tokens.tolist() == []
    assert asked(drafter, [1, 2], 4, step([], [[2, 3]])).tokens.tolist() == []  # nothing after 2
    # 2 -> 3; the draft was rejected, but what the target thought after it is kept
    last = step([5, 6], [[3, 5], [6, 1], [1, 4]])
    assert asked(drafter, [1, 2, 3], 4, last).tokens.tolist() == []
    last = step([], [[5, 0]])
    assert asked(drafter, [1, 2, 3, 5], 4, last).tokens.tolist() == [6, 1, 2, 3]
    assert asked(drafter, [1, 2, 3, 5], 0, last).tokens.tolist() == []


def test_a_tree_branches_by_rank():
    drafter = RecyclingDrafter(width=2, nodes=4)
    drafter.begin([1], PREFILL)
    asked(drafter, [1], 4)
    last = step([2], [[2, 3], [1, 4]])
    draft = asked(drafter, [1, 2, 1], 3, last)
    assert draft.tokens.tolist() == [2, 1, 3, 2]
    assert draft.parents.tolist() == [-1, 0, -1, 1]
    assert len(asked(drafter, [1, 2, 1], 3, last, nodes=2).tokens) == 2


def test_ranks_that_were_right_get_the_nodes():
    drafter = RecyclingDrafter(width=2, nodes=3)
    text = [1, 2]
    drafter.begin(text, PREFILL)
    asked(drafter, text, 2)
    for _ in range(40):  # after each of 1 and 2 the second candidate comes
        text.append(3 - text[-1])
        draft = asked(drafter, text, 2, step([], [[7, text[-1]]]))
    assert draft.tokens.tolist()[0] == 7
    assert draft.parents.tolist()[:2] == [-1, -1]


def test_rows_of_other_prompts_may_serve_but_never_those_of_the_same():
    earlier = EarlierRows()
    for prompt, later in (([1], 2), ([4], 5)):
        drafter = RecyclingDrafter(width=2)
        drafter.earlier = earlier
        drafter.begin(prompt, PREFILL)
        asked(drafter, prompt, 4)
        asked(drafter, [*prompt, later], 4, step([], [[later, 0]]))
    again = RecyclingDrafter(width=2)
    again.earlier = earlier
    again.begin([6, 1], PREFILL)
    assert asked(again, [6, 1], 1).tokens.tolist() == [2]
    again.begin([1], PREFILL)
    assert asked(again, [1], 1).tokens.tolist() == []
    assert asked(again, [1, 4], 1).tokens.tolist() == [5]
