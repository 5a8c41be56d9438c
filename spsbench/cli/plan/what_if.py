"""`sps plan` with --show-costs, --shapes or --spare-layers: single predictions."""

import json as js
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from spsbench.cli import options as o
from spsbench.cli.output.flags import with_flags
from spsbench.cli.output.terminal import say, write
from spsbench.cli.process.interrupt import at_once
from spsbench.errors import UsageError
from spsbench.settings.commands import TASK
from spsbench.settings.experiment import task_spec
from spsbench.settings.options import METHOD, flag_of
from spsbench.settings.records import SCHEMA
from spsbench.settings.request import CellRequest
from spsbench.settings.sweep import Sweep

ShowCosts = Annotated[
    bool,
    o.option(
        METHOD,
        "--show-costs",
        help="Only show what every part costs, from a PLAN or from --costs FILE.",
    ),
]


FIELDS = ("title", "headings", "rows", "remarks")  # of a table, in JSON


def show_costs(what: str | None, costs: Path | None, *, json: bool) -> None:
    """Print the costs of target passes, v(n), and rounds, as tables or as one object.

    Raises:
        UsageError: neither a plan nor a file is named, or both.
        MissingError, DataError: no table of costs there.
    """
    if (what is None) == (costs is None):
        raise UsageError(
            "--show-costs: expected the folder of a plan or --costs FILE. Name one of the two"
        )
    from spsbench.cli.output.publish import format_tables
    from spsbench.metrics.costs_file import read_costs
    from spsbench.planning.forecast.tables import cost_tables
    from spsbench.planning.plan import costs_of

    file = Path(costs or "") if what is None else costs_of(Path(what))
    tables = cost_tables(read_costs(file))
    if json:
        plain = [dict(zip(FIELDS, table, strict=False)) for table in tables]
        write(js.dumps(plain, indent=2) + "\n")
    else:
        write(format_tables(tables))


def single(options: Mapping[str, Any], flag: str) -> dict[str, Any]:
    """Return the options with one-element lists replaced by their value.

    Args:
        flag: the option in use, which allows no comparison.

    Raises:
        UsageError: several, or none.
    """
    return {name: _once(name, value, flag) for name, value in options.items()}


def _once(name: str, value: Any, flag: str) -> Any:
    if not isinstance(value, list) or name == "stop":
        return value
    if len(value) != 1:
        raise UsageError(
            f"{flag_of(name)} {len(value)} times with {flag}: expected one. Ask for each by itself"
        )
    return value[0]


def plan_counts(run: Path, *, json: bool) -> None:
    """Predict other K from the counts of a run; print one table or one object.

    Raises:
        SpsError: no run, a damaged one, or none whose engine tells each round.
    """
    from spsbench.cli.output.publish import format_tables
    from spsbench.planning.forecast.counts import what_if
    from spsbench.store.manifest import Manifest
    from spsbench.store.records import records

    what_if_table = what_if(Manifest.load(run).configurations(run), records(run))
    if json:
        rows = [dict(zip(what_if_table.headings, row, strict=True)) for row in what_if_table.rows]
        write(
            js.dumps(
                {
                    "schema": SCHEMA,
                    "rows": rows,
                    "notes": [with_flags(line) for line in what_if_table.remarks],
                },
                indent=2,
            )
            + "\n"
        )
    else:
        write(format_tables([what_if_table]))


Shapes = Annotated[
    str | None,
    o.option(
        METHOD,
        "--shapes",
        metavar="WIDTHxDEPTH,...",
        help="Only measure what draft models of these shapes cost here, such as 256x8,512x2.",
    ),
]


