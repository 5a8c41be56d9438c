"""What a report is, and what every one of them must say beside its figures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spsbench.figures.intervals import FEWEST
from spsbench.figures.summary import Summary


@dataclass(frozen=True, slots=True)
class Title:
    """The heading of a report."""

    run: str
    task: str = ""  # what was used, in words: data, count, revision
    notes: tuple[str, ...] = ()  # for instance whose figures stand beside the measured ones


Reporter = Callable[[Sequence[Summary], Title], bytes]
"""Summaries and their heading -> the bytes of a file."""


def remarks(rows: Sequence[Summary], title: Title) -> list[str]:
    """The lines below a table: what it stands on, what is missing from it, and its own notes."""
    good, failed = sum(s.n for s in rows), sum(s.failures for s in rows)
    cut, samples = max((s.cut for s in rows), default=0), max((s.samples for s in rows), default=0)
    flagged = good - sum(s.timed for s in rows)
    lines = [
        f"{good} generations of up to {samples} samples; intervals: 95 %, over samples, "
        f"none over fewer than {FEWEST}."
    ]
    lengths = [s.text_tokens.mean for s in rows if s.text_tokens is not None]
    if lengths:
        lines.append(f"Texts have {_between(min(lengths), max(lengths))} tokens on average.")
    if failed:
        lines.append(f"{failed} generations failed and are in no figure.")
    if flagged:
        lines.append(f"{flagged} timings were flagged (first, loaded) and are in no time.")
    if cut:
        lines.append(f"{cut} prompts were cut to fit the context.")
    return lines + list(title.notes)


def _between(low: float, high: float) -> str:
    first, last = f"{low:.0f}", f"{high:.0f}"
    return first if first == last else f"{first} to {last}"
