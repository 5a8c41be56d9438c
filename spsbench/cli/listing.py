"""`sps list`: what can be named in a spec, ours and what other packages bring."""

import json
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Annotated

import typer

from spsbench.cli.options import Json, TableFormat, wants_json
from spsbench.cli.safe import one_line, write
from spsbench.registry import BUILT_IN, KINDS, Entry, Kind, entries

COLUMNS = ("kind", "name", "guarantee", "summary")


def list_plug_ins(
    kind: Annotated[Kind | None, typer.Argument(help="One kind only.", show_default="all")] = None,
    format: TableFormat = "table",
    json: Json = False,
) -> None:
    """List drafters, verifiers, schedules, engines, decoders, tasks and report formats."""
    kinds = (kind,) if kind else KINDS
    rows = [row(entry) for kind in kinds for entry in entries(kind)]
    show = show_json if wants_json(format, json) else show_table
    show(rows)


def row(entry: Entry) -> dict[str, str]:
    """What is shown of an entry."""
    shown = {"kind": entry.kind, "name": entry.name, "summary": entry.summary, "path": entry.where}
    return {**shown, "guarantee": entry.guarantee or foreign_guarantee(entry)}


def foreign_guarantee(entry: Entry) -> str:
    """What another package's verifier promises: only the class itself can say."""
    if entry.kind != "verifiers" or entry in BUILT_IN or find_spec("torch") is None:
        return ""
    try:
        return str(entry.load().guarantee.value)
    except Exception as error:  # whatever their import raises must not hide the rest of the list
        return f"cannot be loaded: {type(error).__name__}: {error}"


def show_table(rows: Iterable[dict[str, str]]) -> None:
    """Aligned columns; never wrapped, so that a pipe gets one plug-in a line."""
    lines = [COLUMNS, *(tuple(one_line(shown[column]) for column in COLUMNS) for shown in rows)]
    *widths, _ = (max(map(len, column)) for column in zip(*lines, strict=True))
    for *cells, last in lines:
        padded = "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))
        write(f"{padded}  {last}\n")


def show_json(rows: Iterable[dict[str, str]]) -> None:
    """The same as one array."""
    write(json.dumps(list(rows), indent=2) + "\n")
