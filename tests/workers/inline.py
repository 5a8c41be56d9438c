"""Workers in the process that tests: real work, everything pickled."""

import pickle
from contextlib import contextmanager
from dataclasses import replace

from spsbench.workers import map_units
from spsbench.workers.work import Runner, worker_lost


class InlinePool:
    """Two workers; `dies` says whether a worker is lost over a unit."""

    count = 2

    def __init__(self, work, dies):
        self._runner, self._dies = Runner(pickle.dumps(work)), dies
        self.begun, self._running = [], []

    def begin(self, unit):
        self.begun.append(unit)
        self._running.append(unit)

    def finished(self):
        unit = self._running.pop(0)
        if self._dies(unit):
            raise worker_lost("SIGKILL")
        return [(unit, self._runner.run(pickle.loads(pickle.dumps(unit))))]


def inline(monkeypatch, dies=lambda unit: False, with_work=lambda work: work):
    """Have the driver work with them; return the pools that it opens, in order."""
    pools = []

    @contextmanager
    def pool_of(settings, work, threads, device):
        pools.append(InlinePool(with_work(replace(work, threads=threads, beside=2)), dies))
        yield pools[-1]

    monkeypatch.setattr(map_units, "pool_of", pool_of)
    return pools
