"""Tables of options: one part of an experiment file, or the flags of `sps bench`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from spsbench.errors import UsageError
from spsbench.registry import built_in
from spsbench.settings.cell import SEED_MAX, Cell
from spsbench.settings.cell_from_options import OF_CELL
from spsbench.settings.options import (
    RUN,
    SIZE,
    WORK,
    Option,
    Setting,
    between,
    one_of,
    options_of,
    ranges,
)

METHODS = ("ars", "sps")
RECORDED = ("counts", "laws", "trace")  # laws are for audits, a trace for `sps plan`
MAX_SAMPLES = 10**9
MAX_ROWS = 1024  # of a batch
SINGLE = ("seed",)  # of a cell, but one for a whole experiment


SampleSeed = Annotated[
    int | None,
    Option(
        SIZE,
        between(0, SEED_MAX, "0..2^64-1"),
        default_text="none: the first prompts of the data",
        help="Seed that draws the prompts from all, each group in proportion.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """One table of an experiment file, or the flags of `sps bench`.

    Args:
        data: Data of the task: auto, hub, mini (bundled) or a path.
        k: Tokens drafted per round: 4, 1..8, 1..9..2 or 2,4,6.
        method: Methods: ars (auto-regressive), sps (speculative sampling).
        batch: Texts at a time, in common passes or as requests to a server: 8, or 1,2,4,8.
        continuous: In a batch, a text that ends makes room for the next; else its place stays
            empty.
        setting: Sampling settings of the paper: nucleus,greedy.
        limit: Number of prompts.
        samples: Samples per prompt.
        repeats: Timed repeats of each sample.
        seeds: Random seeds, such as 0..4; reports show the spread over them.
        chat: Put prompts into the model's chat template: auto (if it has one), on or off.
        system: System message, for prompts in a chat template.
        ignore_end: Continue after end-of-text tokens to the full length: timing only.
        record: What to record: counts, laws (p and q too, for audits) or trace (for sps plan).
    """

    task: Annotated[
        str, Option(WORK, help=f"Task: {built_in('tasks')}, or yours: FILE.py:CLASS.")
    ] = ""
    data: Annotated[str | None, Option(WORK)] = None
    k: Annotated[str | None, Option(WORK, flags=("k",), default_text="4", parse=ranges)] = None
    method: Annotated[tuple[str, ...], Option(WORK, one_of(*METHODS), default_text="ars,sps")] = (
        METHODS
    )
    batch: Annotated[str, Option(WORK, default_text="1", parse=ranges)] = "1"
    continuous: Annotated[bool, Option(WORK)] = False
    setting: Annotated[tuple[str, ...], Option(WORK, one_of("nucleus", "greedy"))] = ()
    limit: Annotated[int | None, Option(SIZE, between(1, MAX_SAMPLES))] = None
    sample_seed: SampleSeed = None
    samples: Annotated[int, Option(SIZE, between(1, MAX_SAMPLES))] = 1
    repeats: Annotated[int, Option(SIZE, between(1, MAX_SAMPLES))] = 1
    seeds: Annotated[str | None, Option(SIZE, parse=ranges)] = None
    chat: Annotated[str, Option(WORK, one_of("auto", "on", "off"))] = "auto"
    system: Annotated[str | None, Option(WORK)] = None
    ignore_end: Annotated[bool, Option(SIZE)] = False
    record: Annotated[str, Option(RUN, one_of(*RECORDED))] = "counts"
    cells: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # option -> its values
    bases: tuple[tuple[Cell, ...], ...] = ()  # see `base_cells`; (): not made yet


OF_SWEEP: Mapping[str, Setting] = options_of(Sweep)
"""Name -> setting, of a table as such."""
LISTED: Mapping[str, Setting] = {
    name: setting for name, setting in OF_CELL.items() if name not in (*OF_SWEEP, *SINGLE)
}
"""Options whose several values are several cells."""


def sweep(values: Mapping[str, Any], where: str = "") -> Sweep:
    """A table from keys and values; one value stands for a list of one.

    Args:
        where: the file, for messages; without one the values are flags.

    Raises:
        UsageError: an unknown key, or a value of another type or out of range.
    """
    options: dict[str, Any] = {}
    cells: dict[str, tuple[Any, ...]] = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        if value is None:
            continue
        label = f"{where}: {key}" if where else ""
        if name in OF_SWEEP:
            if name == "chat" and isinstance(value, bool):
                value = "on" if value else "off"
            options[name] = OF_SWEEP[name].convert(_split(value, OF_SWEEP[name]), label)
        elif name in LISTED:
            cells[name] = _values(value, LISTED[name], label)
        else:
            names = ", ".join((*OF_SWEEP, *LISTED))
            raise UsageError(f"{where or 'options'}: unknown key {key!r}: expected one of {names}")
    return Sweep(**options, cells=cells)


def _split(value: Any, setting: Setting) -> Any:
    """Return the words of a list; those of one text may be parted by commas."""
    if setting.kind is not tuple:
        return value
    words = [value] if isinstance(value, str) else value
    return [part for word in words for part in (word.split(",") if type(word) is str else [word])]


def _values(value: Any, setting: Setting, label: str) -> tuple[Any, ...]:
    if setting.kind is tuple:  # a list is one value
        return (setting.convert(value, label),)
    listed = value if isinstance(value, list | tuple) else [value]
    return tuple(setting.convert(one, label) for one in listed)
