"""The tokens of a text that grows, without cutting all of it anew each time."""

from dataclasses import dataclass, field

from spsbench.models.translation.vocabulary import Tokens, Words

WINDOW = 24  # tokens that are cut again with what is new
LEAD = 4  # of them, those that may be cut otherwise because the window begins there


@dataclass
class Reader:
    """The tokens of `text` as `words` would cut it whole; nothing but a window is looked at twice.

    What a tokenizer does with a place depends on what is near it. So the last tokens are cut anew
    with what came after them, and the new tokens hold from the first border on, some way into the
    window, at which both have one. A text without such a border is cut whole.
    """

    words: Words
    text: str = ""
    ids: list[int] = field(default_factory=list)
    _ends: list[int] | None = field(default_factory=list)
    _content: bytes = b""

    def extend(self, more: str) -> None:
        """Go on with `more` text."""
        if not more:
            return
        self.text += more
        self._content += more.encode()
        if self._ends is None or len(self.ids) <= 2 * WINDOW or not self._windowed(self._ends):
            self.ids, self._ends = self.words(self.text)

    def _windowed(self, ends: list[int]) -> bool:
        """Cut the window anew; False: no border in common."""
        cut = len(ends) - WINDOW
        while cut > 0 and self._splits(ends[cut - 1]):
            cut -= 1
        if cut <= 0:
            return False
        start = ends[cut - 1]
        found: Tokens = self.words(self._content[start:].decode())
        if found.ends is None:
            return False
        kept = _places(ends, cut + LEAD)
        for end, at in _places(found.ends, LEAD).items():
            if (here := kept.get(start + end)) is not None:
                self.ids[here:] = found.ids[at:]
                ends[here:] = [start + each for each in found.ends[at:]]
                return True
        return False

    def _splits(self, at: int) -> bool:
        """Whether byte `at` is inside a character."""
        return at < len(self._content) and self._content[at] & 0xC0 == 0x80


def _places(ends: list[int], first: int) -> dict[int, int]:
    """End -> how many tokens there are up to it, from the token `first` on; of equal ones all."""
    return {end: at for at, end in enumerate(ends[first:], first + 1)}
