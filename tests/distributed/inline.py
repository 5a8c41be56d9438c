"""Workers in the process that tests: real hands, everything pickled, answers in another order."""

import pickle
from contextlib import contextmanager
from functools import partial

from spsbench.distributed.child import answer
from spsbench.distributed.protocol import Joined, Lost


class Inline:
    """Two of them; the first `dying` pieces are lost with their worker."""

    def __init__(self, opener, dying=0):
        self._opening, self.dying, self.coming = pickle.dumps(opener), dying, 2
        self._hands, self._events, self._number = {}, [], 0
        self.given = []
        for _ in range(2):
            self._join()

    def give(self, worker, piece):
        self.given.append(piece)
        if self.dying:
            self.dying -= 1
            self._events.append(Lost(worker, "SIGKILL"))
            self._join()
            return
        passed = pickle.loads(pickle.dumps(piece))
        self._events.append(answer(worker, self._hands[worker], passed))

    def wait(self, seconds):
        """The newest first."""
        return [pickle.loads(pickle.dumps(self._events.pop()))] if self._events else []

    def _join(self):
        self._number += 1
        name = f"w{self._number}"
        self._hands[name] = pickle.loads(self._opening)()
        self._events.append(Joined(name, self._hands[name].hello()))


def inline(monkeypatch, module, dying=0):
    """Have `module` work with them; those that it was given, in order."""
    made = []

    @contextmanager
    def given(crew, opener, threads, device):
        made.append(Inline(partial(opener, threads=threads, beside=2), dying))
        yield made[-1]

    monkeypatch.setattr(module, "workers_of", given)
    return made
