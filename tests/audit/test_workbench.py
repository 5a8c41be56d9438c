"""Jobs of an audit in workers: heard in their order, and errors keep their kind."""

from dataclasses import dataclass
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest

from spsbench.audit.statistical.texts import AuditJob, Prompt, jobs, perform_in_order
from spsbench.errors import DataError, UnavailableError
from spsbench.settings.execution import Access
from tests.workers.inline import inline

PROMPTS = [Prompt("one", (1, 2)), Prompt("two", (3,))]


@dataclass(frozen=True)
class Echo:
    """Does nothing but return the job, or an error at one repeat."""

    fails: int | None = None

    def prepare(self) -> None:
        pass

    def __call__(self, unit: tuple[int, AuditJob]) -> Any:
        if unit[1].repeat == self.fails:
            return DataError("a model that is damaged")
        return [], []


def performed(count):
    bench = SimpleNamespace(cell=None, referee=SimpleNamespace(edge=0.0))
    heard = []

    def hear(job, examined):
        heard.append(job)
        return len(heard) == count

    perform_in_order(bench, jobs(PROMPTS), hear, workers=2, access=Access())
    return heard


def test_jobs_are_heard_in_order(monkeypatch):
    inline(monkeypatch, with_work=lambda work: Echo())
    assert performed(9) == list(islice(jobs(PROMPTS), 9))


def test_an_error_keeps_its_kind(monkeypatch):
    inline(monkeypatch, with_work=lambda work: Echo(fails=1))
    with pytest.raises(DataError, match="damaged"):
        performed(9)


def test_a_job_that_ends_its_worker_is_one_line(monkeypatch):
    inline(monkeypatch, lambda unit: unit[0] == 3, lambda work: Echo())
    with pytest.raises(UnavailableError):
        performed(9)
