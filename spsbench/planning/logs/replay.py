"""Drafters along logged texts: sums over requests, from which every figure of the answer follows.

Texts come one by one and are not kept. Memory grows with the number of requests up to `CLUSTERS`;
beyond it requests share the sums from which intervals are computed.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import torch

from spsbench.loop.types import Scores
from spsbench.methods.drafters.ngram import agreement
from spsbench.metrics.intervals import Estimate, Floats, Jackknife, over
from spsbench.planning.logs.prices import Price, Ratios
from spsbench.planning.logs.rounds import Rounds, chain, chances, walk

NO_PREFILL = Scores(torch.empty(0, 0), {})  # no drafter by rule reads it
CLUSTERS = 16_384
CONTEXT_STEP = 256  # tokens of context that are priced alike
DEPTHS = (0, 32, 128, 512, 2048)  # first positions of the ranges by depth in the text
EXTREMES = 5  # requests that gain most, and least
MOST_GROUPS = 64
OTHER_GROUPS = "(others)"
ANY_RULE, RECORDED = "any exact", "as recorded"
NO_MODEL = (ANY_RULE, RECORDED)  # rules of drafts that no model is run for
ASSUMED = Ratios(draft=0.1, row=0.05)  # by which K is chosen where no costs are named


class Proposing(Protocol):
    """A drafter by rule: `methods.drafters.ngram.RuleDrafter`, or a hybrid of two."""

    def proposals(self, tokens: Sequence[int], ks: Sequence[int]) -> list[Sequence[int]]:
        """Return for each K a chain whose first K tokens are the draft."""


class Agreement(NamedTuple):
    """A draft by rule along a text, for one K."""

    agree: list[int]  # [L] first tokens of the proposal that the text has too
    proposed: list[int]  # [L] its tokens, at most K


def looked_up(
    drafter: Proposing,
    prompt: Sequence[int],
    answer: Sequence[int],
    ks: Sequence[int],
    first: int = 0,
) -> list[Agreement]:
    """Return what a drafter says at every position of an answer from the first on, for each K.

    Args:
        drafter: after `begin(prompt)`.
        first: position of the first round.
    """
    most = max(ks)
    along = [Agreement([], []) for _ in ks]
    tokens = [*prompt, *answer[:first]]
    for position in range(first, len(answer)):
        chains = drafter.proposals(tokens, ks)
        last, matching = None, 0
        for (agree, proposed), chain_of_k in zip(along, chains, strict=True):
            if chain_of_k is not last:
                last = chain_of_k
                matching = agreement(chain_of_k[:most], answer, position)
            agree.append(matching)
            proposed.append(len(chain_of_k))
        tokens.append(answer[position])
    return along


class Method(NamedTuple):
    """A row of the answer: a drafter, a rule, and how its figure is to be read."""

    drafter: str
    rule: str
    bound: str = ""  # "at least" or "at most", where the log only bounds the figure


class Extreme(NamedTuple):
    """A request and its tokens a round."""

    tau: float
    request: str
    tokens: int


@dataclass
class Sums:
    """Sums over the requests of one method and one K."""

    k: int
    prices: Sequence[Price]
    rows: list[Floats] = field(default_factory=list)  # [clusters] of [3 + prices] each
    drafts: float = 0.0  # rounds with a draft
    within: float = 0.0  # drafted tokens whose places the texts have
    tested: Floats = field(init=False)  # [K]
    kept: Floats = field(init=False)  # [K]
    by_depth: Floats = field(init=False)  # [depths, 2] rounds and emitted tokens
    by_group: dict[str, Floats] = field(default_factory=dict)  # emitted, rounds
    most: list[Extreme] = field(default_factory=list)  # heap, the least first
    least: list[Extreme] = field(default_factory=list)  # heap of negated tau
    requests: int = 0

    def __post_init__(self) -> None:
        self.tested, self.kept = np.zeros(self.k), np.zeros(self.k)
        self.by_depth = np.zeros((len(DEPTHS), 2))

    def add(
        self, rounds: Rounds, length: int, costs: Sequence[Floats], name: str, group: str | None
    ) -> None:
        """Add the rounds of a request of `length` tokens.

        Args:
            costs: of each price [K + 1], by drafted tokens.
        """
        drafted = float(rounds.weights @ rounds.drafted)
        spent = [float(rounds.weights @ cost[rounds.drafted]) for cost in costs]
        row = np.array([length, rounds.expected, drafted, *spent])
        if len(self.rows) < CLUSTERS:
            self.rows.append(row)
        else:
            self.rows[self.requests % CLUSTERS] += row
        self.requests += 1
        self.drafts += float(rounds.weights @ (rounds.drafted > 0))
        self.within += float(rounds.weights @ rounds.within)
        self.tested += rounds.tested
        self.kept += rounds.kept
        depth = np.searchsorted(DEPTHS, rounds.starts, side="right") - 1
        emitted = np.minimum(rounds.accepted + 1, length - rounds.starts)
        np.add.at(
            self.by_depth,
            depth,
            rounds.weights[:, None] * np.column_stack([np.ones(len(emitted)), emitted]),
        )
        self._of_group(group, row[:2])
        tau = length / rounds.expected
        for heap, sign in ((self.most, 1.0), (self.least, -1.0)):
            entry = Extreme(sign * tau, name, length)
            if len(heap) < EXTREMES:
                heapq.heappush(heap, entry)
            else:
                heapq.heappushpop(heap, entry)

    def _of_group(self, group: str | None, sums: Floats) -> None:
        if group is None:
            return
        if group not in self.by_group and len(self.by_group) >= MOST_GROUPS:
            group = OTHER_GROUPS
        self.by_group[group] = self.by_group.get(group, np.zeros(2)) + sums

    @property
    def emitted(self) -> float:
        """Return the tokens of all texts."""
        return float(sum(row[0] for row in self.rows))

    @property
    def drafted(self) -> float:
        """Return the drafted tokens of a round."""
        return float(sum(row[2] for row in self.rows) / sum(row[1] for row in self.rows))

    @property
    def kept_share(self) -> float | None:
        """Return the share of drafted tokens within the texts that were kept; None without one."""
        return float(self.kept.sum() / self.within) if self.within else None

    @property
    def acceptance_length(self) -> float | None:
        """Return the tokens of a round with a draft, which vLLM reports; None without one."""
        return float(1 + self.kept.sum() / self.drafts) if self.drafts else None

    def tau(self) -> Estimate:
        """Return the tokens a round, with an interval over requests."""
        estimate = self._jackknife().estimate(over(0, 1), 1)
        assert estimate is not None, "a text has a round"  # noqa: S101
        return estimate

    def speedup(self, price: int) -> Estimate:
        """Return plain passes over the costs of the rounds, under one of the prices."""
        estimate = self._jackknife().estimate(over(0, 3 + price), 1)
        assert estimate is not None, "a round costs something"  # noqa: S101
        return estimate

    def _jackknife(self) -> Jackknife:
        rows = np.stack(self.rows)
        return Jackknife(rows, np.arange(len(rows)))


class Replay:
    """Sums of every method and K over the requests so far.

    Args:
        ks: values of K, rising.
        prices: costs of rounds; without any only tau is known.
    """

    def __init__(self, ks: Sequence[int], prices: Sequence[Price] = ()) -> None:
        self.ks, self.prices = tuple(ks), tuple(prices)
        self.sums: dict[Method, list[Sums]] = {}
        self.requests = self.tokens = 0
        self._costs: dict[tuple[str, str, int, int], list[Floats]] = {}

    def count(self, answer: Sequence[int]) -> None:
        """Count a request that is replayed."""
        self.requests += 1
        self.tokens += len(answer)

    def add_rule(
        self,
        method: Method,
        along: Sequence[Agreement],
        context: int,
        name: str,
        group: str | None,
    ) -> None:
        """Add a draft by rule along a text."""
        rounds = [walk(*agreement, k) for agreement, k in zip(along, self.ks, strict=True)]
        self._add(method, rounds, len(along[0].agree), context, name, group)

    def add_sampled(
        self,
        method: Method,
        p: Floats,
        q: Floats | None,
        context: int,
        name: str,
        group: str | None,
    ) -> None:
        """Add a sampled draft along a text: [L] probabilities of its tokens."""
        rule = method.rule
        kept = chances(rule, p, q, max(self.ks))  # type: ignore[arg-type]
        self._add(method, [chain(kept, k) for k in self.ks], len(p), context, name, group)

    def _add(
        self,
        method: Method,
        rounds: Sequence[Rounds],
        length: int,
        context: int,
        name: str,
        group: str | None,
    ) -> None:
        if method not in self.sums:
            self.sums[method] = [Sums(k, self.prices) for k in self.ks]
        middle = context + length // 2
        for k, sums, of_k in zip(self.ks, self.sums[method], rounds, strict=True):
            sums.add(of_k, length, self._priced(method, k, middle), name, group)

    def _priced(self, method: Method, k: int, context: int) -> list[Floats]:
        key = method.drafter, method.rule, k, context // CONTEXT_STEP
        if key not in self._costs:
            middle = (key[-1] + 0.5) * CONTEXT_STEP
            self._costs[key] = [
                price.rounds(method.drafter, method.rule, k, middle) for price in self.prices
            ]
        return self._costs[key]

    def gain(self, method: Method, sums: Sums) -> float:
        """Return the speed-up under the first price; without prices under `ASSUMED` ratios."""
        if self.prices:
            return sums.speedup(0).mean
        drafting = 0.0 if method.rule in NO_MODEL else ASSUMED.draft * sums.k
        return sums.tau().mean / (1 + drafting + ASSUMED.row * sums.drafted)


def groups(sums: Sums) -> Mapping[str, float]:
    """Return the tokens a round of each group."""
    return {group: float(emitted / rounds) for group, (emitted, rounds) in sums.by_group.items()}
