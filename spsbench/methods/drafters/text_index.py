"""Lookups in texts: suffix automata, earlier generations, and drafts of the tokens that followed.

Automata after Blumer et al. 1985: states are sets of substrings that end at the same positions;
adding a token takes O(1) amortised, and updating counts a step for each suffix that ends at other
positions, at most `MOST_SUFFIXES` of them: a text of one repeated token has as many as tokens.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import NamedTuple, TypeVar

import torch

from spsbench.loop.types import Draft

ROOT = 0
MOST_SUFFIXES = 64  # the longest suffixes of the text, whose counts a token updates


class SuffixAutomaton:
    """An index of all substrings of the texts added so far; none spans two texts.

    `last` is the state of the whole text so far. Substrings that only texts of the owner `hidden`
    have are not looked at; None: nothing is hidden.
    """

    def __init__(self) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]  # the state of the longest suffix that ends at more places
        self._length = [0]  # tokens of a state's longest substring
        self._count = [0]  # places where it ends
        self._newest = [0]  # the last of them, as a number that grows with every token
        self._after = [0]  # tokens that followed it
        self._best = [-1]  # the likeliest of them: the most frequent, of these the newest
        self._owner: list[int | None] = [None]  # the one text where it ends; None: several
        self._is_suffix = [True]  # whether it is a suffix of another state
        self._added = 0
        self._adding = 0  # the owner of the text that is added
        self.last = ROOT
        self.hidden: int | None = None

    def begin(self, owner: int = 0) -> None:
        self.last, self._adding = ROOT, owner

    def add(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text; each counts for the `MOST_SUFFIXES` longest ends of it."""
        for token in tokens:
            state, counted = self.last, ROOT
            self.last = self._extended(token)
            self._added += 1
            for _ in range(MOST_SUFFIXES):
                reached = self._next[state][token]
                if reached != counted:
                    counted = reached
                    self._count[reached] += 1
                    if self._owner[reached] != self._adding:
                        self._owner[reached] = None
                    self._newest[reached] = self._added
                self._after[state] += 1
                best = self._best[state]
                if best < 0 or self._count[reached] >= self._count[self._next[state][best]]:
                    self._best[state] = token
                state = self._link[state]
                if state < 0:
                    break

    def followers(self, state: int) -> list[tuple[float, int, int]]:
        """Return (share, token, next state) of each token that followed, the likeliest first.

        Of equally frequent ones the last to follow is first. Hidden states do not count. []: none.
        """
        after = [edge for edge in self._next[state].items() if not self._hides(edge[1])]
        total = sum(self._count[reached] for _, reached in after)
        return [
            (self._count[reached] / total, token, reached)
            for token, reached in sorted(
                after, key=lambda edge: (-self._count[edge[1]], -self._newest[edge[1]], edge[0])
            )
        ]

    def likeliest(self, state: int) -> list[tuple[float, int, int]]:
        """Return the first of `followers` alone, or []; its share counts hidden tokens as well."""
        token = self._best[state]
        if token < 0:
            return []
        reached = self._next[state][token]
        if self._hides(reached):
            return self.followers(state)[:1]
        count = self._count[reached]
        return [(count / max(self._after[state], count), token, reached)]

    def only_place(self, state: int) -> int | None:
        """Return where a state ends that occurs once in a single text; None: it occurs twice.

        Such a state is the end of one prefix, and a suffix of no other state.
        """
        return None if self._is_suffix[state] else self._newest[state]

    def suffixes(self, state: int, length: int) -> Iterator[tuple[int, int]]:
        """Yield `state` of a text of `length`, then its shorter suffixes, with their lengths.

        Hidden ones are left out. Those between two occurred at the positions of the longer one.
        """
        while state != ROOT and length > 0:
            if not self._hides(state):
                yield state, length
            state = self._link[state]
            length = self._length[state]

    def earlier(self) -> tuple[int, int]:
        """Return state and length of the text's longest suffix that occurred before."""
        state = self.last if self._count[self.last] > 1 else max(self._link[self.last], ROOT)
        return state, self._length[state]

    def step(self, state: int, length: int, token: int) -> tuple[int, int]:
        """Return state and length of another text's longest known end, given those before `token`.

        They are `ROOT` and 0 where no text has `token`; hidden ones count (`suffixes` skips them).
        """
        while state != ROOT and token not in self._next[state]:
            state = self._link[state]
            length = self._length[state]
        if token not in self._next[state]:
            return ROOT, 0
        return self._next[state][token], length + 1

    def longest_end(self, text: Sequence[int]) -> tuple[int, int]:
        """Return state and length of the longest known end of another text; `ROOT` and 0: none."""
        size, length, state = 32, 32, ROOT
        while length == size:  # the end may be longer than what was looked at
            size, state, length = 2 * size, ROOT, 0
            for token in text[-size:]:
                state, length = self.step(state, length, token)
        return state, length

    def _hides(self, state: int) -> bool:
        return self.hidden is not None and self._owner[state] == self.hidden

    def _extended(self, token: int) -> int:
        """Return the state of the text so far followed by `token`, which is added if it is new."""
        at = self.last
        if token in self._next[at]:  # another text went the same way
            return self._own(at, token)
        state = self._state({}, -1, self._length[at] + 1, 0)
        while at >= 0 and token not in self._next[at]:
            self._next[at][token] = state
            at = self._link[at]
        self._set_link(state, ROOT if at < 0 else self._own(at, token))
        return state

    def _set_link(self, state: int, link: int) -> None:
        self._link[state] = link
        self._is_suffix[link] = True

    def _own(self, at: int, token: int) -> int:
        """Return the state whose longest substring is that of `at` followed by `token`.

        Where `token` leads to a state of longer ones as well, it is split off that state.
        """
        reached = self._next[at][token]
        length = self._length[at] + 1
        if self._length[reached] == length:
            return reached
        split = self._state(dict(self._next[reached]), self._link[reached], length, reached)
        self._set_link(reached, split)
        while at >= 0 and self._next[at].get(token) == reached:
            self._next[at][token] = split
            at = self._link[at]
        return split

    def _state(self, after: dict[int, int], link: int, length: int, like: int) -> int:
        """Add a state that occurred where `like` did (`ROOT`: nowhere), and return its number."""
        self._next.append(after)
        self._link.append(link)
        self._length.append(length)
        self._count.append(self._count[like])
        self._newest.append(self._newest[like])
        self._after.append(self._after[like] if like != ROOT else 0)
        self._best.append(self._best[like] if like != ROOT else -1)
        self._owner.append(self._owner[like] if like != ROOT else self._adding)
        self._is_suffix.append(False)
        return len(self._next) - 1


