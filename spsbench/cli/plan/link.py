"""`sps plan --link`: the target over several ranks, from what one rank and a link take."""

import json as js
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from spsbench.cli import options as o
from spsbench.cli.interrupt import at_once
from spsbench.cli.plan.single import single
from spsbench.errors import UsageError
from spsbench.messages import LIBRARIES, announce_if_slow
from spsbench.planning.forecast.link import HERE, parse_link
from spsbench.settings.cell_from_options import OF_CELL
from spsbench.settings.commands import OF_PLANNING
from spsbench.settings.options import MACHINE
from spsbench.settings.records import SCHEMA

LinkOption = Annotated[
    str | None,
    o.option(
        MACHINE,
        "--link",
        metavar="FILE|MS|MS:GB/s",
        help="With --parallel tp:N, instead: predict it from a link between ranks; or here.",
    ),
]


def plan_link(link: str, what: str | None, asked: Mapping[str, Any], *, json: bool) -> None:
    """Predict, and print one table, or one object.

    Args:
        what: the folder of a plan.
        asked: options of a plan; `parallel` says up to how many ranks.

    Raises:
        SpsError: a link, a number of ranks or files that cannot be used.
    """
    rest = dict(asked)
    ranks = ranks_of(rest)
    if link != HERE:
        parse_link(link)
    if what is not None and not (Path(what) / "plan.json").is_file():
        raise UsageError(f"--link with {what}: expected the folder of a plan, or none")
    if not rest.get("trace") and what is None:
        own = {name: rest.pop(name) for name in list(rest) if name in OF_PLANNING and name != "k"}
        rest = single(rest, "--link") | own

    from spsbench.cli.grids import drawn
    from spsbench.cli.progress import shown
    from spsbench.cli.safe import write

    with announce_if_slow(LIBRARIES):
        from spsbench.api.link import plan_ranks

    with at_once(), shown() as watch:
        plan = None if what is None else Path(what)
        found, known = plan_ranks(link, ranks, plan=plan, watch=watch, **rest)

    from spsbench.planning.forecast.placements import placement_rows, placement_table, sentence

    given = found.placements, known, found.target
    if json:
        content = {
            "schema": SCHEMA,
            "link": str(known),
            "rows": placement_rows(*given),
            "answer": sentence(*given),
            "notes": found.notes,
        }
        write(js.dumps(content, indent=2) + "\n")
    else:
        write(drawn([placement_table(*given, found.notes)]))


def ranks_of(asked: dict[str, Any]) -> int:
    """N of --parallel tp:N, which is taken out: what is measured is measured on one rank.

    Raises:
        UsageError: it is not there.
    """
    asked.pop("draft_parallel", None)
    parallel = asked.pop("parallel", None)
    told = None if parallel is None else OF_CELL["parallel"].convert(parallel)
    if told is None or ":" not in told:
        raise UsageError("--link without --parallel tp:N: expected up to how many ranks. Say it")
    return int(told.partition(":")[2])
