"""`--plot PATH`: a figure as files."""

from collections.abc import Mapping
from pathlib import Path

from spsbench.cli.notes import say
from spsbench.errors import UsageError
from spsbench.reports.figure import Figure
from spsbench.reports.plots import png, svg
from spsbench.store.atomic import check_replaceable, replace_file

DRAW = {"png": png, "svg": svg}


def save_plot(figure: Figure, path: Path) -> None:
    """Write `figure` as PNG and SVG, named after `path`, or as the one that its ending names.

    Raises:
        UsageError: another ending, or no name. WriteError: a file that cannot be written.
    """
    for kind, file in files_of(path).items():
        replace_file(file, DRAW[kind](figure))
        say(f"wrote {file}")


def check_plot(path: Path) -> None:
    """Try whether `save_plot` could write to `path`; raises as `save_plot`."""
    for file in files_of(path).values():
        check_replaceable(file)


def files_of(path: Path) -> Mapping[str, Path]:
    """Return the file of each kind that `--plot path` names.

    Raises:
        UsageError: another ending, or no name.
    """
    ending = path.suffix.removeprefix(".")
    if not path.name or (ending and ending not in DRAW):
        raise UsageError(f"--plot {path}: expected a name that ends in .png or .svg, or in neither")
    return {kind: path.with_suffix(f".{kind}") for kind in ([ending] if ending else DRAW)}
