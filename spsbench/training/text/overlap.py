"""Whether a text is one of the benchmark's: runs of words that it shares with a task's prompt."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from spsbench.tasks import hubfile
from spsbench.tasks.reader import rows
from spsbench.training.text.named import task_named
from spsbench.training.text.paragraphs import paragraphs

RUN = 13  # words (Brown et al. 2020, appendix C)
SHARE = 0.5  # of the runs of a text; phrases alone are no overlap
TASKS = ("humaneval", "xsum:data=mini")  # those whose texts come with the package
HUB = "xsum:data=hub"  # where it is cached
KEYS = ("prompt", "document", "text")  # of a file's rows: what may be a text of it


class Overlap:
    """The texts of tasks and files, as runs of words.

    Args:
        named: tasks and files.

    Raises:
        SpsError: a file that is not there, or is no data.
    """

    def __init__(self, named: Iterable[str] = TASKS) -> None:
        self._whole: dict[str, int] = {}
        self._places: list[str] = []
        found = [_distinct("")]
        for name in named:
            for where, text in _texts(name):
                self._whole.setdefault(" ".join(text.split()), len(self._places))
                self._places.append(f"{name} {where}")
                found.append(_distinct(text))
        self._counts = np.array([len(own) for own in found[1:]], dtype=np.int64)
        mixed = np.concatenate(found)
        order = mixed.argsort(kind="stable")
        self._runs = mixed[order]
        self._owners = np.repeat(np.arange(len(self._places)), self._counts)[order]

    def of(self, text: str) -> str | None:
        """`humaneval HumanEval/3`, where half of that prompt's words, or of the text's, are shared.

        None where there is no such prompt.
        """
        if (same := self._whole.get(" ".join(text.split()))) is not None:
            return self._places[same]
        mine = _distinct(text)
        low, high = (self._runs.searchsorted(mine, side) for side in ("left", "right"))
        shared = high > low
        if not shared.any():
            return None
        pairs = zip(low[shared], high[shared], strict=True)
        owners = np.concatenate([self._owners[a:b] for a, b in pairs])
        known, times = np.unique(owners, return_counts=True)
        if shared.sum() >= SHARE * len(mine):
            return self._places[int(known[times.argmax()])]
        part = times / self._counts[known]
        most = int(part.argmax())
        return self._places[int(known[most])] if part[most] >= SHARE else None


def kept_apart(named: Iterable[str]) -> list[str]:
    """What no text may be of: the package's tasks, XSum if it is cached, what a user names."""
    return [*TASKS, *([HUB] if hubfile.cached() is not None else []), *named]


def runs(text: str) -> Iterator[int]:
    """Every `RUN` words in a row, as a number."""
    words = text.lower().split()
    return (hash(tuple(words[i : i + RUN])) for i in range(len(words) - RUN + 1))


def _distinct(text: str) -> np.ndarray:
    return np.unique(np.fromiter(runs(text), dtype=np.int64))


def _texts(name: str) -> Iterator[tuple[str, str]]:
    """Where each text of a task or a file is, and itself."""
    path = Path(name).expanduser()
    if path.suffix == ".txt":
        for number, part in enumerate(paragraphs(path, "--not-from"), start=1):
            yield f"paragraph {number}", part
    elif path.exists():
        for row in rows(path):
            key = next((key for key in KEYS if key in row.values), KEYS[0])
            yield row.where.removeprefix(name).strip(":"), row.text(key)
    else:
        task = task_named(name, "--not-from", "texts of a test")
        for sample in task.samples(lambda prompt: True):
            yield sample.id, sample.prompt
