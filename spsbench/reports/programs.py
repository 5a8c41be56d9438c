"""The lines below a table that say what its pass@k stands on."""

from collections.abc import Sequence
from pathlib import Path

from spsbench.settings.cell import Cell
from spsbench.settings.labels import Names
from spsbench.tasks.program_log import NAME, counts, described, pass_at, read, shown, told, without
from spsbench.tasks.program_texts import TASK

PROBLEMS = 164  # of HumanEval


def judged_notes(folder: Path, cells: Sequence[Cell]) -> list[str]:
    """How programs were run; of each cell the verdicts, and pass@k with both intervals.

    Raises:
        DataError: a damaged log of verdicts.
    """
    settings, judged = read(folder / NAME)
    if not settings:
        return []
    lines = [f"Programs: {described(settings)}."]
    names = Names(cells)
    for cell in cells:
        own = [each for each in judged if each.cell == cell.id]
        if cell.work.task is None or cell.work.task.name != TASK or not own:
            continue
        asked = len({each.sample for each in own})
        partial = f"partial {asked}/{PROBLEMS} problems: " if asked < PROBLEMS else ""
        figures = "; ".join(line for line in shown(pass_at(own)) if "n/a:" not in line)
        lacking = without(own)
        apart = f" ({lacking} of them: no program in the answer)" if cell.work.chat else ""
        lines.append(f"{names.full(cell)}: {partial}{told(counts(own))}{apart}; {figures}.")
    return lines
