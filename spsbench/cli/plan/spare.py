"""`sps plan --spare-layers`: which layers the target can leave out when it drafts for itself."""

import json as js
import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from spsbench.api.load import access_of, load
from spsbench.cli import options as o
from spsbench.cli.interrupt import at_once
from spsbench.cli.plan.single import single
from spsbench.settings.cell_from_options import make_cell
from spsbench.settings.commands import TASK
from spsbench.settings.experiment import task_spec
from spsbench.settings.options import METHOD
from spsbench.settings.records import SCHEMA
from spsbench.settings.sweep import Sweep

TEXTS, TOKENS = 4, 48  # that are written to search on, unless more is asked for

SpareLayers = Annotated[
    bool,
    o.option(
        METHOD,
        "--spare-layers",
        help="Instead: which layers the target can leave out to draft for itself.",
    ),
]


def plan_spare(what: str | None, asked: Mapping[str, Any], *, json: bool) -> None:
    """Search on texts that the target writes; print one table, or one object.

    Args:
        what: a task whose prompts are used.
        asked: options of the target and of sampling; `prompts` is a file, `limit` how many.

    Raises:
        SpsError: options that cannot be meant, or no text.
    """
    once = single(asked, "--spare-layers")
    own = once.pop("prompts", None)
    texts = int(once.pop("limit", None) or TEXTS)
    if once.get("max_new_tokens") is None:
        once["max_new_tokens"] = TOKENS
    spec = task_spec(Sweep(task=what or (TASK if own is None else f"jsonl:path={own}")))
    make_cell(**access_of(once)[1])
    with at_once():
        pair = load(**once)

    from spsbench.api.spare import best, prompts_for, spare_layers
    from spsbench.cli.grids import drawn
    from spsbench.cli.progress import alive
    from spsbench.cli.safe import write

    with alive("leaving out layers"):
        prompts = prompts_for(pair, spec, texts)
        found = spare_layers(pair, prompts)
    chosen = best(found)
    command = f"sps generate --target {shlex.quote(pair.cell.models.target.id)} "
    command += f"--drafter {chosen} -k {chosen.k} PROMPT"
    if json:
        rows = [asdict_of(each) for each in found]
        content = {"schema": SCHEMA, "texts": len(prompts), "sets": rows, "command": command}
        write(js.dumps(content, indent=2) + "\n")
    else:
        write(drawn([table(found, len(prompts), command)]))


def asdict_of(skip: Any) -> dict[str, Any]:
    """For JSON."""
    return {"drafter": str(skip)} | {n: getattr(skip, n) for n in ("alpha", "cost", "gain", "k")}


def table(found: Sequence[Any], texts: int, command: str) -> Any:
    """A row for each number of layers left out."""
    from spsbench.planning.forecast.grid import Grid, digits

    rows = [
        (str(s), f"{s.alpha:.3f}", digits(s.cost), f"{digits(s.gain)}x", f"{s.k}") for s in found
    ]
    return Grid(
        title=f"Layers that the target can spare, on {texts} texts of its own",
        headings=("drafter", "alpha", "c", "promised", "at K"),
        rows=rows,
        remarks=(
            "alpha is exact on these texts, one pass over them for each set. c is the share of the "
            "weights that is read, and a pass over K + 1 tokens is taken to cost one: measure it.",
            f"Compare: sps plan --drafter {command.partition('--drafter ')[2].split()[0]}",
            command,
        ),
    )
