"""`sps plan`: whether to speculate, with what, with which K, and what it gains."""

from pathlib import Path
from typing import Annotated, Any

import typer

from spsbench.api.bench import OF_CREW, OF_PLACE
from spsbench.api.load import OF_ACCESS
from spsbench.cli import options as o
from spsbench.cli.plan.costs import ShowCosts, show_costs
from spsbench.cli.plan.link import LinkOption, plan_link
from spsbench.cli.plan.shapes import Shapes, plan_shapes
from spsbench.cli.plan.spare import SpareLayers, plan_spare
from spsbench.errors import UsageError
from spsbench.settings.cell_from_options import OF_CELL
from spsbench.settings.commands import LISTS, OF_PLANNING
from spsbench.settings.options import METHOD

PLAN = "plan.json"
UNASKED = ("k", "decoder", "random_weights")  # K is a range here; only the own loop is taken apart
OF_PAIRS = {name: each for name, each in OF_CELL.items() if name not in UNASKED}
PLACES = {name: OF_PLACE[name] for name in ("out", "resume", "overwrite")}


@o.takes(
    OF_PLANNING.values(),
    OF_PAIRS.values(),
    PLACES.values(),
    OF_CREW.values(),
    OF_ACCESS.values(),
    many=[*LISTS],
)
def plan(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[TASK|PLAN]",
            help="A task whose prompts are used (xsum, humaneval ...), or the folder of a plan, "
            "which is drawn again.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        o.option(o.OUTPUT, "--plot", help="Tau and speed-up by K as PATH.png and PATH.svg."),
    ] = None,
    fit: Annotated[
        str | None,
        o.option(METHOD, "--fit", help="disco:out=FILE: fit the schedule on the traces, too."),
    ] = None,
    shapes: Shapes = None,
    spare: SpareLayers = False,
    show: ShowCosts = False,
    link: LinkOption = None,
    format: o.ReportFormat = "table",
    json: o.Json = False,
    debug: o.Debug = False,
    **asked: Any,
) -> None:
    """Find out whether speculation pays here, with what and which K; measure the best."""
    form = o.report_format(format, json)
    if show or spare or shapes is not None or link is not None:
        flag = "--show-costs" if show else "--spare-layers" if spare else "--shapes"
        flag = flag if shapes is not None or show or spare else "--link"
        if form not in ("table", "json") or plot is not None:
            raise UsageError(f"{flag}: expected --format table or json, and no --plot. Change it")
        if show:
            show_costs(what, asked.get("costs"), json=form == "json")
        elif spare:
            plan_spare(what, asked, json=form == "json")
        elif link is not None:
            plan_link(link, what, asked, json=form == "json")
        elif what is not None:
            raise UsageError(f"--shapes with {what}: expected one of the two. Leave out the other")
        else:
            plan_shapes(str(shapes), asked, json=form == "json")
        return
    fitting = None if fit is None else OF_CELL["schedule"].convert(fit)

    from spsbench.cli.plan.carry_out import carry_out, fitted_on

    if fitting is not None and asked.get("trace") and asked.get("costs") is None:
        raise typer.Exit(fitted_on(fitting, [Path(each) for each in asked["trace"]]))

    if what is not None and (Path(what) / PLAN).is_file():
        places = [name for name in PLACES if asked.get(name) not in (None, False)]
        if not places:
            code = carry_out(None, Path(what), asked, form=form, plot=plot, fit=fitting)
            raise typer.Exit(code)
        if places != ["resume"]:
            raise UsageError(f"--{places[0]} with the plan {what}: expected it to be drawn again")
    raise typer.Exit(carry_out(what, None, asked, form=form, plot=plot, fit=fitting))
