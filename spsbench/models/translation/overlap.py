"""What two vocabularies have in common: pairs of tokens that write the same, and how many."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from spsbench.models.translation.vocabulary import Vocabulary

SAMPLE = (
    "The committee will publish its second report on Thursday, three months later than planned. "
    "It found that 1,250 of the 3,400 homes had been repaired, at a cost of about $2.7 million; "
    '"nobody expected it to take this long," said one of the engineers who worked on the bridge.\n'
    "\n"
    "def mean(values, default=None):\n"
    '    """Return the average of a list of numbers."""\n'
    "    if not values:\n"
    "        return default\n"
    "    return sum(float(value) for value in values) / len(values)\n"
)


@dataclass(frozen=True)
class Overlap:
    """Tokens of the draft model that are tokens of the target."""

    pairs: Mapping[int, int]  # the target's id -> the draft's; each id once, in order
    target: int  # tokens of each
    draft: int
    text: float  # share of a sample text's tokens, as the target cuts it, that the draft has too

    def __str__(self) -> str:
        return (
            f"{len(self.pairs):,} of its {self.draft:,} tokens are among the target's "
            f"{self.target:,}, which are {self.text:.0%} of a sample text"
        )


@dataclass(frozen=True)
class Vocabularies:
    """Those of a target and of a draft model, where they are two."""

    target: Vocabulary
    draft: Vocabulary

    @cached_property
    def overlap(self) -> Overlap:
        """By what tokens write; special tokens by their names, and the two that end a text."""
        ours, theirs = self.target, self.draft
        by_bytes = theirs.by_bytes
        pairs = {i: by_bytes[b] for b, i in ours.by_bytes.items() if b in by_bytes}
        names = ours.names.keys() & theirs.names.keys()
        pairs |= {ours.names[name]: theirs.names[name] for name in names}
        if ours.eos is not None and theirs.eos is not None:
            pairs = {i: other for i, other in pairs.items() if other != theirs.eos}
            pairs[ours.eos] = theirs.eos
        ids = ours.words(SAMPLE).ids
        return Overlap(
            pairs=dict(sorted(pairs.items())),
            target=ours.size,
            draft=theirs.size,
            text=sum(each in pairs for each in ids) / max(len(ids), 1),
        )
