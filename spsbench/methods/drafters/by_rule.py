"""Drafters by rule: what they draft follows from the text alone, so a log of texts replays them."""

from collections.abc import Sequence
from itertools import takewhile

import torch

from spsbench.loop.types import Context, Draft, Drafter, Drawn, GoOn, Noise


class RuleDrafter(Drafter):
    """A drafter of chains that reads tokens and nothing else: no laws, no noise, no rounds."""

    drawn = Drawn.POINT

    def proposals(self, tokens: Sequence[int], ks: Sequence[int]) -> list[Sequence[int]]:
        """Return for each K a chain whose first K tokens are the draft after `tokens`.

        A chain may be longer than its K, and several K may share one. Calls see growing texts
        after `begin`.
        """
        raise NotImplementedError

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        (chain,) = self.proposals(context.tokens, (k,))
        return Draft(torch.tensor(chain[:k], dtype=torch.int64), None)


def agreement(chain: Sequence[int], tokens: Sequence[int], at: int) -> int:
    """Return how many first tokens of a chain stand in `tokens` from position `at` on."""
    ahead = zip(chain, tokens[at : at + len(chain)], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], ahead))
