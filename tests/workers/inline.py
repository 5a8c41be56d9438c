"""Workers in the process that tests: real work, everything pickled."""

import pickle
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace

from spsbench.workers import map_units
from spsbench.workers.work import Runner


class LostError(Exception):
    """The process of a worker is said to have ended."""


class InlineWorker:
    retries = False

    def __init__(self, pool, name):
        self._pool, self.name = pool, name
        self._runner = Runner(pool.packed)

    def submit(self, unit):
        self._pool.given.append(unit)
        future = Future()
        try:
            if self._pool.dies(unit):
                raise LostError("SIGKILL")
            passed = pickle.loads(pickle.dumps(unit))
            future.set_result(pickle.loads(pickle.dumps(self._runner.run(passed))))
        except Exception as error:
            future.set_exception(error)
        return future

    def is_lost(self, error):
        return isinstance(error, LostError)

    def revive(self, error):
        self._pool.lost += 1
        self.name = f"again {self._pool.lost}"
        self._runner = Runner(self._pool.packed)
        return str(error)

    def end_if_stopped(self):
        pass

    def end(self):
        pass


class Pool:
    """Two workers; `dies` says whether a worker is lost over a unit."""

    def __init__(self, work, dies):
        self.packed, self.dies = pickle.dumps(work), dies
        self.given, self.lost = [], 0
        self.workers = [InlineWorker(self, f"w{n}") for n in range(2)]


def first(count):
    """Whether a worker is lost: the first `count` times."""
    left = iter(range(count))
    return lambda unit: next(left, None) is not None


def inline(monkeypatch, dies=lambda unit: False, with_work=lambda work: work):
    """Have the driver work with them; the pools that it opened, in order."""
    made = []

    @contextmanager
    def workers_of(settings, work, threads, device):
        made.append(Pool(with_work(replace(work, threads=threads, beside=2)), dies))
        yield made[-1].workers, list

    monkeypatch.setattr(map_units, "workers_of", workers_of)
    return made
