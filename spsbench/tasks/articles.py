"""The articles of XSum: from the hub, from a file, or 1,000 generated ones of this package.

XSum's test split is one parquet file of the hub, pinned by commit, in its cache.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from spsbench.errors import DataError, UnavailableError
from spsbench.tables import read_table
from spsbench.tasks.reader import dataset_rows, drop_repeated, read_rows


class NewsItem(NamedTuple):
    """An article and its summary in one sentence."""

    id: str
    document: str
    summary: str


def layout(done: Sequence[NewsItem], document: str | None = None) -> str:
    """Return items in full, then (for a prompt) an article without its summary."""
    parts = [f"Article: {item.document}\nSummary: {item.summary}" for item in done]
    if document is not None:
        parts.append(f"Article: {document}\nSummary:")
    return "\n\n".join(parts)


REPOSITORY = "EdinburghNLP/xsum"
REVISION = "7d4d486c2f8ef850b1a11aead99b894ff3dd7da9"
FILE = "data/test-00000-of-00001.parquet"
SPLIT = REPOSITORY, FILE, REVISION
# Generated articles like the training data of the bundled pair (recipes/nano/news.py): a worked
# example from the training split, then held-out ones.
MINI = Path(__file__).with_name("articles.jsonl.gz")
MINI_SEED = 2023
MAX_MINI_ARTICLES = 1_000

WRITTEN = NewsItem("written-example", **read_table(__file__, "written.toml"))


class Articles(NamedTuple):
    """The articles of a benchmark, in a fixed order, and the worked example before each."""

    title: str
    items: list[NewsItem]
    example: NewsItem


def articles(data: str, count: int) -> Articles:
    """Return the articles that `data` names: `count` of `mini`, or all of `hub`, a path or an id.

    `auto` is `hub`, or `mini`, whose title says why, where that is out of reach. ValueError: a
    `count` not in 1 to 1,000, for any `data`. SpsError: missing, unreachable or unusable data.
    """
    if not 1 <= count <= MAX_MINI_ARTICLES:
        raise ValueError(f"count is {count}: expected 1..{MAX_MINI_ARTICLES}")
    if data == "mini":
        return _mini(count)
    if data == "hub":
        return _hub()
    if data != "auto":
        return _file(Path(data).expanduser())
    try:
        return _hub()
    except UnavailableError as error:
        mini, (why, *_) = _mini(count), str(error).split(":")
        return mini._replace(title=f"{mini.title}; {why}")


def is_hub_id(data: str) -> bool:
    """Return whether `data` is OWNER/NAME without a folder OWNER here: an id of the hub."""
    return bool(re.fullmatch(r"[\w-]++/[\w.-]++", data)) and not Path(data).parent.exists()


def _mini(count: int) -> Articles:
    example, *items = (item for _, item in islice(_entries(MINI), count + 1))
    title = f"XSum-mini, not XSum: {count:,} generated held-out articles, seed {MINI_SEED}"
    return Articles(title, items, example)


def _hub() -> Articles:
    from spsbench.models.hub import fetch_file

    read = _file(fetch_file(*SPLIT))
    source = f"{REPOSITORY} at {REVISION[:8]}"
    title = f"XSum test split, {len(read.items):,} articles ({source}; the paper has 11,305)"
    return read._replace(title=title)


def _file(path: Path) -> Articles:
    """Return distinct articles of a path or id, `WRITTEN` as example; DataError: none, or bad."""
    items, repeated = drop_repeated(_entries(path))
    if not items:
        raise DataError(f"no articles ({path}): expected one a line. Check the path")
    notes = [f"{repeated:,} repeated ones left out"] if repeated else []
    if silent := sum(not item.summary for item in items):
        notes.append(f"{silent:,} without a summary, which score 0")
    title = ", ".join([f"XSum articles of {path}: {len(items):,}", *notes])
    return Articles(title, items, WRITTEN)


def _entries(path: Path) -> Iterator[tuple[str, NewsItem]]:
    for row in dataset_rows(str(path)) if is_hub_id(str(path)) else read_rows(path):
        # On one line, so that no line of a text looks like the layout of a prompt.
        texts = (" ".join(row.text(key).split()) for key in ("document", "summary"))
        yield row.where, NewsItem(row.name("id"), *texts)
