"""`sps plan --show-costs`: the table of costs that a plan stands on."""

import json as js
from pathlib import Path
from typing import Annotated

from spsbench.cli import options as o
from spsbench.cli.safe import write
from spsbench.errors import UsageError
from spsbench.settings.options import METHOD

ShowCosts = Annotated[
    bool,
    o.option(
        METHOD, "--show-costs", help="Instead: what every part costs, of a PLAN or of --costs FILE."
    ),
]


def show_costs(what: str | None, costs: Path | None, *, json: bool) -> None:
    """Print passes of the target, v(n), and rounds by part; or the same as one object.

    Raises:
        UsageError: neither a plan nor a file is named, or both.
        MissingError, DataError: no table of costs there.
    """
    if (what is None) == (costs is None):
        raise UsageError(
            "--show-costs: expected the folder of a plan or --costs FILE. Name one of the two"
        )
    from spsbench.api.plan import costs_of
    from spsbench.cli.grids import drawn
    from spsbench.planning.forecast.cost_tables import cost_tables
    from spsbench.planning.forecast.costs_file import read_costs

    file = Path(costs or "") if what is None else costs_of(Path(what))
    tables = cost_tables(read_costs(file))
    if json:
        write(js.dumps([table._asdict() for table in tables], indent=2) + "\n")
    else:
        write(drawn(tables))
