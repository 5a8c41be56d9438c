"""A measurement of another benchmark in this project's terms, and what cannot be compared."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from spsbench.foreign import FieldError, cut, optional, real
from spsbench.serving.acceptance import Acceptance

LAW = "losslessness: the file has no distribution of the texts. `sps check URL` measures it"
BASELINE = (
    "the speed-up: the file has no baseline. `sps check URL --baseline URL2` measures it, paired"
)
PAIRS = (
    "the ratio of two rows as the speed-up: their times hold the prefill and are not paired, and "
    "have no intervals. `sps check URL --baseline URL2` measures it"
)
ALPHA = (
    "alpha: it needs the two distributions at each tested token, which servers do not give; a rate "
    "of accepted over drafted tokens is lower, for it counts tokens that were never tested"
)
TIMES = (
    "times beside those of `sps bench`: these are a client's, with network and queue, at the load "
    "of the file; ours are of one sequence in the process"
)


class Figure(NamedTuple):
    """A figure in this project's terms, and the field that it comes from."""

    name: str
    value: float
    unit: str
    field: str


@dataclass(frozen=True, slots=True)
class Results:
    """One measurement of a file."""

    tool: str
    title: str
    figures: tuple[Figure, ...]
    apart: tuple[str, ...]  # what cannot be compared with a run of this project, and why

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "tool": self.tool,
            "title": self.title,
            "figures": [figure._asdict() for figure in self.figures],
            "not_comparable": list(self.apart),
        }


def number_of(values: Mapping[str, Any], field: str) -> float | None:
    """Return a number; None where it is missing, or none that a figure can be made of."""
    with suppress(FieldError):
        return optional(real, values, field)
    return None


def figures_of(
    values: Mapping[str, Any], rows: Sequence[tuple[str, str, str, float]]
) -> Iterator[Figure]:
    """Yield the figures of (name, unit, field, factor) whose fields there are."""
    for name, unit, field, factor in rows:
        if (value := number_of(values, field)) is not None:
            yield Figure(name, value * factor, unit, field)


def of_acceptance(accepted: Acceptance, field: str) -> Iterator[Figure]:
    """Yield the figures of counts of acceptance that are known."""
    for name, value, _ in accepted.rows():
        if value is not None:
            yield Figure(name, value, "", field)


def joined(parts: Sequence[Any]) -> str:
    """Join what a file says of itself, each part cut."""
    return ", ".join(cut(part, 200) for part in parts)
