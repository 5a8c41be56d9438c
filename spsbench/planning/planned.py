"""What became of a plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spsbench.planning.drawn import command, report
from spsbench.planning.forecast.answer import Answer, Measured
from spsbench.planning.forecast.outlook import Outlook
from spsbench.reports.reporter import Report
from spsbench.settings.cell import Cell


@dataclass(frozen=True, kw_only=True, eq=False)
class Planned:
    """Predictions, measurements, and the answer.

    Args:
        folder: where it is kept; None: it is of files alone.
        cells: of each candidate, by its name.
        measured: what real rounds showed, by candidate.
        about: in words, what it is of.
        every: show every candidate, not the best K of each method alone.
        missing: why real rounds of a candidate showed nothing, by candidate.
        unmeasured: why there were no real rounds.
    """

    folder: Path | None
    outlook: Outlook
    cells: Mapping[str, Cell]
    measured: Mapping[str, Measured]
    about: str
    every: bool = False
    missing: Mapping[str, str] = field(default_factory=dict)
    unmeasured: str = ""

    @property
    def answer(self) -> Answer:
        """Whether to speculate, with what, and why."""
        return self.outlook.answer(self.measured)

    @property
    def command(self) -> str:
        """The command line that uses it."""
        answer = self.answer
        return command(self.cells[answer.best], answer)

    @property
    def report(self) -> Report:
        """For a reporter."""
        return report(
            self.outlook,
            self.cells,
            self.measured,
            name="plan" if self.folder is None else self.folder.name,
            about=self.about,
            every=self.every,
            missing=self.missing,
            unmeasured=self.unmeasured,
        )
