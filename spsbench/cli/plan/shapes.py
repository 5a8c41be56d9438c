"""`sps plan --shapes`: what drafts of other shapes would cost here."""

import json as js
from collections.abc import Mapping
from typing import Annotated, Any

from spsbench.api.load import access_of, load
from spsbench.cli import options as o
from spsbench.cli.interrupt import at_once
from spsbench.cli.notes import say
from spsbench.cli.plan.single import single
from spsbench.planning.forecast.shape import parse_shapes
from spsbench.settings.cell_from_options import make_cell
from spsbench.settings.options import METHOD
from spsbench.settings.records import SCHEMA

Shapes = Annotated[
    str | None,
    o.option(
        METHOD,
        "--shapes",
        metavar="WIDTHxDEPTH,...",
        help="Instead: what drafts of these shapes would cost here, as 256x8,512x2.",
    ),
]


def plan_shapes(shapes: str, asked: Mapping[str, Any], *, json: bool) -> None:
    """Measure, and print one table, or one object.

    Args:
        asked: options of the pair; one that may be given more than once is given once.

    Raises:
        SpsError: what is no shape, or one that this kind of model cannot have.
    """
    wanted = parse_shapes(shapes)
    once = single(asked, "--shapes")
    make_cell(**access_of(once)[1])
    with at_once():
        pair = load(**once)

    from spsbench.api.costs import measure_draft_shapes
    from spsbench.cli.grids import drawn
    from spsbench.cli.progress import shown
    from spsbench.cli.safe import write
    from spsbench.planning.forecast.shapes import shape_rows, shape_table

    say(f"making {len(wanted)} draft models with random weights")
    with shown() as watch:
        costs, drafts = measure_draft_shapes(pair, wanted, watch=watch)
    if not json:
        write(drawn([shape_table(costs, drafts)]))
        return
    found = {
        "schema": SCHEMA,
        "context": costs.passes.contexts[-1],
        "target_seconds": costs.target(1, costs.passes.contexts[-1])._asdict(),
        "busy": costs.busy,
        "setting": costs.setting,
        "shapes": shape_rows(costs, drafts),
    }
    write(js.dumps(found, indent=2) + "\n")
