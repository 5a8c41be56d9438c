"""Aggressive decoding: the input is expected to reappear in the output (arXiv 2205.10350).

A pointer moves along a source, the prompt or a marked part of it, and the tokens at the pointer are
drafted. Where the output leaves the source, the pointer is reset: to the one place of the source
that follows the last j tokens of the text, with the smallest j that makes the place unique.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, ClassVar, Self

from spsbench.loop.drafter_context import DrafterContext
from spsbench.loop.types import Scores
from spsbench.methods.drafters.ngram import RuleDrafter
from spsbench.methods.drafters.text_index import ROOT, SuffixAutomaton


class CopyDrafter(RuleDrafter):
    """A drafter that copies the source from the position that the output has reached.

    Args:
        after, before: texts in the prompt that the source stands between; the last `after`, and the
            first `before` behind it. Without them the whole prompt is the source.
        least: tokens that must agree before the pointer is set anew.
    """

    ranges: ClassVar = {"least": (1, 1 << 20)}

    @classmethod
    def open(cls, context: DrafterContext, **arguments: Any) -> Self:
        drafter = cls(**arguments)
        drafter.tokenizer = context.tokenizer
        if (drafter._after or drafter._before) and context.tokenizer is None:
            raise ValueError("a source between markers: expected a tokenizer to find them with")
        return drafter

    def __init__(self, after: str = "", before: str = "", least: int = 1) -> None:
        self._after, self._before, self._least = after, before, least
        self.tokenizer: Any = None  # finds the markers
        self._source: list[int] = []
        self._index = SuffixAutomaton()  # index of the source without its last token
        self._met = ROOT, 0  # the longest end of the text that the index has
        self._at: int | None = None  # index of the source that is expected next; None = nowhere
        self._read = 0  # tokens of the text that the pointer has followed

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        """Find the source; if marked, copying starts at its first token, else at the first match.

        A missing marker marks nothing: the source begins, or ends, as the prompt does.
        """
        first, last = self._marked(prompt)
        before, self._source = self._source, list(prompt[first:last])
        if self._source[: len(before)] != before:
            self._index, before = SuffixAutomaton(), []
        self._index.add(self._source[max(len(before) - 1, 0) : -1])
        # nothing is longer there than the source without its last token, which the prompt has
        self._met = self._index.last, max(len(self._source) - 1, 0)
        for token in prompt[max(last - 1, 0) :]:
            self._met = self._index.step(*self._met, token)
        marked = (first, last) != (0, len(prompt))
        self._at = 0 if marked else None
        self._read = len(prompt)

    def proposals(self, tokens: Sequence[int], ks: Sequence[int]) -> list[Sequence[int]]:
        """Move the pointer along new tokens; return for each K the same tokens of the source.

        As many as the largest K come from the pointer on, fewer at the source's end, [] where it is
        lost. Where it is lost or at the end, it is first set to the one place that follows the
        longest end of the text that the source has, if that occurs once and `least` tokens agree.
        """
        for token in tokens[self._read :]:
            self._met = self._index.step(*self._met, token)
            follows = self._at is not None and self._source[self._at : self._at + 1] == [token]
            self._at = self._at + 1 if follows and self._at is not None else None
        self._read = len(tokens)
        if self._at is None or self._at == len(self._source):
            state, agreeing = self._met  # a suffix that occurs once is the longest, or part of it
            enough = agreeing >= min(self._least, len(tokens))
            self._at = self._index.only_place(state) if enough else None
        at = len(self._source) if self._at is None else self._at
        return [self._source[at : at + max(ks)]] * len(ks)

    def _marked(self, prompt: Sequence[int]) -> tuple[int, int]:
        """Return the range [first, last) of `prompt` tokens that are wholly between the markers.

        These are the last `after` and the first `before` behind it; the prompt's ends without.
        """
        if not (self._after or self._before):
            return 0, len(prompt)

        def decode(tokens: Sequence[int]) -> str:
            text: str = self.tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False)
            return text

        text = decode(prompt)
        start, end = 0, len(text)
        if self._after and (place := text.rfind(self._after)) >= 0:
            start = place + len(self._after)
        if self._before and (place := text.find(self._before, start)) >= 0:
            end = place
        ends = range(len(prompt) + 1)
        first = bisect_left(ends, start, key=lambda n: len(decode(prompt[:n])))
        last = bisect_right(ends, end, key=lambda n: len(decode(prompt[:n]))) - 1
        return first, max(first, last)
