"""What a generation gives: its text, with where every piece of it came from."""

from dataclasses import dataclass
from html import escape

from spsbench.benchmark.arms import Arm, arm
from spsbench.loop.text import Origin, Piece
from spsbench.metrics.rates import Metrics
from spsbench.settings.cell import Cell
from spsbench.settings.records import Record, RoundRecord

__all__ = ["Arm", "Piece", "Text", "arm"]

SHOWN = 60  # characters in a repr
STYLES = {
    Origin.ACCEPTED: "color:#1a7f37",
    Origin.RECOVERED: "color:#b35900",
    Origin.BONUS: "color:#0969da",
    Origin.PLAIN: "",
}


@dataclass(frozen=True, slots=True, repr=False)
class Text:
    """A finished generation; `str` of it is the text alone."""

    arm: Arm
    pieces: tuple[Piece, ...]

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        shown = self.text if len(self.text) <= SHOWN else self.text[:SHOWN] + "..."
        return f"<Text {shown!r}: {len(self.tokens)} tokens, {self.finish}>"

    @property
    def text(self) -> str:
        """The text, without the prompt."""
        return self.arm.record.text

    @property
    def tokens(self) -> list[int]:
        """Its tokens."""
        return self.arm.record.tokens

    @property
    def finish(self) -> str:
        """Why it ended: eos, stop, length or context."""
        return self.arm.record.finish

    @property
    def rounds(self) -> list[RoundRecord]:
        """What was measured of each round."""
        return self.arm.record.rounds

    @property
    def record(self) -> Record:
        """All that was measured."""
        return self.arm.record

    @property
    def metrics(self) -> Metrics:
        """Its figures, by the glossary."""
        return self.arm.figures

    @property
    def cell(self) -> Cell:
        """The configuration that made it."""
        return self.arm.cell

    def _repr_html_(self) -> str:
        """For a notebook: the pieces in the colours of their origins, and the figures."""
        parts = [
            f'<span style="{STYLES[origin]}" title="{origin}">{escape(text)}</span>'
            for text, origin in self.pieces
        ]
        figures = self.metrics
        shown = [f"{figures.tokens} tokens"]
        for name, value in (("α", figures.alpha), ("τ", figures.block_efficiency)):
            shown += [] if value is None else [f"{name} {value:.2f}"]
        if figures.mean_token_time_ms is not None:
            shown.append(f"{figures.mean_token_time_ms:.2f} ms a token")
        return (
            f'<div style="white-space:pre-wrap;font-family:monospace">{"".join(parts)}</div>'
            f"<small>{', '.join(shown)}</small>"
        )
