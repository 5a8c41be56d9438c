"""A conversation on a terminal; the models are loaded once."""

import contextlib
import re

from spsbench.api.pair import Pair
from spsbench.api.text import arm
from spsbench.cli.generate.screen import Screen
from spsbench.cli.generate.stats import summary
from spsbench.cli.notes import say
from spsbench.errors import DataError

ASK = "you> "
HELP = "a conversation: /reset forgets it, /exit or Ctrl-D ends it, Ctrl-C stops an answer"
COMMANDS = ("/help", "/reset", "/exit")
COMMAND = re.compile(r"/\w*(\s|$)")
"""What is meant as one; a path, with its second slash, is a message."""


def converse(
    pair: Pair, screen: Screen, *, system: str | None, truncate: bool, stats: bool
) -> None:
    """Ask and answer until the person has enough."""
    with contextlib.suppress(ImportError):  # line editing where the platform has it
        import readline  # noqa: F401

    say(HELP)
    pair.configured(chat=True)  # says with which sampling
    messages: list[dict[str, str]] = []
    turn = 0
    while (line := asked()) is not None and line != "/exit":
        if line == "/reset":
            messages = []
        elif line == "/help":
            say(f"{HELP}. A message that begins with / is typed with //")
        elif COMMAND.match(line):
            say(f"no command {line}: expected {', '.join(COMMANDS)}. To say it, begin with //")
        elif line:
            question = {"role": "user", "content": line[1:] if line.startswith("//") else line}
            said = answer(pair, screen, [*messages, question], system, truncate, stats, turn)
            if said is not None:
                messages += [question, {"role": "assistant", "content": said}]
            turn += 1


def asked() -> str | None:
    """What the person typed; None at Ctrl-D."""
    try:
        return input(ASK).strip()
    except EOFError:
        print()
        return None


def answer(
    pair: Pair,
    screen: Screen,
    messages: list[dict[str, str]],
    system: str | None,
    truncate: bool,
    stats: bool,
    turn: int,
) -> str | None:
    """The answer as far as it came; None when there could be none, which is said."""
    generation = None
    try:
        # Its own noise for every turn: the same numbers again would tie the answers to each other.
        generation = pair.generation(
            messages, system=system, truncate=truncate, sample=f"turn {turn}"
        )
        for update in generation:
            screen.show(update.pieces)
        screen.end()
    except DataError as error:
        say(f"error: {error}. Or forget the conversation with /reset")
        return None
    except KeyboardInterrupt:
        screen.end()
        say("stopped")
        return generation.record.text if generation else None
    if stats:
        say(summary(arm(generation)))
    return generation.record.text
