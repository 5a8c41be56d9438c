"""`sps plan`: what speculation would cost and gain here."""

from typing import Annotated, Any

from spsbench.cli import options as o
from spsbench.cli.interrupt import at_once
from spsbench.cli.notes import say
from spsbench.errors import UsageError
from spsbench.forecast.shape import parse_shapes
from spsbench.library.load import OF_ACCESS, access_of, load
from spsbench.settings.asked import make_cell
from spsbench.settings.option import METHOD
from spsbench.settings.table import OF_CELL


@o.takes(OF_CELL.values(), OF_ACCESS.values())
def plan(
    shapes: Annotated[
        str | None,
        o.option(
            METHOD,
            "--shapes",
            metavar="WIDTHxDEPTH,...",
            help="What drafts of these shapes would cost here: 256x8,512x2.",
        ),
    ] = None,
    format: o.TableFormat = "table",
    json: o.Json = False,
    debug: o.Debug = False,
    **asked: Any,
) -> None:
    """Say what speculation would cost and gain on this machine."""
    if shapes is None:
        raise UsageError("nothing to plan: expected --shapes WIDTHxDEPTH,... Give them")
    wanted = parse_shapes(shapes)
    make_cell(**access_of(asked)[1])
    with at_once():
        pair = load(say=say, **asked)

    from spsbench.cli.plan.shapes import show_shapes

    show_shapes(pair, wanted, json=o.wants_json(format, json))
