"""Suffix decoding: drafts what most often followed the text's suffix (arXiv 2411.04975).

A suffix automaton of the text so far, and optionally one of earlier outputs, counts for every
length of the text's suffix which tokens followed it. From each length a draft grows along the
likeliest paths; the draft with the most expected kept tokens is taken.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from operator import attrgetter
from typing import ClassVar

from spsbench.loop.tree import MAX_NODES
from spsbench.loop.types import Context, Draft, GoOn, Noise, Scores
from spsbench.methods.drafters.ngram import RuleDrafter
from spsbench.methods.drafters.text_index import NOTHING, EarlierTexts, SuffixAutomaton, chain, tree

SUFFIXES = 16  # ends of the text that are tried in each automaton, the longest first


class SuffixDrafter(RuleDrafter):
    """A drafter of the tokens that most often followed the suffix of the text.

    Args:
        factor, offset: at most `factor` times the matched length plus `offset` tokens deep.
        least: chance of a path, by its counts, below which it is not drafted.
        min_n: the shortest end that is looked up.
        nodes: nodes of a tree; 0 = a chain.
        shared: look up outputs for other prompts as well.
    """

    ranges: ClassVar = {
        "factor": (0, 1e6),
        "offset": (0, 1 << 20),
        "least": (0, 1),
        "min_n": (1, 1 << 20),
        "nodes": (0, MAX_NODES),
    }

    earlier: EarlierTexts | None
    remembers = EarlierTexts

    def __init__(
        self,
        factor: float = 1.0,
        offset: int = 0,
        least: float = 0.1,
        min_n: int = 1,
        nodes: int = 0,
        shared: bool = False,
    ) -> None:
        self._factor, self._offset, self._least = factor, offset, least
        self._min_n, self._nodes, self.tree = min_n, nodes, nodes > 0
        self.shared = shared
        self._own = SuffixAutomaton()
        self._read = 0  # tokens of the text that are in `_own`
        self._text: Sequence[int] = ()  # whose first tokens these are
        self._met: tuple[int, int] | None = None  # the longest end of the text that is in an
        # earlier one; None: the text is new

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        self._met = None
        if list(prompt[: self._read]) != list(self._text[: self._read]):
            self._own, self._read = SuffixAutomaton(), 0
        if self.earlier is not None:
            self.earlier.begin(prompt)

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """Return the chain, or tree of `nodes`, of most expected kept tokens, up to `k` deep."""
        if not self.tree:
            return super().draft(context, k, noise, go_on)
        self._take_in(context.tokens)
        nodes = context.fit(self._nodes)
        trees = (
            tree(state, automaton.followers, depth, nodes, self._least)
            for automaton, state, depth in self._ends(k)
        )
        return max((NOTHING, *trees), key=attrgetter("expected")).draft()

    def proposals(self, tokens: Sequence[int], ks: Sequence[int]) -> list[Sequence[int]]:
        """Return for each K the chain with the most expected kept tokens, of all ends of the text.

        Another chain may be best for another K, so a draft need not begin the longer one. Chains
        may be longer than their K; () where nothing follows.
        """
        self._take_in(tokens)
        most = max(ks)
        best: list[Sequence[int]] = [()] * len(ks)
        expected = [0.0] * len(ks)
        for automaton, state, depth in self._ends(most):
            if all(total >= min(depth, k) for total, k in zip(expected, ks, strict=True)):
                continue  # no chance is above 1
            grown = chain(state, automaton.likeliest, depth, self._least)
            sums = [0.0, *accumulate(grown.chances)]
            for i, k in enumerate(ks):
                kept = sums[min(k, len(grown.tokens))]
                if kept > expected[i]:
                    best[i], expected[i] = grown.tokens, kept
        return best

    def _take_in(self, x: Sequence[int]) -> None:
        """Add the text's new tokens to its automaton, and follow them in that of earlier texts."""
        new = x[self._read :]
        self._own.add(new)
        self._read, self._text = len(x), x
        if self.earlier is not None:
            self.earlier.watch(x)
            if self._met is None:
                self._met = self.earlier.automaton.longest_end(x)
            else:
                for token in new:
                    self._met = self.earlier.automaton.step(*self._met, token)

    def _ends(self, k: int) -> Iterator[tuple[SuffixAutomaton, int, int]]:
        """Yield (automaton, state, depth to draft) of known ends, longest first, by automaton."""
        places = [(self._own, self._own.earlier())]
        if self.earlier is not None and self._met is not None:
            places.append((self.earlier.automaton, self._met))
        for automaton, (longest, met) in places:
            for state, length in islice(automaton.suffixes(longest, met), SUFFIXES):
                if length >= self._min_n:
                    yield automaton, state, min(k, int(self._factor * length) + self._offset)
