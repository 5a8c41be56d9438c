"""Language models as tables: the distribution after any prefix is a fixed function of the prefix.

A pair of tables covers cases that are rare for random models: exact ties, tokens of probability
zero on either side, prefixes with equal distributions or disjoint supports. With a deterministic
draft model a long draft has few values, and each test is still of a random token.
"""

import copy
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from spsbench.errors import UsageError
from spsbench.loop.drafter_context import Made, Weights, alone
from spsbench.loop.guards import plan_of
from spsbench.loop.types import LM, Drafter, Scores
from spsbench.plugins import make
from spsbench.spec import Spec

Distribution = Callable[[tuple[int, ...]], tuple[float, ...]]  # prefix -> probs of the next token

KINDS = ("plain", "plain", "plain", "ties", "zeros", "equal", "disjoint")


@dataclass(frozen=True)
class ToyPair:
    """A target `q` and a draft model `p` over `vocab` tokens."""

    vocab: int = 3
    seed: int = 0
    kinds: tuple[str, ...] = KINDS

    def q(self, prefix: Sequence[int]) -> tuple[float, ...]:
        """Return the target's distribution."""
        return rows_after(self, tuple(prefix))[0]

    def p(self, prefix: Sequence[int]) -> tuple[float, ...]:
        """Return the draft model's distribution."""
        return rows_after(self, tuple(prefix))[1]

    def kind(self, prefix: Sequence[int]) -> str:
        """Return the kind of the distributions after `prefix`."""
        return self.rng(prefix, "kind").choice(self.kinds)

    def rng(self, prefix: Sequence[int], what: str) -> random.Random:
        return random.Random(f"{self.seed}/{what}/{tuple(prefix)}")


