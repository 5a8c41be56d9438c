"""What a benchmark is asked: a task, its sizes, and options of cells whose lists multiply."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from spsbench.errors import UsageError
from spsbench.settings.option import RUN, SIZE, WORK, Option, between, one_of
from spsbench.settings.setting import Setting, settings_of
from spsbench.settings.table import OF_CELL

METHODS = ("ars", "sps")
RECORDED = ("counts", "laws", "trace")  # laws are for audits, a trace for `sps plan`
MOST = 10**9
SINGLE = ("seed",)  # of a cell, but one for a whole experiment


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """One table of an experiment file, or the flags of `sps bench`."""

    task: Annotated[str, Option("xsum, humaneval, jsonl:path=FILE or latency.", WORK)] = ""
    data: Annotated[str | None, Option("auto, hub, mini or a path.", WORK)] = None
    k: Annotated[
        str | None,
        Option("4, 1..8, 1..9..2, 2,4,6", WORK, flags=("k",), shown="4", ranges=True),
    ] = None
    method: Annotated[
        tuple[str, ...], Option("ars,sps", WORK, one_of(*METHODS), shown="ars,sps")
    ] = METHODS
    setting: Annotated[
        tuple[str, ...],
        Option("nucleus,greedy as in the paper.", WORK, one_of("nucleus", "greedy")),
    ] = ()
    limit: Annotated[int | None, Option("Prompts of the task.", SIZE, between(1, MOST))] = None
    samples: Annotated[int, Option("Texts a prompt.", SIZE, between(1, MOST))] = 1
    repeats: Annotated[int, Option("Timings of each.", SIZE, between(1, MOST))] = 1
    seeds: Annotated[
        str | None, Option("0..4: every cell under each; its spread over them.", SIZE, ranges=True)
    ] = None
    chat: Annotated[
        str,
        Option(
            "Ask in the model's chat template: auto (where it has one), on or off.",
            WORK,
            one_of("auto", "on", "off"),
        ),
    ] = "auto"
    system: Annotated[str | None, Option("System message of a chat.", WORK)] = None
    ignore_end: Annotated[bool, Option("Texts of full length: timing only.", SIZE)] = False
    record: Annotated[
        str, Option("counts, laws (p and q too), or trace: for sps plan.", RUN, one_of(*RECORDED))
    ] = "counts"
    cells: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # option -> its values
    heads: Mapping[str, str] = field(default_factory=dict)  # draft -> the drafter that it is for


OF_SWEEP: Mapping[str, Setting] = {each.name: each for each in settings_of(Sweep)}
"""Name -> setting, of a table as such."""
LISTED: Mapping[str, Setting] = {
    name: each for name, each in OF_CELL.items() if name not in (*OF_SWEEP, *SINGLE)
}
"""Those of cells: several values are several cells."""


def sweep(values: Mapping[str, Any], where: str = "") -> Sweep:
    """A table from keys and values; one value stands for a list of one.

    Args:
        where: the file, for messages; without one the values are flags.

    Raises:
        UsageError: an unknown key, or a value of another type or out of range.
    """
    own: dict[str, Any] = {}
    cells: dict[str, tuple[Any, ...]] = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        if value is None:
            continue
        told = f"{where}: {key}" if where else ""
        if name in OF_SWEEP:
            if name == "chat" and isinstance(value, bool):
                value = "on" if value else "off"
            own[name] = OF_SWEEP[name].fitted(_split(value, OF_SWEEP[name]), told)
        elif name in LISTED:
            cells[name] = _each(value, LISTED[name], told)
        else:
            names = ", ".join((*OF_SWEEP, *LISTED))
            raise UsageError(f"{where or 'options'}: unknown key {key!r}: expected one of {names}")
    return Sweep(**own, cells=cells)


def _split(value: Any, setting: Setting) -> Any:
    """Words that are parted by commas are a list."""
    return value.split(",") if setting.kind is tuple and isinstance(value, str) else value


def _each(value: Any, setting: Setting, told: str) -> tuple[Any, ...]:
    if setting.kind is tuple:  # a list is one value
        return (setting.fitted(value, told),)
    listed = value if isinstance(value, list | tuple) else [value]
    return tuple(setting.fitted(one, told) for one in listed)
