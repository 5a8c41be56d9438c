"""The protocol of a task: samples to continue, and scores for the continuations."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt of a task."""

    id: str
    prompt: str
    reference: str | None = None
    group: str | None = None  # a category, for reports by group
    cut: bool = False  # its document was shortened to fit the context
    after: str | None = None  # the sample that this one is the next turn of, in a conversation
    json_schema: str = ""  # that its text follows, in place of the cell's
    system: str = ""  # message before a conversation, in place of the cell's


Fits = Callable[[Sample], bool]
"""Does this sample's prompt, with the tokens to come, fit the shorter of the two contexts?"""


class Metric(NamedTuple):
    """The description of a metric that reports need."""

    greatest: float = 1.0  # the value of a perfect text
    margin: float | None = None  # the largest difference that does not matter, of 0 .. greatest = 1


class Task(Protocol):
    """A benchmark. Its constructor's parameters are its spec's arguments.

    Subclass it explicitly to inherit the defaults of what the class says of itself.
    """

    data: ClassVar[str | None] = None  # the argument that `data` means
    nucleus: ClassVar[Mapping[str, float]] = MappingProxyType({"top_p": 0.95})
    greedy: ClassVar[Mapping[str, float]] = MappingProxyType({"temperature": 0.0})
    verifier: ClassVar[str | None] = None  # where there is no text to be right about
    constrained: bool = False  # its prompts bring schemas that their texts follow
    programs: ClassVar[bool] = False  # its texts are programs, judged by `sps score`

    quality: ClassVar[Mapping[str, Metric]] = MappingProxyType({})  # its figures, in reports

    name: str
    title: str  # what was used, in words: data, count, revision
    prompt_version: str  # changes whenever a prompt changes
    max_new_tokens: int
    stop: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()  # names that `score` returns, the headline first; may be empty

    @classmethod
    def online(cls, arguments: Mapping[str, Any]) -> bool:
        """Return whether these arguments may need a hub."""
        return False

    def instruct(self) -> "Task | None":
        """The task as an instruct model is asked it, each prompt a message; None: it is not."""
        return None

    @abstractmethod
    def samples(self, fits: Fits) -> Iterator[Sample]:
        """All samples in a fixed order; documents that do not fit are cut, and say so."""

    def score(self, sample: Sample, completion: str) -> dict[str, float]:
        """Return the scores of one completion, by metric name; {}: it is not scored here."""
        return {}

    @staticmethod  # reports combine scores without the data
    def combine(scores: Sequence[Sequence[dict[str, float]]]) -> dict[str, list[float]]:
        """Return headline figure -> one value a sample, from scores by sample and repeat."""
        return {}