@cache
def rows_after(
    pair: ToyPair, prefix: tuple[int, ...]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return (q, p) of a pair after `prefix`, seeded by it, with ties, zeros, ... by its kind."""
    kind, rng = pair.kind(prefix), pair.rng(prefix, "law")
    q = [rng.uniform(0.1, 1.0) for _ in range(pair.vocab)]
    p = [rng.uniform(0.1, 1.0) for _ in range(pair.vocab)]
    a, b = rng.sample(range(pair.vocab), 2)
    if kind == "ties":
        q[a] = q[b] = max(q)
        p[a] = p[b] = max(p)
    elif kind == "zeros":
        q[a] = p[b] = 0.0
    elif kind == "equal":
        p = q
    elif kind == "disjoint":
        q = [w if token == a else 0.0 for token, w in enumerate(q)]
        p = [w if token != a else 0.0 for token, w in enumerate(p)]
    elif kind == "sure":
        p = [float(token == a) for token in range(pair.vocab)]
    return normalise_weights(q), normalise_weights(p)


def normalise_weights(weights: Sequence[float]) -> tuple[float, ...]:
    """Rescale weights to a sum of 1."""
    total = sum(weights)
    return tuple(w / total for w in weights)


class InconsistentFeedError(RuntimeError):
    """Error of a loop that feeds tokens that do not continue the cache, or the text."""


class TableLM:
    """An `LM` whose logits are the logarithms of a table's rows, with a list as its cache.

    If `text` (prompt and output so far, kept by the test) is given, fed tokens must agree with it,
    and the target must have all of it but the newest token in its cache. A `careless` session
    commits any nodes like a chain, as an engine that trusts the verifier does.
    """

    def __init__(
        self,
        next_probs: Distribution,
        vocab: int,
        *,
        limit: int | None = None,
        text: list[int] | None = None,
        target: bool = False,
        careless: bool = False,
    ) -> None:
        self.vocab_size, self.limit = vocab, limit
        self._probs, self._text, self._target, self._careless = next_probs, text, target, careless
        self._cache: list[int] = []
        self._tree: list[tuple[int, ...]] | None = None  # path to each uncommitted node
        self._logits: dict[tuple[int, ...], Tensor] = {}

    def __deepcopy__(self, memo: object) -> "TableLM":
        """Copy the session: the same table, and a cache of the same tokens."""
        other = copy.copy(self)
        other._cache = list(self._cache)
        other._tree = None if self._tree is None else list(self._tree)
        return other

    @property
    def length(self) -> int:
        """Return the number of tokens in the cache."""
        return len(self._cache) + len(self._tree or ())

    def append(self, tokens: Tensor, keep: int, parents: Tensor | None = None) -> Scores:
        """Feed tokens, the last as tree nodes under `parents`; return the last `keep` logits.

        `parents` are of all nodes since the last commit. InconsistentFeedError: they cannot follow.
        """
        fed = tokens.tolist()
        tree_size = 0 if parents is None else len(parents)
        nodes = min(tree_size, len(fed))
        if self._tree is not None and len(self._tree) + nodes != tree_size:
            raise InconsistentFeedError("fed on top of tree nodes that were not committed")
        if self.limit is not None and self.length + len(tokens) > self.limit:
            raise InconsistentFeedError(f"fed beyond the context of {self.limit}")
        chain = fed[: len(fed) - nodes]
        self._check(chain)
        prefixes = [tuple(self._cache + chain[: i + 1]) for i in range(len(chain))]
        self._cache += chain
        if parents is not None:
            root, tree = tuple(self._cache), self._tree or []
            for token, parent in zip(fed[len(chain) :], parents.tolist()[len(tree) :], strict=True):
                tree.append((*(() if parent < 0 else tree[parent]), token))
            prefixes += [root + path for path in tree[len(tree) - nodes :]]
            self._tree = tree
        rows = [self._row(prefix) for prefix in prefixes[len(prefixes) - keep :]]
        return Scores(torch.stack(rows) if rows else torch.empty(0, self.vocab_size), {})

    def commit(self, length: int, path: Sequence[int] | None = None) -> None:
        """Keep `length` tokens and, after them, the tree's nodes on `path`; drop the others.

        InconsistentFeedError: fewer are cached, or no path; a `careless` session takes any nodes.
        """
        if not 0 <= length <= len(self._cache):
            raise InconsistentFeedError(f"commit of {length}: {len(self._cache)} are cached")
        kept: tuple[int, ...] = ()
        if path and self._careless and self._tree is not None:
            kept = tuple(self._tree[node][-1] for node in path)
        elif path:
            if self._tree is None or length != len(self._cache):
                raise InconsistentFeedError("a path without a tree just before it")
            kept = self._tree[path[-1]]
            if [self._tree[node] for node in path] != [kept[: i + 1] for i in range(len(kept))]:
                raise InconsistentFeedError(f"{path} is not a path from the root")
        self._cache = self._cache[:length] + list(kept)
        self._tree = None

    def _row(self, prefix: tuple[int, ...]) -> Tensor:
        if prefix not in self._logits:
            row = [math.log(x) if x > 0 else -math.inf for x in self._probs(prefix)]
            self._logits[prefix] = torch.tensor(row, dtype=torch.float64)
        return self._logits[prefix]

    def _check(self, chain: list[int]) -> None:
        """Raise InconsistentFeedError if cache + `chain` leave the text, or a target lacks some."""
        if self._text is None:
            return
        have = self._cache + chain
        shared = min(len(have), len(self._text))
        if have[:shared] != self._text[:shared]:
            raise InconsistentFeedError(f"{have} was fed: the text is {self._text}")
        if self._target and chain and not self._cache and have == self._text[:-1]:
            return  # prefill
        if self._target and chain and len(self._cache) != len(self._text) - 1:
            raise InconsistentFeedError(f"{len(self._cache)} cached of {len(self._text)} tokens")


class TableContext:
    """`DrafterContext` over the table of a draft model; only sessions are available."""

    tokenizer: Any = None
    vocabularies: Any = None
    together = staticmethod(alone)

    def __init__(self, lm: LM) -> None:
        self._lm, self.vocab_size = lm, lm.vocab_size
        self.constrained = getattr(lm, "constrained", False)

    def session(self) -> LM:
        return self._lm

    def memory(self, make: Callable[[], Made]) -> Made:
        return make()  # each walk starts without state


def open_over(lm: LM, drafter: Spec) -> Drafter:
    """Return a drafter of the registry over a draft model's table; UsageError: it needs more."""
    plan = plan_of(drafter)
    if plan.target or plan.weights not in (Weights.NONE, Weights.MODEL):
        raise UsageError("needs more than a session with a draft model, and a table has no more")
    opened: Drafter = make("drafters", drafter, TableContext(lm))
    return opened
