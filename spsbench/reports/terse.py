"""Tables for a screen: what all rows share is said once, long names are short, few columns stay."""

from collections.abc import Collection, Iterator, Sequence
from itertools import count

from spsbench.reports.figures import TextTable

LONG = 30  # characters of a name, beyond which it is said once


def shortened(table: TextTable) -> TextTable:
    """Return a table without what all rows share in their settings, and with short names.

    Lines above its remarks say what was taken out; the remarks use the short names, too.
    """
    headings, rows, notes = [*table.headings], [[*row] for row in table.rows], []
    theirs = {at for at, (_, paper) in enumerate(table.sources) if paper}
    for heading in ("task", "setting"):
        if heading not in headings[: table.names]:
            continue
        at = headings.index(heading)
        if shared := take_shared(rows, at, theirs):
            notes.append(f"All rows: {shared}.")
        if not any(row[at] for row in rows) and rows:
            headings.pop(at)
            for row in rows:
                row.pop(at)
    remarks = list(table.remarks)
    if "method" in headings[: table.names]:
        at = headings.index("method")
        short = short_names([row[at] for row in rows])
        for row in rows:
            row[at] = short.get(row[at], row[at])
        for name in sorted(short, key=len, reverse=True):
            remarks = [line.replace(name, short[name]) for line in remarks]
        notes += [f"{letter}: {name}." for name, letter in short.items()]
    names = table.names - (len(table.headings) - len(headings))
    first = [line for line in remarks if line.startswith("Incomplete: ")]
    further = [line for line in remarks if line not in first]
    return table._replace(
        headings=headings, rows=rows, names=names, remarks=[*first, *notes, *further]
    )


def take_shared(rows: Sequence[list[str]], at: int, theirs: Collection[int] = ()) -> str:
    """Take out of a column the parts, between commas, that all its texts have; return them.

    Args:
        theirs: numbers of rows that are not of the run, such as the paper's.
    """
    texts = [row[at].split(", ") for i, row in enumerate(rows) if row[at] and i not in theirs]
    shared = [part for part in texts[0] if all(part in text for text in texts)] if texts else []
    for row in rows:
        row[at] = ", ".join(part for part in row[at].split(", ") if part not in shared)
    return ", ".join(shared)


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Return a letter for each long name."""
    long = [name for name in dict.fromkeys(names) if len(name) > LONG]
    return dict(zip(long, letters(), strict=False))


def letters() -> Iterator[str]:
    """Yield `SpS A` to `SpS Z`, then `SpS A2` and so on."""
    for turn in count(1):
        for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ":
            yield f"SpS {letter}{turn if turn > 1 else ''}"
