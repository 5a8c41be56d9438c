"""Whether a text is one of the benchmark's: runs of words that it shares with a task's prompt."""

from collections.abc import Iterable, Iterator

from spsbench.plugins import make
from spsbench.spec import Spec

RUN = 13  # words (Brown et al. 2020, appendix C)
SHARE = 0.5  # of the runs of a text; phrases alone are no overlap
TASKS = ("humaneval", "xsum:data=mini")  # those whose texts come with the package


class Overlap:
    """The texts of tasks, as runs of words."""

    def __init__(self, tasks: Iterable[str] = TASKS) -> None:
        """Read them."""
        self._whole: dict[str, str] = {}
        self._runs: dict[int, str] = {}
        self._sets: list[tuple[str, set[int]]] = []
        for name in tasks:
            task = make("tasks", Spec.parse(name))
            for sample in task.samples(lambda prompt: True):
                where = f"{name} {sample.id}"
                self._whole[" ".join(sample.prompt.split())] = where
                found = set(runs(sample.prompt))
                self._sets.append((where, found))
                self._runs |= dict.fromkeys(found, where)

    def of(self, text: str) -> str | None:
        """`humaneval HumanEval/3`, where half of that prompt's words, or of the text's, are shared.

        None where there is no such prompt.
        """
        if (same := self._whole.get(" ".join(text.split()))) is not None:
            return same
        mine = set(runs(text))
        shared = mine & self._runs.keys()
        if not shared:
            return None
        if len(shared) >= SHARE * len(mine):
            return self._runs[min(shared)]
        for where, theirs in self._sets:
            if theirs and len(theirs & shared) >= SHARE * len(theirs):
                return where
        return None


def runs(text: str) -> Iterator[int]:
    """Every `RUN` words in a row, as a number."""
    words = text.lower().split()
    return (hash(tuple(words[i : i + RUN])) for i in range(len(words) - RUN + 1))
