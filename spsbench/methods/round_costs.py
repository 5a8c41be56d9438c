"""Costs of a round on this machine: measured once, kept in the cache, and written into cells.

A schedule with `costs=here` gets its `draft`, `row` and `fixed` as numbers when its cell is
resolved, so that a manifest has them and the same seed gives the same tokens anywhere. They are
those kept for this machine and these models; else those usual for its instructions.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Annotated, NamedTuple

from msgspec import Meta, MsgspecError
from msgspec import json as msgspec_json

from spsbench.hardware.environment import cpu_kind, instruction_set, package_version, usable_cores
from spsbench.hardware.files import own_folder, read_file, write_whole
from spsbench.settings.cell import CellRequest
from spsbench.spec import Spec
from spsbench.version import __version__

HERE = "here"
FOLDER = "costs"
LIMIT = 1 << 20  # bytes of the file
GREATEST = 8.0  # passes; beyond it a number was no measurement
DIGITS = 2

Cost = Annotated[float, Meta(ge=0, le=GREATEST)]


class RoundCosts(NamedTuple):
    """Costs in passes of the target over one token."""

    draft: Cost  # a drafted token
    row: Annotated[tuple[Cost, ...], Meta(min_length=1)]  # 1, 2, ... further rows of the target
    fixed: Cost  # a round with a draft, whatever its length

    @property
    def arguments(self) -> dict[str, float | str]:
        """Return `draft`, `row` (several costs as text, 0.03-0.06) and `fixed` of a schedule."""
        row = "-".join(f"{cost:g}" for cost in self.row) if len(self.row) > 1 else self.row[0]
        return {**self._asdict(), "row": row}


USUAL: Mapping[str, RoundCosts] = {
    "AMX": RoundCosts(0.08, (0.02,), 0.05),
    "AVX-512": RoundCosts(0.08, (0.03,), 0.05),
    "GPU": RoundCosts(0.2, (0.01,), 0.05),  # estimated
}
"""Costs where none were measured, by the instruction set; the dearer ones hold elsewhere."""
ELSEWHERE = RoundCosts(0.1, (0.18,), 0.06)

_known: dict[str, RoundCosts] = {}
"""Costs that this process has read or measured: a file that changes meanwhile changes no text."""


def asks_for_costs(cell: CellRequest) -> bool:
    """Return whether a cell's schedule takes the costs of this machine: `costs=here`."""
    return dict(cell.schedule.args).get("costs") == HERE


def with_costs(cell: CellRequest) -> CellRequest:
    """Return the request with numbers for its schedule's `costs=here`; any other as it is.

    They replace `costs`, `draft`, `row` and `fixed`: costs kept for this machine, else those usual
    for a GPU or for the processor's instructions.
    """
    if not asks_for_costs(cell):
        return cell
    costs = known_costs(cell) or USUAL.get("GPU" if _card(cell) else instruction_set(), ELSEWHERE)
    schedule = cell.schedule
    others = tuple((name, value) for name, value in schedule.args if name not in COSTS)
    return cell.but(
        schedule=Spec(schedule.name, (*costs.arguments.items(), *others), schedule.source)
    )


def _card(cell: CellRequest) -> str | None:
    """Return the name of the target's GPU; None: it runs on the CPU, and torch is not imported."""
    device = "cpu" if cell.target is None else cell.target.device
    if device == "cpu":
        return None
    from spsbench.models.devices import card_of

    return card_of(device)


COSTS = ("costs", *RoundCosts._fields)


def known_costs(cell: CellRequest) -> RoundCosts | None:
    """Return the costs that this process knows for a cell, else those of `costs_file`, or None."""
    key = key_of(cell)
    if key not in _known:
        path = costs_file()
        costs = None if path is None else read_kept(path).get(key)
        if costs is None:
            return None
        _known[key] = costs
    return _known[key]


def keep_costs(cell: CellRequest, costs: RoundCosts) -> None:
    """Keep costs for this process and, where the cache can be written, for later ones."""
    _known[key_of(cell)] = costs
    if (path := costs_file()) is not None:
        with suppress(OSError):
            write_whole(path, msgspec_json.encode({**read_kept(path), key_of(cell): costs}))


def key_of(cell: CellRequest) -> str:
    """Return the models, the drafter and the GPU of a cell in words: the key of its costs."""
    fields = ("id", "revision", "weights", "dtype", "engine", "device")
    models = (
        " ".join(str(v) for name in fields if (v := getattr(model, name))) for model in cell.models
    )
    return ", ".join([*models, str(cell.drafter), *filter(None, [_card(cell)])])


def costs_file() -> Path | None:
    """Return the path for this processor, threads and versions; None: no cache of the user's."""
    if (folder := own_folder(FOLDER)) is None:
        return None
    threads = os.environ.get("OMP_NUM_THREADS", "")
    parts = (cpu_kind(), usable_cores(), threads, package_version("torch"), __version__)
    return folder / f"{sha256(repr(parts).encode()).hexdigest()[:16]}.json"


def read_kept(path: Path) -> dict[str, RoundCosts]:
    """Return the costs in a file by `key_of`; none where it is missing or damaged."""
    try:
        return msgspec_json.decode(read_file(path, LIMIT), type=dict[str, RoundCosts])
    except (OSError, MsgspecError, RecursionError):
        return {}
