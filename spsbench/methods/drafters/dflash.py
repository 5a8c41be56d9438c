"""DFlash and DSpark: a block of tokens by one pass of a small diffusion model (arXiv 2602.06036).

The target's features, fused by `fc` and normed, are keys and values in every layer; they are
written once, as the text grows. The block is the pending token and masks after it. Its rows see the
features of the whole text and each other, later ones too. The laws of a block are marginals, and
independent draws from them do not cohere: so DFlash drafts the likeliest tokens unless
`sampled=true` is asked for. Trees of the best paths by the product of marginals (`width`, `nodes`)
are those of DDTree (arXiv 2604.12989).

DSpark (arXiv 2607.05147) adds to the logits of a row a bias of rank r that depends on the token
before it, so that a chain drawn from left to right has a law. `gated` weighs it by the row, `rnn`
keeps a state along the block. A head without the coupling (`markov_rank` 0) is a DFlash head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spsbench.methods.drafters.headed import HeadDrafter
from spsbench.methods.heads.layers import Layer, Rotary
from spsbench.methods.heads.network import Ranking
from spsbench.methods.heads.parallel import Around, Marginal, ParallelFrontier
from spsbench.models.heads.description import BlockShape


class DFlashNetwork(Marginal):
    """`fc` [H, n * Ht], layers over [text; block], a norm, and the target's head or its own."""

    shape: BlockShape

    def __init__(self, shape: BlockShape, layers: int) -> None:
        super().__init__(shape, layers)
        layer = shape.layer
        self.deepest = shape.block - (0 if shape.from_first else 1)
        read = len(shape.features) * shape.target_width
        self.fc = nn.Linear(read, layer.width, bias=False)
        self.hidden_norm = nn.RMSNorm(layer.width, eps=layer.eps)
        self.stack = nn.ModuleList(Layer(layer, i) for i in range(shape.depth))
        self.norm = nn.RMSNorm(layer.width, eps=layer.eps)
        self.rotary = Rotary(layer)
        if shape.own_head:
            self.lm_head = nn.Linear(layer.width, shape.draft_vocab, bias=False)

    def read(self, hidden: Sequence[Tensor], tokens: Tensor, past: int, by: Around) -> Tensor:
        fused = self.hidden_norm(self.fc(torch.cat(list(hidden), -1)))
        places = torch.arange(past, past + len(fused), device=fused.device)
        turns = self.rotary(places, fused.dtype)
        for layer in self.stack:
            attention: Any = layer.self_attn
            attention.append_kv(fused, turns, by.cache)
        newest: Tensor = fused[-1]
        return newest

    def look(self, newest: Tensor, token: Tensor, place: int, count: int, by: Around) -> Any:
        return self.logits(self.rows(token, place, by)[-self.deepest :][:count], by)

    def rows(self, token: Tensor, place: int, by: Around) -> Tensor:
        """Return the [block, H] normed rows, of which the last `deepest` draft."""
        masks = token.new_full((self.shape.block,), self.shape.mask)
        x = by.embed(torch.cat([token[None], masks[1:]]))
        turns = self.rotary(torch.arange(place, place + len(x), device=token.device), x.dtype)
        for layer, window in zip(self.stack, self.shape.windows, strict=True):
            x = layer(x, turns, by.cache, self._sees(place, window, token.device))
        normed: Tensor = self.norm(x)
        return normed

    def logits(self, rows: Tensor, by: Around) -> Tensor:
        """Map [n, H] to [n, Vd] by its own head, else by the target's rows of its vocabulary."""
        return self.ranked(rows, by.head)

    def _sees(self, past: int, window: int, device: torch.device) -> Tensor | None:
        """Return [block, past + block], which rows a windowed layer sees; None: all."""
        if not window:
            return None
        size = self.shape.block
        sees = torch.ones(size, past + size, dtype=torch.bool, device=device)
        sees[:, : max(0, past - window)] = False  # counted from the pending token, for every row
        return sees if self.shape.looks_ahead else sees.tril(past)


class Markov(nn.Module):
    """The coupling of DSpark: `markov_w1` [V, r] of the last token, `markov_w2` [Vd, r]."""

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
    """The results of one pass that a round needs."""

    rows: Tensor  # [count, H] that draft
    logits: Tensor  # [count, Vd] before any coupling
    first: Tensor | None  # [H] the row of the pending token where that row does not draft


class DSparkNetwork(DFlashNetwork):
    """A DFlash network with a state [2r]: the recurrence, and the last token's embedding."""

    marginal = False

    def __init__(self, shape: BlockShape, layers: int) -> None:
        super().__init__(shape, layers)
        self.markov_head = Markov(shape)

    def look(self, newest: Tensor, token: Tensor, place: int, count: int, by: Around) -> Any:
        rows = self.rows(token, place, by)
        drafting = rows[-self.deepest :][:count]
        first = None if self.shape.from_first else rows[0]
        return Look(drafting, self.logits(drafting, by), first)

    def start(self, seen: Any, token: Tensor, by: Around) -> Tensor:
        before = self.markov_head.markov_w1(token)
        state = torch.cat([torch.zeros_like(before), before])
        if self.shape.coupling == "rnn" and seen.first is not None:
            kept, _ = self._along(state[None], seen.first)
            state = torch.cat([kept[0], before])
        return state

    def scores(self, seen: Any, depth: int, states: Tensor, by: Around) -> Tensor:
        _, bias = self._along(states, seen.rows[depth])
        logits = seen.logits[depth]
        biased: Tensor = logits + self.markov_head.markov_w2(bias)[:, : len(logits)]  # no padding
        return biased

    def step(self, seen: Any, depth: int, states: Tensor, tokens: Tensor, by: Around) -> Tensor:
        kept, _ = self._along(states, seen.rows[depth])
        return torch.cat([kept, self.markov_head.markov_w1(tokens)], -1)

    def _along(self, states: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        """Advance [n, 2r] by a row [H]: [n, r] recurrent states, and [n, r] inputs of the bias."""
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


@dataclass(frozen=True)
class DFlash(HeadDrafter):
    """A chain or tree drafter over a block-diffusion head; by default tokens come by rule."""

    network = DFlashNetwork
    frontier = ParallelFrontier

    sampled: bool = False
    siblings: str = "top"


@dataclass(frozen=True)
class DSpark(HeadDrafter):
    """A chain or tree drafter over a coupled block-diffusion head."""

    network = DSparkNetwork
    frontier = ParallelFrontier

    @classmethod
    def network_for(cls, shape: BlockShape) -> type[Ranking]:
        return DSparkNetwork if shape.rank else DFlashNetwork
