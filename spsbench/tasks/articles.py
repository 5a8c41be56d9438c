"""Where the articles of XSum come from: the hub, a file, or the generator of the bundled pair."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from spsbench.errors import DataError
from spsbench.tasks import hubfile
from spsbench.tasks.corpora import news
from spsbench.tasks.corpora.news import NewsItem
from spsbench.tasks.reader import distinct, rows

MINI_SEED = 2023
MINI_MOST = 100_000

# Our own words in XSum's manner: the article goes on where its opening, the summary, was taken off.
WRITTEN = NewsItem(
    "written-example",
    "The route closed when its operator said that the price of fuel had made it impossible to go "
    "on. Islanders have since relied on fishing boats and two flights a week to reach shops, "
    "schools and the hospital. The council has agreed to pay a new company £1.2m over three years "
    'to run two sailings a day. "People here have missed weddings and funerals," councillor Ailsa '
    'Munro said. "This is about being part of the country again." The first boat is due to leave '
    "the harbour on 3 April.",
    "A ferry link between a remote island and the mainland is to be restored after two years "
    "without a regular crossing.",
)


class Articles(NamedTuple):
    """The articles of a benchmark, in a fixed order, and the worked example before each."""

    title: str
    items: list[NewsItem]
    example: NewsItem


def articles(data: str, count: int) -> Articles:
    """The articles that `data` names: `auto`, `hub`, `mini`, or else a path.

    Raises:
        ValueError: a count out of range.
        SpsError: data that is missing, out of reach, or cannot be used.
    """
    if not 1 <= count <= MINI_MOST:
        raise ValueError(f"count is {count}: expected 1..{MINI_MOST}")
    if data == "mini":
        return _mini(count)
    if data == "hub":
        return _hub()
    if data != "auto":
        return _file(Path(data).expanduser())
    if hubfile.cached() is None and (why := hubfile.out_of_reach()) is not None:
        mini = _mini(count)
        return mini._replace(title=f"{mini.title}; XSum itself is not cached and {why}")
    return _hub()


def _mini(count: int) -> Articles:
    items: dict[str, NewsItem] = {}
    for item in news.items(MINI_SEED, "heldout"):
        items.setdefault(item.id, item)  # the same facts may come again in other words
        if len(items) == count:
            break
    example = next(news.items(MINI_SEED, "train"))
    title = f"XSum-mini, not XSum: {count:,} generated held-out articles, seed {MINI_SEED}"
    return Articles(title, list(items.values()), example)


def _hub() -> Articles:
    read = _file(hubfile.fetch())
    source = f"{hubfile.REPOSITORY} at {hubfile.REVISION[:8]}"
    title = f"XSum test split, {len(read.items):,} articles ({source}; the paper has 11,305)"
    return read._replace(title=title)


def _file(path: Path) -> Articles:
    items, repeated = distinct(_entries(path))
    if not items:
        raise DataError(f"no articles ({path}): expected one a line. Check the path")
    notes = [f"{repeated:,} repeated ones left out"] if repeated else []
    if silent := sum(not item.summary for item in items):
        notes.append(f"{silent:,} without a summary, which score 0")
    title = ", ".join([f"XSum articles of {path}: {len(items):,}", *notes])
    return Articles(title, items, WRITTEN)


def _entries(path: Path) -> Iterator[tuple[str, NewsItem]]:
    for row in rows(path):
        texts = (_on_one_line(row.text(key)) for key in ("document", "summary"))
        yield row.where, NewsItem(row.name("id"), *texts)


def _on_one_line(text: str) -> str:
    """`text` with single spaces: a line of an article must not look like the layout around it."""
    return " ".join(text.split())
