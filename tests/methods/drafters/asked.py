"""Drafters as the loop asks them, without a loop."""

from collections.abc import Sequence

import torch

from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Context, Draft, Drafter, Scores, Step
from spsbench.methods.schedules.by_history import Constant

NOISE = PhiloxStream(0).round(0)
PREFILL = Scores(torch.empty(0, 9), {})


def asked(
    drafter: Drafter,
    text: Sequence[int],
    k: int,
    last: Step | None = None,
    nodes: int | None = None,
) -> Draft:
    context = Context(text, Warp(), last, nodes)
    return drafter.draft(context, k, NOISE, Constant().go_on)


def tokens_of(drafter: Drafter, text: Sequence[int], k: int) -> list[int]:
    draft = asked(drafter, text, k)
    assert draft.probs is None
    assert draft.parents is None
    assert draft.tokens.dtype == torch.int64
    return draft.tokens.tolist()
