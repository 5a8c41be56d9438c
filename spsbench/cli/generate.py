"""`sps generate`: continue a prompt, with the origin of every token."""

import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from spsbench.cli import options as o
from spsbench.cli.terminal import is_terminal, note, say
from spsbench.errors import DataError, UsageError
from spsbench.hardware.signals import at_once
from spsbench.settings.execution import Access
from spsbench.settings.grid import Grid
from spsbench.settings.options import Option, one_of, parse
from spsbench.untrusted import read_text

LIMIT = 10_000_000  # bytes; far more than any context holds
WAYS = "PROMPT, --prompt-file FILE or text on stdin"
FLAT = 10.0  # a temperature above it leaves next to nothing of what the model says
COLORS = "auto", "always", "never"
RECORD_PROBS = "native:laws=true,likeliest=3"  # a page shows probabilities and alternatives


@dataclass(frozen=True, kw_only=True)
class PromptOptions:
    """The prompt of `sps generate`, and what it shows.

    Args:
        prompt_file: Read the prompt from a file.
        chat: Use the model's chat template, and the sampling that its generation_config names;
            without a prompt, start a conversation.
        system: System message, with `chat`.
        truncate: Drop the oldest tokens of a prompt that is too long.
        compare: Also run auto-regressive sampling: show the speed-up, and whether the texts are
            identical.
        stats: Show acceptance and timing on stderr.
        color: Colour tokens by origin: accepted, recovered, bonus.
    """

    prompt_file: Annotated[str | None, Option(o.PROMPT, metavar="FILE")] = None
    chat: Annotated[bool | None, Option(o.PROMPT)] = None
    system: Annotated[str | None, Option(o.PROMPT)] = None
    truncate: Annotated[str | None, Option(o.PROMPT, one_of("left"), metavar="left")] = None
    compare: Annotated[bool, Option(o.OUTPUT)] = False
    stats: Annotated[bool | None, Option(o.OUTPUT, default_text="stats")] = None
    color: Annotated[str, Option(o.OUTPUT, one_of(*COLORS), metavar="|".join(COLORS))] = COLORS[0]


@o.take_options(Grid, Access, PromptOptions, often=["prompt_file", "chat", "compare", "stats"])
def generate(
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="Text to continue; - reads it from stdin."),
    ] = None,
    format: o.TextFormat = "text",
    out: o.PageFile = None,
    **options: Any,
) -> None:
    """Continue PROMPT by speculative sampling, with the target's own distribution.

    The text goes to stdout, everything else to stderr.
    """
    o.check_page(format, out)
    if format == "html" and options.get("decoder") is None:
        options["decoder"] = RECORD_PROBS
    chosen, grid, access = parse(options, PromptOptions, Grid, Access)
    compare, stats = chosen.compare, chosen.stats is not False
    if options.get("k") == 0 and compare:
        raise UsageError("--compare with --k 0: expected K of 1 or more. Both would be ArS")
    if chosen.system is not None and not chosen.chat:
        raise UsageError("--system without --chat: expected both or none")
    with at_once():
        from spsbench.models.prepare import facts_of, read_once
        from spsbench.pair.load import open_pair

    request = grid.one(facts_of(access))
    if request.max_new_tokens == 0:
        note("no token is asked for (`max_new_tokens` 0): the prompt is read, and nothing written")
    if request.temperature > FLAT:
        note(f"at `temperature` {request.temperature:g} all tokens are about equally likely")
    for idle in grid.idle():
        note(idle)
    text = read_once(request, access, lambda: read_prompt(prompt, chosen.prompt_file))
    if text is None and not chosen.chat:
        raise UsageError(f"no prompt: expected {WAYS}, or a conversation with --chat")
    if text is None and (compare or format != "text"):
        flag = "--compare" if compare else f"--format {format}"
        raise UsageError(f"{flag} in a conversation: expected a prompt. Give {WAYS}")

    with at_once():
        pair = open_pair(grid, access, request=request)  # first: it finds files that hide packages

        from spsbench.cli.answers import Paint, Screen, answer, choose_paint, converse
        from spsbench.cli.progress import alive
    screen = Screen(choose_paint(chosen.color) if format == "text" else Paint.NONE)
    if legend := screen.legend():
        say(legend)
    how: dict[str, Any] = {"system": chosen.system, "truncate": chosen.truncate is not None}
    if text is None:
        converse(pair, screen, stats=stats, **how)
    else:
        how |= {"chat": bool(chosen.chat), "compared": compare, "format": format, "out": out}
        with alive("generating, or reading a long prompt"):
            answer(pair, text, screen, stats=stats, **how)


def read_prompt(argument: str | None, file: str | None) -> str | None:
    """Return the prompt as it is; None when nothing was given and stdin is a terminal.

    The prompt is `argument`, the content of `file`, or that of stdin without both or for `-`.
    SpsError: two sources, an empty or closed one, no text, or more than `LIMIT` bytes.
    """
    if argument is not None and file is not None:
        first = "PROMPT '-'" if argument == "-" else "PROMPT"
        raise UsageError(f"{first} and --prompt-file {file}: expected one prompt. Leave out one")
    if file is not None and file != "-":
        text = read_text(file, "the prompt, as `prompt_file`", LIMIT)
    elif argument is not None and argument != "-":
        text = decode_prompt(argument.encode(errors="surrogateescape"), "PROMPT")
    else:
        is_named = "-" in (argument, file)
        if sys.stdin is None or sys.stdin.closed:
            raise DataError(f"stdin is closed: expected a prompt. Give {WAYS}")
        if is_terminal(sys.stdin) and not is_named:
            return None
        text = decode_prompt(sys.stdin.buffer.read(LIMIT + 1), "stdin")
        if not text and not is_named:
            raise UsageError(f"no prompt: expected {WAYS}. See sps generate --help")
    if text == "":  # more often an unset variable than a wish for arbitrary text
        raise UsageError(f"the prompt is empty: expected {WAYS}. Give at least one character")
    return text


def decode_prompt(content: bytes, where: str) -> str:
    """Return the text of a prompt from `where`; DataError: more than `LIMIT` bytes, or no UTF-8."""
    if len(content) > LIMIT:
        raise DataError(f"the prompt ({where}) is longer than {LIMIT:,} bytes: expected less")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"the prompt ({where}) is no UTF-8 at byte {error.start}: expected text. Convert it"
        ) from error
