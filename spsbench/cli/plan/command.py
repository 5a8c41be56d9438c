"""`sps plan`: what speculation would cost and gain here."""

from typing import Any

from spsbench.cli import options as o
from spsbench.cli.plan.shapes import Shapes, plan_shapes
from spsbench.errors import UsageError
from spsbench.library.load import OF_ACCESS
from spsbench.settings.table import OF_CELL


@o.takes(OF_CELL.values(), OF_ACCESS.values())
def plan(
    shapes: Shapes = None,
    format: o.TableFormat = "table",
    json: o.Json = False,
    debug: o.Debug = False,
    **asked: Any,
) -> None:
    """Say what speculation would cost and gain on this machine."""
    if shapes is None:
        raise UsageError("nothing to plan: expected --shapes WIDTHxDEPTH,... Give them")
    plan_shapes(shapes, asked, json=o.wants_json(format, json))
