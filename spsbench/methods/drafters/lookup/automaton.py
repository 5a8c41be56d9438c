"""A suffix automaton of texts that grow: every substring, how often it came, and what followed it.

Blumer et al. 1985: states are sets of substrings that end at the same places; adding a token takes
O(1) amortised, and the counts as many steps as there are lengths of the end that came before.
"""

from collections.abc import Iterator, Sequence

ROOT = 0


class SuffixAutomaton:
    """All substrings of the texts added so far; a substring never spans two texts.

    Attributes:
        last: the state of the whole text so far.
    """

    def __init__(self) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]  # the state of the longest suffix that ends at more places
        self._length = [0]  # of a state's longest substring
        self._count = [0]  # places where it ends
        self._newest = [0]  # the last of them, as a number that grows with every token
        self._added = 0
        self.last = ROOT

    def begin(self) -> None:
        """Begin another text."""
        self.last = ROOT

    def add(self, tokens: Sequence[int]) -> None:
        """Go on with the text."""
        for token in tokens:
            self.last = self._extended(token)
            self._added += 1
            state = self.last
            while state != ROOT:
                self._count[state] += 1
                self._newest[state] = self._added
                state = self._link[state]

    def followers(self, state: int) -> list[tuple[float, int, int]]:
        """Share of each token that followed, the token, the state after it; likeliest first.

        Of tokens that followed equally often, the one that last did comes first.
        """
        after = self._next[state].items()
        total = sum(self._count[there] for _, there in after)
        ranked = sorted(
            after, key=lambda item: (-self._count[item[1]], -self._newest[item[1]], item[0])
        )
        return [(self._count[there] / total, token, there) for token, there in ranked]

    def suffixes(self, state: int, length: int) -> Iterator[tuple[int, int]]:
        """`state` of a text of `length`, then of its shorter and shorter ends, with their lengths.

        Ends between two of these came at the same places as the longer one.
        """
        while state != ROOT and length > 0:
            yield state, length
            state = self._link[state]
            length = self._length[state]

    def earlier(self) -> tuple[int, int]:
        """The longest end of the text that came before: its state, and its length."""
        state = self.last if self._count[self.last] > 1 else max(self._link[self.last], ROOT)
        return state, self._length[state]

    def step(self, state: int, length: int, token: int) -> tuple[int, int]:
        """From the longest end of another text that is in here to that after one more token."""
        while state != ROOT and token not in self._next[state]:
            state = self._link[state]
            length = self._length[state]
        if token not in self._next[state]:
            return ROOT, 0
        return self._next[state][token], length + 1

    def _extended(self, token: int) -> int:
        """The state of the text so far with `token` behind it."""
        at = self.last
        if token in self._next[at]:  # another text went the same way
            return self._own(at, token)
        made = self._state({}, -1, self._length[at] + 1, 0)
        while at >= 0 and token not in self._next[at]:
            self._next[at][token] = made
            at = self._link[at]
        self._link[made] = ROOT if at < 0 else self._own(at, token)
        return made

    def _own(self, at: int, token: int) -> int:
        """The state whose longest substring is that of `at` with `token`: split off if need be."""
        there = self._next[at][token]
        length = self._length[at] + 1
        if self._length[there] == length:
            return there
        split = self._state(dict(self._next[there]), self._link[there], length, there)
        self._link[there] = split
        while at >= 0 and self._next[at].get(token) == there:
            self._next[at][token] = split
            at = self._link[at]
        return split

    def _state(self, after: dict[int, int], link: int, length: int, like: int) -> int:
        """A new state that came where `like` did (`ROOT`: nowhere)."""
        self._next.append(after)
        self._link.append(link)
        self._length.append(length)
        self._count.append(self._count[like])
        self._newest.append(self._newest[like])
        return len(self._next) - 1
