"""The figures of a generation as a table on stderr."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from spsbench.api.text import Arm
from spsbench.cli.safe import safe_text
from spsbench.settings.labels import lossy

NA = "n/a"


def show_stats(arms: Mapping[str, Arm]) -> None:
    """One column an arm."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=len(arms) > 1, header_style="")
    table.add_column("")
    for name in arms:
        table.add_column(name)
    for cells in rows(list(arms.values())):
        table.add_row(*(Text(safe_text(cell)) for cell in cells))
    Console(stderr=True, highlight=False).print(table, style="dim")


def rows(arms: Sequence[Arm]) -> list[tuple[str, ...]]:
    """The label of each figure and its values."""
    figures = [arm.figures for arm in arms]
    return [
        ("tokens", *(str(f.tokens) for f in figures)),
        ("rounds", *(str(f.rounds) for f in figures)),
        ("acceptance rate α", *map(acceptance, arms)),
        ("block efficiency τ", *(number(f.block_efficiency, 2) for f in figures)),
        ("mean token time", *(milliseconds(f.mean_token_time_ms) for f in figures)),
        ("loop time", *(milliseconds(f.loop_time_ms) for f in figures)),
        (
            "draft / target / verify",
            *(shares(f.draft_share, f.target_share, f.verify_share) for f in figures),
        ),
        ("prefill", *(milliseconds(f.prefill_ms) for f in figures)),
        ("time to first token", *(milliseconds(f.ttft_ms) for f in figures)),
        ("finish", *(arm.record.finish for arm in arms)),
        *([("law", *map(law, arms))] if any(lossy(arm.cell) for arm in arms) else ()),
    ]


def law(arm: Arm) -> str:
    """Whether its text is the target's own, where a rule is known to change that."""
    return f"lossy: {arm.cell.method.verifier}" if lossy(arm.cell) else "the target's"


def acceptance(arm: Arm) -> str:
    """Alpha with what it stands on, or why there is none."""
    alpha, drafted = arm.figures.alpha, arm.figures.drafted
    if alpha is not None:
        return f"{alpha:.3f}{' (over tested drafts by rule)' if arm.by_rule else ''}"
    if not drafted:
        return f"{NA} (nothing drafted)"
    rule = arm.cell.method.verifier.name  # block and trees are not tested token by token
    return f"{NA} ({'tree' if rule == 'match' else rule})"


def summary(arm: Arm) -> str:
    """The figures that matter most, in one line."""
    figures = arm.figures
    return (
        f"{figures.tokens} tokens, α {acceptance(arm)}, τ {number(figures.block_efficiency, 2)}, "
        f"{milliseconds(figures.mean_token_time_ms)} per token"
    )


def number(value: float | None, digits: int) -> str:
    """A figure, or that it does not apply."""
    return NA if value is None else f"{value:.{digits}f}"


def milliseconds(value: float | None) -> str:
    """A time."""
    return NA if value is None else f"{value:.2f} ms"


def shares(*values: float | None) -> str:
    """Parts of the decode time."""
    return " / ".join(NA if value is None else f"{value:.0%}" for value in values)
