"""`--plot PATH`: a figure as files."""

from pathlib import Path

from spsbench.cli.notes import say
from spsbench.errors import UsageError
from spsbench.reports.figure import Figure
from spsbench.reports.plots import png, svg
from spsbench.store.atomic import replace_file

DRAW = {"png": png, "svg": svg}


def save_plot(figure: Figure, path: Path) -> None:
    """Write `figure` as PNG and SVG, named after `path`, or as the one that its ending names.

    Raises:
        UsageError: another ending, or no name. WriteError: a file that cannot be written.
    """
    ending = path.suffix.removeprefix(".")
    if not path.name or (ending and ending not in DRAW):
        raise UsageError(f"--plot {path}: expected a name that ends in .png or .svg, or in neither")
    for kind in [ending] if ending else DRAW:
        file = path.with_suffix(f".{kind}")
        replace_file(file, DRAW[kind](figure))
        say(f"wrote {file}")
