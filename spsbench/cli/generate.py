"""`sps generate`: continue a prompt, with the origin of every token."""

import sys
from typing import Any, BinaryIO

from spsbench.cli import options as o
from spsbench.cli.output.screen import Paint, Screen, paint
from spsbench.cli.output.terminal import is_terminal, say
from spsbench.errors import DataError, UsageError
from spsbench.foreign import read_text
from spsbench.hardware.signals import at_once
from spsbench.settings.cell_from_options import OF_CELL
from spsbench.settings.execution import OF_ACCESS, access_of
from spsbench.settings.grid import Grid

LIMIT = 10_000_000  # bytes; far more than any context holds
WAYS = "PROMPT, --prompt-file FILE or text on stdin"
LAWS = "native:laws=true,likeliest=3"  # a page shows probabilities and alternatives


@o.takes(OF_CELL.values(), OF_ACCESS.values())
def generate(
    prompt: o.PromptText = None,
    prompt_file: o.PromptFile = None,
    chat: o.Chat = False,
    system: o.System = None,
    truncate: o.Truncate = None,
    compare: o.Compare = False,
    stats: o.Stats = True,
    color: o.ColorMode = "auto",
    format: o.TextFormat = "text",
    json: o.Json = False,
    out: o.PageFile = None,
    debug: o.Debug = False,
    **options: Any,
) -> None:
    """Continue PROMPT by speculative sampling, with the target's own distribution.

    The text goes to stdout, everything else to stderr.
    """
    form = o.page_format(format, json, out)
    page, json = form == "html", form == "json"
    if options.get("k") == 0 and compare:
        raise UsageError("--compare with --k 0: expected K of 1 or more. Both would be ArS")
    if system is not None and not chat:
        raise UsageError("--system without --chat: expected both or none")
    if page and options.get("decoder") is None:
        options["decoder"] = LAWS
    access, of_cell = access_of(options)
    grid = Grid.of(of_cell)
    cell = grid.one()
    with at_once():
        from spsbench.models.prepare import read_once
        from spsbench.pair.load import open_pair

    text = read_once(cell, access, lambda: read_prompt(prompt, prompt_file))
    if text is None and not chat:
        raise UsageError(f"no prompt: expected {WAYS}, or a conversation with --chat")
    if text is None and (compare or json or page):
        flag = "--compare" if compare else f"--format {'json' if json else format}"
        raise UsageError(f"{flag} in a conversation: expected a prompt. Give {WAYS}")

    with at_once():
        pair = open_pair(grid, access)
    quiet = json or page
    screen = Screen(Paint.NONE if quiet else paint(color))
    if not quiet and (legend := screen.legend()):
        say(legend)
    how: dict[str, Any] = {"system": system, "truncate": truncate is not None}
    if text is None:
        from spsbench.cli.answers import converse

        converse(pair, screen, stats=stats, **how)
        return

    if page:
        from spsbench.cli.answers import write_page

        write_page(pair, text, out, compared=compare, chat=chat, **how)
        return

    from spsbench.cli.answers import answer
    from spsbench.cli.output.progress import alive

    with alive("generating, or reading a long prompt"):
        answer(pair, text, screen, compared=compare, json=json, stats=stats, chat=chat, **how)


def read_prompt(argument: str | None, file: str | None) -> str | None:
    """Return the prompt as it is; None when nothing was given and stdin is a terminal.

    Raises:
        SpsError: two sources, nothing in them, or something that is no text.
    """
    text = read_source(argument, file)
    if text == "":  # more often an unset variable than a wish for arbitrary text
        raise UsageError(f"the prompt is empty: expected {WAYS}. Give at least one character")
    return text


def read_source(argument: str | None, file: str | None) -> str | None:
    """Return the text of the argument, the file or stdin; None if there is none."""
    if argument is not None and file is not None:
        first = "PROMPT '-'" if argument == "-" else "PROMPT"
        raise UsageError(f"{first} and --prompt-file {file}: expected one prompt. Leave out one")
    if file is not None and file != "-":
        return read_file(file)
    if argument is not None and argument != "-":
        return checked_argument(argument)

    asked_for_stdin = "-" in (argument, file)
    if sys.stdin is None or sys.stdin.closed:
        raise DataError(f"stdin is closed: expected a prompt. Give {WAYS}")
    if is_terminal(sys.stdin) and not asked_for_stdin:
        return None
    text = decoded(read_all(sys.stdin.buffer, "stdin"), "stdin")
    if not text and not asked_for_stdin:
        raise UsageError(f"no prompt: expected {WAYS}. See sps generate --help")
    return text


def read_file(name: str) -> str:
    """Return the text of a prompt file."""
    return read_text(name, "the prompt, as `prompt_file`", LIMIT)


def read_all(file: BinaryIO, where: str) -> bytes:
    """Read all bytes; an input longer than the limit is an error."""
    content = file.read(LIMIT + 1)
    if len(content) > LIMIT:
        raise DataError(f"the prompt ({where}) is longer than {LIMIT:,} bytes: expected less")
    return content


def decoded(content: bytes, where: str) -> str:
    """Decode UTF-8."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"the prompt ({where}) is no UTF-8 at byte {error.start}: expected text. Convert it"
        ) from error


def checked_argument(argument: str) -> str:
    """Return the argument if it is valid text; invalid bytes arrive as surrogates."""
    try:
        argument.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"PROMPT is no UTF-8 at character {error.start}: expected text. Convert it"
        ) from error
    return argument
