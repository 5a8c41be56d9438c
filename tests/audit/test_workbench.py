"""Workers of an audit: what fails in one is a line of the command, not a traceback of its own."""

from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import pytest

from spsbench.audit.statistical import jobs
from spsbench.errors import DataError, UnavailableError

JOB = jobs.AuditJob(True, jobs.Prompt("one", (1, 2)), 0)


@pytest.mark.parametrize("error", [MemoryError(), DataError("a model that is damaged")])
def test_worker_that_cannot_start_raises_at_its_first_job(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(jobs, "ModelCache", fail)
    monkeypatch.setattr(jobs, "_WORKER", [])
    jobs._start(None, 0.0, True)  # type: ignore[arg-type]
    with pytest.raises(type(error)) as raised:
        jobs._perform(JOB)
    assert raised.value is error
    assert capfd.readouterr() == ("", "")


class Killed:
    """A pool whose workers are killed."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def submit(self, *_: object) -> "Future[object]":
        future: Future[object] = Future()
        future.set_exception(BrokenProcessPool("terminated abruptly"))
        return future

    def shutdown(self, **_: object) -> None:
        pass


def test_worker_that_is_killed_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "ProcessPoolExecutor", Killed)
    bench: Any = jobs.Workbench(*[None] * 3, Examined())  # type: ignore[arg-type]
    performed: Callable[..., Any]
    with (
        pytest.raises(UnavailableError, match=r"one of 2 workers was ended from outside: expected"),
        jobs.in_order(bench, 2, True) as performed,
    ):
        list(performed([JOB]))


class Examined:
    edge = 0.0
