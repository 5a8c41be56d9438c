"""`sps generate`: a prompt in, its continuation out, with the origin of every piece."""

from typing import Any

from spsbench.api.load import OF_ACCESS, access_of, load
from spsbench.api.prepare import prepare_ranks
from spsbench.cli import options as o
from spsbench.cli.generate.prompt import WAYS, read_prompt
from spsbench.cli.generate.screen import Paint, Screen, paint
from spsbench.cli.interrupt import at_once
from spsbench.cli.notes import say
from spsbench.errors import UsageError
from spsbench.settings.cell_from_options import OF_CELL, make_cell
from spsbench.store.atomic import check_replaceable

LAWS = "native:laws=true,likeliest=3"  # a page shows the chance of each token, and others


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
    **asked: Any,
) -> None:
    """Continue PROMPT by speculative sampling, exactly as the target alone would.

    The text goes to stdout, all else to stderr.
    """
    page = format == "html"
    if page and json:
        raise UsageError("--json with --format html: expected one of the two")
    if out is not None and not page:
        raise UsageError(f"--out {out} without --format html: expected both or none")
    if out is not None:
        check_replaceable(out)
    json = o.wants_json(format, json)
    if asked.get("k") == 0 and compare:
        raise UsageError("--compare with --k 0: expected K of 1 or more. Both would be ArS")
    if system is not None and not chat:
        raise UsageError("--system without --chat: expected both or none")
    access, rest = access_of(asked)
    prepare_ranks(make_cell(**rest), access)  # before stdin is read
    text = read_prompt(prompt, prompt_file)
    if text is None and not chat:
        raise UsageError(f"no prompt: expected {WAYS}, or a conversation with --chat")
    if text is None and (compare or json or page):
        flag = "--compare" if compare else f"--format {'json' if json else format}"
        raise UsageError(f"{flag} in a conversation: expected a prompt. Give {WAYS}")

    if page and asked.get("decoder") is None:
        asked["decoder"] = LAWS
    with at_once():
        pair = load(**asked)
    quiet = json or page
    screen = Screen(Paint.NONE if quiet else paint(color))
    if not quiet and (legend := screen.legend()):
        say(legend)
    how: dict[str, Any] = {"system": system, "truncate": truncate is not None}
    if text is None:
        from spsbench.cli.generate.chat import converse

        converse(pair, screen, stats=stats, **how)
        return

    if page:
        from spsbench.cli.generate.page import write_page

        write_page(pair, text, out, compared=compare, chat=chat, **how)
        return

    from spsbench.cli.generate.answer import answer
    from spsbench.cli.progress import alive

    with alive("generating, or reading a long prompt"):
        answer(pair, text, screen, compared=compare, json=json, stats=stats, chat=chat, **how)
