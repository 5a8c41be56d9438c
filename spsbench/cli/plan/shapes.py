"""`sps plan --shapes`: what drafts of other shapes would cost here."""

import json as js
from typing import Any

from spsbench.cli.grids import drawn
from spsbench.cli.notes import say
from spsbench.cli.progress import shown
from spsbench.cli.safe import write
from spsbench.forecast.shape import Shape
from spsbench.forecast.shapes import shape_rows, shape_table
from spsbench.library.costs import measure_draft_shapes
from spsbench.settings.records import SCHEMA


def show_shapes(pair: Any, shapes: list[Shape], *, json: bool) -> None:
    """Measure, and print one table, or one object.

    Raises:
        SpsError: a shape that this kind of model cannot have.
    """
    say(f"making {len(shapes)} models of random weights")
    with shown() as watch:
        costs, drafts = measure_draft_shapes(pair, shapes, watch=watch)
    if json:
        target = costs.target(1, costs.passes.contexts[-1])
        found = {
            "schema": SCHEMA,
            "context": costs.passes.contexts[-1],
            "target_seconds": target._asdict(),
            "busy": costs.busy,
            "setting": costs.setting,
            "shapes": shape_rows(costs, drafts),
        }
        write(js.dumps(found, indent=2) + "\n")
    else:
        write(drawn([shape_table(costs, drafts)]))
