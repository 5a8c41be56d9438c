"""What a task is: samples to continue, and scores for the continuations."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

Fits = Callable[[str], bool]
"""Does this prompt, with the tokens to come, fit the shorter of the two contexts?"""


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt of a task."""

    id: str
    prompt: str
    reference: str | None = None
    group: str | None = None  # a category, for reports by group
    cut: bool = False  # its document was shortened to fit the context


class Task(Protocol):
    """A benchmark. Its constructor's parameters are its spec's arguments."""

    name: str
    title: str  # what was used, in words: data, count, revision
    prompt_version: str  # changes whenever a prompt changes
    max_new_tokens: int
    stop: tuple[str, ...]
    metrics: tuple[str, ...]  # the names that `score` returns, the headline first; may be empty

    def samples(self, fits: Fits) -> Iterator[Sample]:
        """All samples in a fixed order; documents that do not fit are cut, and say so."""

    def score(self, sample: Sample, completion: str) -> dict[str, float]:
        """Scores of one completion, by metric name."""

    @staticmethod  # reports combine scores without the data
    def combine(scores: Sequence[Sequence[dict[str, float]]]) -> dict[str, list[float]]:
        """Scores by sample and repeat -> for each headline figure one value a sample."""
