"""What a target would take and gain over several ranks of a link, without running it there."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spsbench.api.load import access_of, load
from spsbench.errors import UsageError
from spsbench.messages import ignore, takes_say
from spsbench.planning.forecast.link import HERE, Link, parse_link
from spsbench.settings.commands import Planning
from spsbench.settings.execution import Access
from spsbench.settings.models import ModelSpec
from spsbench.settings.options import take_record


@takes_say
def plan_ranks(
    link: str,
    ranks: int,
    *,
    plan: Path | None = None,
    watch: Callable[[Any], None] = ignore,
    **asked: Any,
) -> tuple[Any, Link]:
    """Predict a pair over up to `ranks` ranks: `plan_ranks("0.02ms:50GB/s", 8, target="nano")`.

    Args:
        link: a time, latency:bandwidth, the file of a measured one, or `here`.
        plan: the folder of a finished plan; else `trace` and `costs` name files; else the pair's
            costs are measured in this process, and what it would gain stays open.
        say: receives each line that a user should know; without it they go to `logging` alone.
        asked: options of `sps plan`.

    Returns:
        A `spsbench.planning.over_ranks.Forecasts`, and the link.

    Raises:
        SpsError: a link, files or models that cannot be used.
    """
    known = None if link == HERE else parse_link(link)
    access, rest = access_of(asked)
    planning = take_record(Planning, rest)
    material = _material(plan, planning, access, rest, watch)
    if known is None:
        from spsbench.planning.reduces import between_ranks_here

        known = between_ranks_here(min(ranks, max(2, os.cpu_count() or 2)))

    from spsbench.models.folder import locate
    from spsbench.planning.over_ranks import forecast_ranks

    def found(model: ModelSpec) -> Path:
        trusted = {"trust_remote_code": False, "allow_pickle": access.allow_pickle}
        return locate(model, offline=access.offline, **trusted)

    return forecast_ranks(material, ranks, known, found), known


def _material(
    plan: Path | None,
    planning: Planning,
    access: Access,
    asked: dict[str, Any],
    watch: Callable[[Any], None],
) -> Any:
    if plan is not None:
        if asked:
            raise UsageError(f"{', '.join(asked)} with the plan {plan}: expected it as it is")
        from spsbench.planning.again import material

        return material(plan, planning)[1]
    if planning.trace:
        if planning.costs is None:
            raise UsageError("--trace without --costs (--link): expected both or none")
        from spsbench.api.plan import options
        from spsbench.planning.again import material_of_files

        return material_of_files(planning, options(asked))[1]
    pair = load(**asked, offline=access.offline, threads=access.threads)

    from spsbench.api.costs import measure_costs
    from spsbench.planning.forecast.costs_file import read_costs
    from spsbench.planning.material import Material

    if planning.costs is None:
        costs = measure_costs(pair, seconds=planning.cost_seconds, watch=watch)
    else:
        costs = read_costs(planning.costs)
    return Material(costs=costs.scaled(**planning.factors), cells=[pair.cell])
