"""Lookahead decoding: Jacobi trajectories in the target's own pass (Fu et al. 2024, 2402.02057).

Each pass scores the drafted n-grams and a window: a guess of the next tokens (level 0) and,
under each of its cells, a column of tokens that the target itself chose after it, one more in each
pass. A complete column is an n-gram by the target's own choices. It goes into a pool under its
first token, and is drafted when that token is the newest of the text. The window's cells are never
offered to the verifier, so the output is exact under one-sample match at any temperature.
"""

from collections.abc import Sequence
from itertools import islice
from typing import ClassVar

import torch

from spsbench.loop.types import Context, Draft, Drafter, Drawn, GoOn, Noise, Scores, Step
from spsbench.spec import K_MAX

MAX_FIRST_TOKENS = 2048  # first tokens that the pool knows
WIDEST = 256  # columns, and n-grams drafted together


class LookaheadDrafter(Drafter):
    """A drafter by n-grams from a Jacobi window.

    The window's cells are a tree: level 0 is a chain after the newest token, and a column hangs on
    each of its cells. A cell's depth is that of the position it guesses.

    Args:
        w: columns of the window.
        n: tokens of an n-gram; the window has n - 1 levels, once it is full.
        g: n-grams kept for each first token, and drafted together.
    """

    drawn = Drawn.POINT
    tree, text_alone = True, False
    ranges: ClassVar = {"w": (1, WIDEST), "n": (2, K_MAX + 1), "g": (1, WIDEST)}

    def __init__(self, w: int = 5, n: int = 4, g: int = 5) -> None:
        self._width, self._gram, self._most = w, n, g
        self._columns: list[list[int]] = []  # [w] columns of 1 to n - 1 levels
        self._pool: dict[int, list[tuple[int, ...]]] = {}  # first token -> rests, the newest first
        self._taken = 0  # tokens of the text that have filled new columns

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        self._columns, self._pool, self._taken = [], {}, 0

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """Learn from the last pass; draft n-grams of the pool, then the window's cells.

        N-grams after the newest token form a trie of depth `k` at most, within `context.nodes`. The
        cells are the draft's `scored_only` last nodes; at K = 0 or without room for all there are
        none.
        """
        x = context.tokens
        if context.last is not None:
            self._advance(context.last, x)
        if not self._columns:
            self._columns = [[self._filling(x)] for _ in range(self._width)]
        fitting = len(x) if context.nodes is None else context.nodes
        tokens, parents = _trie(self._pool.get(x[-1], ()), min(k, self._gram - 1), fitting)
        cells = sum(map(len, self._columns))
        scored = cells if k > 0 and len(tokens) + cells <= fitting else 0
        if scored:
            self._add_window(tokens, parents)
        above = torch.tensor(parents, dtype=torch.int64)
        return Draft(torch.tensor(tokens, dtype=torch.int64), None, above, scored_only=scored)

    def _add_window(self, tokens: list[int], parents: list[int]) -> None:
        """Append the window to both lists: level 0, a chain, then each column under its cell."""
        first = len(tokens)
        for i, column in enumerate(self._columns):
            tokens.append(column[0])
            parents.append(first + i - 1 if i else -1)
        for i, column in enumerate(self._columns):
            for level, token in enumerate(column[1:]):
                parents.append(len(tokens) - 1 if level else first + i)
                tokens.append(token)

    def _advance(self, last: Step, x: Sequence[int]) -> None:
        """Take the target's likeliest token after each column, and move the window with the text.

        Columns that are complete go into the pool; new ones are filled from the text `x`. Nothing
        is done where the last pass did not score this window.
        """
        levels = len(self._columns[0]) if self._columns else 0
        if last.draft.scored_only != levels * self._width or not levels:
            return  # another drafter's pass, or one without room for the window
        first = len(last.draft.tokens) + 1 - last.draft.scored_only  # row after its first cell
        ends = first + torch.arange(self._width)
        if levels > 1:
            ends = first + self._width + torch.arange(1, self._width + 1) * (levels - 1) - 1
        logits = last.scores.logits
        chosen: list[int] = logits[ends.to(logits.device)].argmax(-1).tolist()
        for column, token in zip(self._columns, chosen, strict=True):
            column.append(token)
        moved = len(last.kept) + 1
        if levels == self._gram - 1:
            for column in self._columns:
                self._keep(column)
            # level 1 becomes level 0, whose guesses are for one position later
            self._columns = [column[1:] for column in self._columns]
            moved -= 1
        self._columns = self._columns[moved:]
        levels = min(levels + 1, self._gram - 1)
        while len(self._columns) < self._width:
            self._columns.append([self._filling(x) for _ in range(levels)])

    def _keep(self, gram: Sequence[int]) -> None:
        """Put an n-gram into the pool, newest first; beyond `MAX_FIRST_TOKENS` the oldest goes."""
        first, continuation = gram[0], tuple(gram[1:])
        others = [other for other in self._pool.pop(first, []) if other != continuation]
        self._pool[first] = [continuation, *others[: self._most - 1]]
        if len(self._pool) > MAX_FIRST_TOKENS:
            del self._pool[next(iter(self._pool))]

    def _filling(self, x: Sequence[int]) -> int:
        """Return a token of the text for a cell that nothing is known of, another each time."""
        self._taken += 1
        return x[-1 - self._taken % len(x)]


def _trie(grams: Sequence[tuple[int, ...]], depth: int, most: int) -> tuple[list[int], list[int]]:
    """Return tokens and parents (-1: root) of a trie of `grams` cut to `depth`: first `most`."""
    tokens: list[int] = []
    parents: list[int] = []
    seen: dict[tuple[int, ...], int] = {(): -1}
    for gram in grams:
        for end, token in enumerate(islice(gram, depth), start=1):
            path = gram[:end]
            if path not in seen and len(tokens) < most:
                parents.append(seen[path[:-1]])
                seen[path] = len(tokens)
                tokens.append(token)
            elif path not in seen:
                return tokens, parents
    return tokens, parents
