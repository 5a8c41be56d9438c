"""Output of a generation on stdout: text as it comes, with the origin of every token."""

import sys
from collections.abc import Iterable
from enum import StrEnum
from typing import Literal

from spsbench.cli.output.terminal import is_terminal, safe_text, wants_colour, write
from spsbench.loop.text import Origin, Piece

Color = Literal["auto", "always", "never"]

RESET = "\x1b[0m"
SGR = {Origin.ACCEPTED: "\x1b[32m", Origin.RECOVERED: "\x1b[35m", Origin.BONUS: "\x1b[36m"}
MARKS = {Origin.RECOVERED: ("[~", "~]"), Origin.BONUS: ("[+", "+]")}
NAMES = {Origin.ACCEPTED: "green", Origin.RECOVERED: "magenta", Origin.BONUS: "cyan"}
MEANINGS = {
    Origin.ACCEPTED: "drafted and accepted",
    Origin.RECOVERED: "recovered after a rejection",
    Origin.BONUS: "bonus after full acceptance",
}


class Paint(StrEnum):
    """Style in which the origin of a token is shown."""

    NONE = "none"  # text alone, for pipes and files
    MARKS = "marks"
    COLOUR = "colour"


def paint(color: Color) -> Paint:
    """Return the style that `--color`, the environment and stdout allow."""
    if color == "always":
        return Paint.COLOUR
    if not is_terminal(sys.stdout):
        return Paint.NONE
    return Paint.COLOUR if color == "auto" and wants_colour() else Paint.MARKS


def painted(piece: Piece, how: Paint) -> str:
    """Return the piece, escaped and with its origin; every colour ends with its piece.

    An interrupted stream therefore leaves the terminal's colour as it was.
    """
    text = safe_text(piece.text)
    if how is Paint.COLOUR and piece.origin in SGR:
        return f"{SGR[piece.origin]}{text}{RESET}"
    if how is Paint.MARKS and piece.origin in MARKS:
        before, after = MARKS[piece.origin]
        return f"{before}{text}{after}"
    return text


class Screen:
    """Unbuffered writer of pieces to stdout; `end` leaves the cursor at a line start."""

    def __init__(self, how: Paint) -> None:
        self._how = how
        self._mid_line = False

    def legend(self) -> str | None:
        """Return a line that explains colours or marks; None if there are none."""
        if self._how is Paint.NONE:
            return None
        if self._how is Paint.COLOUR:
            explanations = [f"{NAMES[origin]} {meaning}" for origin, meaning in MEANINGS.items()]
        else:
            explanations = [
                painted(Piece(MEANINGS[origin], origin), self._how) for origin in MEANINGS
            ]
        return ", ".join([*explanations, "the rest sampled by the target alone"])

    def show(self, pieces: Iterable[Piece]) -> None:
        """Write `pieces` and flush."""
        pieces = [piece for piece in pieces if piece.text]
        if pieces:
            # Before the text: an interrupt may come right after it.
            self._mid_line = self._how is Paint.MARKS or not pieces[-1].text.endswith("\n")
            write("".join(painted(piece, self._how) for piece in pieces))

    def end(self) -> None:
        """End the last line, unless it has ended."""
        if self._mid_line:
            self._mid_line = False
            write("\n")
