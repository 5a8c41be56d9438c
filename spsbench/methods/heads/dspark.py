"""The network of DSpark (arXiv 2607.05147): DFlash, and a small coupling from token to token.

To the logits of a row comes a bias of rank r that depends on the token before it, so that a chain
that is drawn from left to right has a law. `gated` weighs it by the row, `rnn` keeps a state along
the block.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spsbench.methods.heads.dflash import DFlashNetwork
from spsbench.methods.heads.parallel import Around
from spsbench.models.heads.description import BlockShape

KINDS = ("vanilla", "gated", "rnn")


class Markov(nn.Module):
    """`markov_w1` [V, r] of the token before, `markov_w2` [Vd, r] to the logits."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        wide, rank = shape.layer.width, shape.rank
        self.markov_w1 = nn.Embedding(shape.vocab, rank)
        self.markov_w2 = nn.Linear(rank, shape.draft_vocab, bias=False)
        if shape.coupling == "gated":
            self.gate_proj = nn.Linear(wide + rank, rank)
        elif shape.coupling == "rnn":
            self.joint_proj = nn.Linear(2 * rank + wide, 3 * rank)


class Look(NamedTuple):
    """What a round needs."""

    rows: Tensor  # [count, H] that draft
    logits: Tensor  # [count, Vd] before any coupling
    first: Tensor | None  # [H] the row of the pending token where that row does not draft


class DSparkNetwork(DFlashNetwork):
    """A state is [2r]: what the recurrence has kept, and the embedding of the token before."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__(shape)
        self.markov_head = Markov(shape)

    def look(self, newest: Tensor, token: Tensor, place: int, count: int, by: Around) -> Any:
        """The rows as well: the coupling may depend on them."""
        rows = self.rows(token, place, by)
        drafting = rows[-self.deepest :][:count]
        first = None if self.shape.from_first else rows[0]
        return Look(drafting, self.logits(drafting, by), first)

    def start(self, seen: Any, token: Tensor, by: Around) -> Tensor:
        """[2r] after the pending token; a recurrence begins at the first row of the block."""
        before = self.markov_head.markov_w1(token)
        state = torch.cat([torch.zeros_like(before), before])
        if self.shape.coupling == "rnn" and seen.first is not None:
            kept, _ = self._along(state[None], seen.first)
            state = torch.cat([kept[0], before])
        return state

    def scores(self, seen: Any, depth: int, states: Tensor, by: Around) -> Tensor:
        """[n, Vd] with the bias of the token before."""
        _, bias = self._along(states, seen.rows[depth])
        logits = seen.logits[depth]
        made: Tensor = logits + self.markov_head.markov_w2(bias)[:, : len(logits)]  # no padding
        return made

    def step(self, seen: Any, depth: int, states: Tensor, tokens: Tensor, by: Around) -> Tensor:
        """[n, 2r] after the tokens."""
        kept, _ = self._along(states, seen.rows[depth])
        return torch.cat([kept, self.markov_head.markov_w1(tokens)], -1)

    def _along(self, states: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        """[n, 2r] before a row [H] -> [n, r] what is kept after it, [n, r] what biases it."""
        kept, before = states.chunk(2, -1)
        rows = row.expand(len(states), -1)
        if self.shape.coupling == "gated":
            gate = self.markov_head.gate_proj(torch.cat([rows, before], -1)).sigmoid()
            return kept, gate * before
        if self.shape.coupling == "rnn":
            joint = self.markov_head.joint_proj(torch.cat([kept, before, rows], -1))
            gate, new, out = joint.chunk(3, -1)
            gate = gate.sigmoid()
            return gate * kept + (1 - gate) * new.tanh(), out.tanh()
        return kept, before
