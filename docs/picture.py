"""Draw the pictures of the README, light and dark: `make picture`.

`terminal-*.svg` is a real run of the command of `make demo`, `methods-*.svg` the speed-ups that
`results/methods.json` holds.
"""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
sys.path.append(str(Path(__file__).parents[1] / "recipes"))

from matplotlib import pyplot
from rich.console import Console
from rich.terminal_theme import MONOKAI, TerminalTheme
from rich.text import Text

from demo import COMPARE, SMOLLM2

HERE = Path(__file__).parent
COMMAND = (*COMPARE, *SMOLLM2)
WIDTH = 96
LIGHT = TerminalTheme(
    (255, 255, 255),
    (36, 41, 47),
    [
        (36, 41, 47),
        (207, 34, 46),
        (17, 99, 41),
        (77, 45, 0),
        (9, 105, 218),
        (130, 80, 223),
        (27, 124, 131),
        (110, 119, 129),
    ],
)
TASKS = {"humaneval": "HumanEval, greedy", "xsum": "articles, greedy"}


def terminal_output() -> str:
    """Run the command on a pseudo-terminal; return its text with colours."""
    leader, follower = pty.openpty()
    sps = Path(sys.executable).with_name("sps")
    environment = os.environ | {"COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
    process = subprocess.Popen(
        [str(sps), *COMMAND, "--color", "always"],
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=follower,
        env=environment,
    )
    os.close(follower)
    seen = b""
    while True:
        try:
            block = os.read(leader, 65536)
        except OSError:  # Linux says so that the other end is closed
            break
        if not block:
            break
        seen += block
    if process.wait() != 0:
        raise RuntimeError(f"{process.args} failed: {seen.decode(errors='replace')}")
    return seen.decode().replace("\r\n", "\n")


def draw_terminal() -> None:
    """Write `terminal-light.svg` and `terminal-dark.svg`."""
    words = " ".join(f'"{word}"' if " " in word else word for word in COMMAND)
    shown = terminal_output()
    for name, theme in (("light", LIGHT), ("dark", MONOKAI)):
        console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"), force_terminal=True)
        console.print(Text(f"$ sps {words}", style="bold"))
        console.print(Text.from_ansi(shown))
        file = HERE / f"terminal-{name}.svg"
        console.save_svg(str(file), title="sps generate", theme=theme)


def labelled(row: dict[str, Any]) -> str:
    """Name a method: a schedule of its own stands below the drafter."""
    drafter, _, schedule = row["method"].partition(" ")
    return f"{drafter},\n{schedule}" if row["k"] is None else f"{row['method']}, K = {row['k']}"


def draw_methods() -> None:
    """Write `methods-light.svg` and `methods-dark.svg`: a bar and its interval for each method.

    A bar is green where the whole interval lies above 1.
    """
    rows = json.loads((HERE.parent / "results" / "methods.json").read_text())["rows"]
    rows = [row for row in rows if row["setting"] == "greedy" and row["k"] != 0]
    names = list(dict.fromkeys(map(labelled, rows)))
    for theme, ink in (("light", "#24292f"), ("dark", "#e6edf3")):
        pyplot.rcParams.update({"svg.hashsalt": theme, "text.color": ink, "font.size": 10})
        figure, panes = pyplot.subplots(1, 2, sharey=True, figsize=(9.6, 0.34 * len(names) + 1.1))
        for pane, (task, title) in zip(panes, TASKS.items(), strict=True):
            for row in (row for row in rows if row["task"] == task):
                y = names.index(labelled(row))
                middle, least, most = row["speedup"]
                sure = least is not None and least > 1
                pane.barh(y, middle, color="#2da44e" if sure else "#8c959f", height=0.62)
                if least is not None:  # it was measured undisturbed
                    pane.plot([least, most], [y, y], color=ink, linewidth=1)
            pane.axvline(1, color=ink, linewidth=0.8, linestyle=":")
            pane.set_title(title, color=ink, fontsize=10)
            pane.set_xlim(0, 3)
            pane.tick_params(colors=ink)
            pane.set_facecolor("none")
            for side in pane.spines.values():
                side.set_visible(False)
        panes[0].set_yticks(range(len(names)), names)
        panes[0].invert_yaxis()
        figure.supxlabel("speed-up over plain sampling with its 95 % interval", fontsize=10)
        figure.tight_layout()
        file = HERE / f"methods-{theme}.svg"
        figure.savefig(file, transparent=True, metadata={"Date": None})
        pyplot.close(figure)


if __name__ == "__main__":
    draw_methods()
    draw_terminal()
