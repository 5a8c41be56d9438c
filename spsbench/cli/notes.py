"""What `sps` says beside its result: dim lines on stderr."""

import os
import sys

from spsbench.cli.safe import is_terminal, one_line

DIM, RESET = "\x1b[2m", "\x1b[0m"


def say(line: str) -> None:
    """One line on stderr."""
    text = one_line(line)
    if wants_colour() and is_terminal(sys.stderr):
        text = f"{DIM}{text}{RESET}"
    print(text, file=sys.stderr, flush=True)


def note(line: str) -> None:
    """One line on stderr about something that the user did not ask for but should know."""
    say(f"note: {line}")


def wants_colour() -> bool:
    """Whether the environment allows colour (NO_COLOR, TERM=dumb)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
