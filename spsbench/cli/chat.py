"""A conversation on a terminal; the models are loaded once."""

import contextlib

from spsbench.cli.arms import arm
from spsbench.cli.notes import say
from spsbench.cli.screen import Screen
from spsbench.cli.session import Message, Session
from spsbench.cli.stats import summary
from spsbench.errors import DataError
from spsbench.generation import Generation

ASK = "you> "
HELP = "a conversation: /reset forgets it, /exit or Ctrl-D ends it, Ctrl-C stops an answer"


def converse(
    session: Session, screen: Screen, *, system: str | None, truncate: bool, stats: bool
) -> None:
    """Ask and answer until the person has enough."""
    with contextlib.suppress(ImportError):  # line editing where the platform has it
        import readline  # noqa: F401

    say(HELP)
    start = [Message(role="system", content=system)] if system else []
    messages, turn = list(start), 0
    while (line := asked()) is not None and line != "/exit":
        if line == "/reset":
            messages = list(start)
        elif line:
            question = Message(role="user", content=line)
            said = answer(session, screen, [*messages, question], truncate, stats, turn)
            if said is not None:
                messages += [question, Message(role="assistant", content=said)]
            turn += 1


def asked() -> str | None:
    """What the person typed; None at Ctrl-D."""
    try:
        return input(ASK).strip()
    except EOFError:
        print()
        return None


def answer(
    session: Session,
    screen: Screen,
    messages: list[Message],
    truncate: bool,
    stats: bool,
    turn: int,
) -> str | None:
    """The answer as far as it came; None when there could be none, which is said."""
    generation = None
    try:
        prompt = session.fitted(session.conversation(messages), truncate)
        # Its own noise for every turn: the same numbers again would tie the answers to each other.
        generation = Generation(session.cell, session.loaded, prompt, sample=f"turn {turn}")
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
        say(summary(arm(session.cell, generation)))
    return generation.record.text
