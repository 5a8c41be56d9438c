"""Two drafters: a cheap one where its draft is long enough, else another (arXiv 2411.10666).

The choice of a round's drafter depends on the text alone, so the output keeps its distribution.
Made to be the cheap one: `GrammarDrafter`, whose tokens are accepted with probability 1.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from spsbench.errors import UsageError
from spsbench.loop.drafter_context import DrafterContext, Weights
from spsbench.loop.guards import plan_of
from spsbench.loop.sampling import send
from spsbench.loop.types import Context, Draft, Drafter, Drawn, GoOn, Noise, Plan, Purpose, Scores
from spsbench.methods.drafters.ngram import RuleDrafter
from spsbench.plugins import make
from spsbench.settings.cell_from_options import HYBRID, parse_inner

FIRST, THEN = "suffix", "model"


class HybridDrafter(Drafter):
    """A drafter that uses `first`, by rule, where it finds `least` tokens, and `then` elsewhere.

    Where `then` samples chains, the hybrid counts as sampled: a deterministic token is one-hot, and
    every verifier of sampled chains is exact. Where drafts may branch, all of them count as
    deterministic, for which one-sample match is exact.
    """

    drawn: Drawn
    ranges: ClassVar = {"least": (1, 1 << 20)}

    @classmethod
    def plan(cls, first: str = FIRST, then: str = THEN, **_: Any) -> Plan:
        """Return the plan of both; ValueError: `first` samples, or both take `draft`.

        Arguments are specs of drafters. Drafts are sampled where those of `then` are and neither
        branches, else deterministic; they may branch where one's may. `draft` and parts of the
        target are what either takes.
        """
        plans = [plan_of(parse_inner(text)) for text in (first, then)]
        if plans[0].drawn is not Drawn.POINT:
            raise ValueError(f"{first} samples its drafts: expected a deterministic one first")
        asking = [plan.weights for plan in plans if plan.weights is not Weights.NONE]
        if len(asking) > 1:
            raise ValueError(f"{first} and {then} both take `draft`: expected one that does")
        return Plan(
            Drawn.IID if is_sampled(plans) else Drawn.POINT,
            any(plan.tree for plan in plans),
            asking[0] if asking else Weights.NONE,
            any(plan.target for plan in plans),
        )

    @classmethod
    def open(
        cls, context: DrafterContext, first: str = FIRST, then: str = THEN, least: int = 3
    ) -> Self:
        """Open both drafters at the context, and return a hybrid over them."""
        parts = (make("drafters", parse_inner(text), context) for text in (first, then))
        return cls(*parts, least=least, vocab_size=context.vocab_size)

    def __init__(self, first: Drafter, then: Drafter, *, least: int, vocab_size: int) -> None:
        self._first: Any = first
        self._then: Any = then
        self._least, self._vocab_size = least, vocab_size
        self.drawn = Drawn.IID if is_sampled((first, then)) else Drawn.POINT
        self.tree, self.text_alone = first.tree or then.tree, False  # K decides who drafts
        self.layers = tuple(sorted({*first.layers, *then.layers}))
        self.known_ids = then.known_ids
        limits = (first.limit, then.limit)  # that of the one that reaches further holds
        self.limit = None if None in limits else max(limit for limit in limits if limit is not None)
        self._device = torch.device("cpu")

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        self._device = prefill.logits.device
        self._first.begin(prompt, prefill)
        self._then.begin(prompt, prefill)

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """Draft by `first` if that finds `least` tokens or fills its K above 0, else by `then`.

        The K of `first` is the schedule's for deterministic drafts, where it has one. Where `first`
        drafts, `then` is called with K = 0, so that it sees every round; where `then` finds
        nothing, `first` drafts. In a sampled hybrid the probs of a draft by `first` are one-hot.
        """
        length = len(context.tokens)
        rule_k = room(self._first, length, k if context.rule_k is None else context.rule_k)
        model_k = room(self._then, length, k)
        by_rule = self._first.draft(context, rule_k, Silence(), go_on)
        enough = len(by_rule.tokens) >= min(self._least, rule_k) and rule_k > 0
        enough = enough or model_k == 0
        by_model = self._then.draft(context, 0 if enough else model_k, noise, go_on)
        draft: Draft = by_model
        if enough or not len(by_model.tokens):
            draft = replace(by_rule, by_rule=len(by_rule.tokens) > 0)
            if draft.by_rule and self.drawn is Drawn.IID:
                one_hot = torch.zeros(len(draft.tokens), self._vocab_size, device=self._device)
                one_hot.scatter_(1, send(draft.tokens, self._device)[:, None], 1.0)
                draft = replace(draft, probs=one_hot)
        if self.drawn is Drawn.IID:
            return draft
        return replace(draft, probs=None, drawn=Drawn.POINT)

    def proposals(self, tokens: Sequence[int], ks: Sequence[int]) -> list[Sequence[int]]:
        """Return by K the chain of `first`, or that of `then` if it is short; see `looks_up`."""
        first, then = self._first.proposals(tokens, ks), self._then.proposals(tokens, ks)
        return [
            mine if len(mine[:k]) >= min(self._least, k) or not other else other
            for mine, other, k in zip(first, then, ks, strict=True)
        ]


def looks_up(drafter: Drafter) -> bool:
    """Return whether a drafter, or both of a hybrid, read the text alone and have `proposals`."""
    parts = (drafter._first, drafter._then) if isinstance(drafter, HybridDrafter) else (drafter,)
    return all(isinstance(part, RuleDrafter) for part in parts)


class Silence:
    """The noise of `first`, which must not draw: a draw would bias the later draft."""

    def uniform(self, purpose: Purpose, n: int) -> Tensor:
        """Return no uniform for n = 0; UsageError: more are asked for."""
        if n > 0:
            raise UsageError(f"{HYBRID}: its first drafter samples: expected a deterministic one")
        return torch.empty(0, dtype=torch.float64)


def is_sampled(parts: Sequence[Any]) -> bool:
    """Return whether all of these drafters, or plans, are chains and the last one is sampled."""
    return parts[-1].drawn is Drawn.IID and not any(part.tree for part in parts)


def room(drafter: Drafter, length: int, k: int) -> int:
    """Return how many of `k` tokens fit a drafter's own context after a text of `length`."""
    return k if drafter.limit is None else max(0, min(k, drafter.limit - length))


class GrammarDrafter(Drafter):
    """A drafter that follows the masks of the constraint while one token is allowed."""

    drawn = Drawn.POINT

    @classmethod
    def open(cls, context: DrafterContext) -> Self:
        """Return the drafter; UsageError: generations without a constraint."""
        if not context.constrained:
            raise UsageError(
                "`drafter` grammar without a constraint: expected one. Give `json_schema`, "
                "`regex` or `grammar`"
            )
        return cls()

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """Return up to `k` tokens, each the only one allowed, without probs; `go_on` is unused."""
        constraint = context.constraint
        output = constraint.output(context.tokens)
        tokens: list[int] = []
        while len(tokens) < k and (token := constraint.only((*output, *tokens))) is not None:
            tokens.append(token)
        return Draft(torch.tensor(tokens, dtype=torch.int64), None)