MOST = 100_000  # tokens that are kept: about 60 MB


class EarlierTexts:
    """An automaton of the outputs that were generated for other prompts than the present one.

    Of the prompt's own outputs nothing is looked up that no other has: a benchmark that repeats a
    prompt would otherwise find its own answer. The oldest outputs are dropped when there are more
    than `most` tokens.
    """

    def __init__(self, most: int = MOST) -> None:
        self.automaton = SuffixAutomaton()
        self._most = most
        self._outputs: list[tuple[int, Sequence[int]]] = []  # with the hashes of their prompts
        self._prompt = self._length = self._size = 0  # hash and length; tokens of all outputs
        self._seen: Sequence[int] = ()  # the text that is being made

    def begin(self, prompt: Sequence[int]) -> None:
        """Index the output of the last text, and hide what only outputs for `prompt` have."""
        if output := list(self._seen[self._length :]):
            self._add(self._prompt, output)
        self._seen, self._prompt, self._length = (), hash(tuple(prompt)), len(prompt)
        self.automaton.hidden = self._prompt

    def watch(self, text: Sequence[int]) -> None:
        """Register prompt and output so far; the list may grow, and is read when it is complete."""
        self._seen = text

    def _add(self, prompt: int, output: Sequence[int]) -> None:
        """Index an output; beyond the limit keep the newest that fit half of it, maybe none."""
        added = [(prompt, output)]
        self._outputs += added
        self._size += len(output)
        if self._size > self._most:
            while self._size > self._most // 2:
                self._size -= len(self._outputs.pop(0)[1])
            self.automaton, added = SuffixAutomaton(), self._outputs
        for owner, tokens in added:
            self.automaton.begin(owner)
            self.automaton.add(tokens)


Place = TypeVar("Place")


class Grown(NamedTuple):
    """The draft that `chain` or `tree` grows: tokens in the order added, parents first."""

    tokens: list[int]
    parents: list[int] | None  # None: each follows the one before
    chances: list[float]  # chance of the path to each token

    @property
    def expected(self) -> float:
        """Return the tokens that would be kept if the chances were right."""
        return sum(self.chances)

    def draft(self) -> Draft:
        parents = None if self.parents is None else torch.tensor(self.parents, dtype=torch.int64)
        return Draft(torch.tensor(self.tokens, dtype=torch.int64), None, parents)


NOTHING = Grown([], None, [])

Followers = Callable[[Place], Iterable[tuple[float, int, Place]]]
"""A place -> chance of each token that may follow, the token, the place after it; likeliest first.

Tokens of one place are distinct.
"""


def chain(root: Place, followers: Followers[Place], depth: int, least: float = 0.0) -> Grown:
    """Return the chain of likeliest tokens, to `depth` or while its chance is at least `least`."""
    tokens: list[int] = []
    chances: list[float] = []
    place, chance = root, 1.0
    for _ in range(depth):
        best = next(iter(followers(place)), None)
        if best is None or chance * best[0] < least:
            break
        chance *= best[0]
        chances.append(chance)
        tokens.append(best[1])
        place = best[2]
    return Grown(tokens, None, chances)


def tree(
    root: Place, followers: Followers[Place], depth: int, nodes: int, least: float = 0.0
) -> Grown:
    """Return the tree that grows by the likeliest candidate of all to `nodes`, or fewer.

    `followers` gives likeliest tokens first. `depth` is that of the deepest node, 1 a child of the
    context; paths less probable than `least` are not added.
    """
    tokens: list[int] = []
    parents: list[int] = []
    chances: list[float] = []
    order = count()
    ahead: list[tuple[float, int, int, int, int, Place]] = []

    def offer(place: Place, parent: int, level: int, chance: float) -> None:
        for share, token, below in followers(place) if level <= depth else ():
            if chance * share < least:
                return  # they come likeliest first
            heapq.heappush(ahead, (-chance * share, next(order), token, parent, level, below))

    offer(root, -1, 1, 1.0)
    while ahead and len(tokens) < nodes:
        minus, _, token, parent, level, below = heapq.heappop(ahead)
        tokens.append(token)
        parents.append(parent)
        chances.append(-minus)
        offer(below, len(tokens) - 1, level + 1, -minus)
    return Grown(tokens, parents, chances)