def plan_shapes(shapes: str, options: Mapping[str, Any], *, json: bool) -> None:
    """Measure draft models of some shapes; print one table or one object.

    Args:
        options: options of the pair; repeatable options have one value.

    Raises:
        SpsError: no shape, or a shape that this kind of model cannot have.
    """
    from spsbench.planning.forecast.links_and_shapes import parse_shapes

    parsed_shapes = parse_shapes(shapes)
    once = single(options, "--shapes")
    request = CellRequest.of(once)
    with at_once():
        from spsbench.pair.load import open_pair

        pair = open_pair(request)

    from spsbench.cli.output.progress import deferred_progress
    from spsbench.cli.output.publish import format_tables
    from spsbench.cli.output.terminal import write
    from spsbench.planning.forecast.tables import shape_rows, shape_table
    from spsbench.planning.pair_costs import measure_draft_shapes

    say(f"making {len(parsed_shapes)} draft models with random weights")
    with deferred_progress() as watch:
        costs, drafts = measure_draft_shapes(pair, parsed_shapes, watch=watch)
    if not json:
        write(format_tables([shape_table(costs, drafts)]))
        return
    content = {
        "schema": SCHEMA,
        "context": costs.passes.contexts[-1],
        "target_seconds": costs.target(1, costs.passes.contexts[-1])._asdict(),
        "busy": costs.busy,
        "setting": costs.setting,
        "shapes": shape_rows(costs, drafts),
    }
    write(js.dumps(content, indent=2) + "\n")


TEXTS, TOKENS = 4, 48  # texts and tokens of the search, unless options set more

SpareLayers = Annotated[
    bool,
    o.option(
        METHOD,
        "--spare-layers",
        help="Only search for the layers that the target can skip to draft for itself.",
    ),
]


def plan_spare(what: str | None, options: Mapping[str, Any], *, json: bool) -> None:
    """Search for layers to skip, on texts of the target; print one table or one object.

    Args:
        what: a task whose prompts are used.
        options: options of the target and of sampling; `prompts` is a file, `limit` a number.

    Raises:
        SpsError: invalid options, or no text.
    """
    once = single(options, "--spare-layers")
    prompts_file = once.pop("prompts", None)
    texts = int(once.pop("limit", None) or TEXTS)
    if once.get("max_new_tokens") is None:
        once["max_new_tokens"] = TOKENS
    spec = task_spec(
        Sweep(task=what or (TASK if prompts_file is None else f"jsonl:path={prompts_file}"))
    )
    request = CellRequest.of(once)
    with at_once():
        from spsbench.pair.load import open_pair

        pair = open_pair(request)

    from spsbench.cli.output.progress import alive
    from spsbench.cli.output.publish import format_tables
    from spsbench.cli.output.terminal import write
    from spsbench.planning.pair_costs import best, spare_layers

    with alive("searching for layers to skip"):
        prompts = pair.task_prompts(spec, texts)
        skips = spare_layers(pair, prompts)
    chosen = best(skips)
    command = f"sps generate --target {shlex.quote(pair.cell.models.target.id)} "
    command += f"--drafter {chosen} -k {chosen.k} PROMPT"
    if json:
        rows = [asdict_of(skip) for skip in skips]
        content = {"schema": SCHEMA, "texts": len(prompts), "sets": rows, "command": command}
        write(js.dumps(content, indent=2) + "\n")
    else:
        write(format_tables([table(skips, len(prompts), command)]))


def asdict_of(skip: Any) -> dict[str, Any]:
    """Return a set of skipped layers as plain values for JSON."""
    return {"drafter": str(skip)} | {n: getattr(skip, n) for n in ("alpha", "cost", "gain", "k")}


def table(skips: Sequence[Any], texts: int, command: str) -> Any:
    """Return a row for each number of skipped layers."""
    from spsbench.metrics.surfaces import digits
    from spsbench.reports.figures import TextTable

    rows = [
        (str(s), f"{s.alpha:.3f}", digits(s.cost), f"{digits(s.gain)}x", f"{s.k}") for s in skips
    ]
    return TextTable(
        title=f"Layers that the target can skip, on {texts} texts of its own",
        headings=("drafter", "alpha", "c", "promised", "at K"),
        rows=rows,
        remarks=(
            "alpha is exact on these texts, one pass over them for each set. c is the share of the "
            "weights that is read, and a pass over K + 1 tokens is taken to cost one: measure it.",
            f"Compare: sps plan --drafter {command.partition('--drafter ')[2].split()[0]}",
            command,
        ),
    )
