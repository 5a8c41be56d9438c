"""Ranks as forks of the process that tests: torch and transformers are imported already."""

import os
import signal
from collections.abc import Callable
from typing import Any

import torch

from spsbench.models.prepare import follow
from spsbench.parallel.process_group import LostRankError, open_store
from spsbench.parallel.tensor_parallel import channel, end
from tests.processes import FORK, be_rank, free_port


def team(
    size: int,
    work: Callable[..., Any],
    *,
    dies: int | None = None,
    of: signal.Signals = signal.SIGKILL,
    timeout: float = 60.0,
    within: float | None = None,
    before: Callable[[], None] = lambda: None,
) -> Any:
    """Return what `work` returns on rank 0 of `size`, or its error, and all exit codes.

    The rank `dies` is hit when work asks for it. Rank 0 calls `before` after it has opened its
    store, for which the others wait `within` seconds, and before it joins the group.
    """
    here, there = FORK.Pipe(duplex=False)
    port = free_port()
    others = [
        FORK.Process(target=_follow, args=(rank, size, port, within)) for rank in range(1, size)
    ]
    for process in others:
        process.start()
    victim = None if dies is None else others[dies - 1].pid
    given = size, port, work, there, victim, of, timeout, before
    first = FORK.Process(target=_lead, args=given)
    first.start()
    there.close()
    try:
        try:
            answer = here.recv() if here.poll(120) else None
        except EOFError:  # rank 0 ended before its work
            answer = None
        if dies is not None:
            others[dies - 1].kill()  # it may only stand still
        for process in (first, *others):
            process.join(60)
        codes = [process.exitcode for process in (first, *others)]
    finally:
        for process in (first, *others):
            if process.is_alive():
                process.kill()
    return answer, codes


def _environment(rank: int, size: int, port: int) -> None:
    be_rank(rank, size, port)
    torch.set_num_threads(1)


def _follow(rank: int, size: int, port: int, within: float | None) -> None:
    _environment(rank, size, port)
    try:
        follow(within)
    except LostRankError:
        os._exit(69)
    os._exit(0)


def _lead(
    size: int,
    port: int,
    work: Callable[..., Any],
    answer: Any,
    victim: int | None,
    of: signal.Signals,
    timeout: float,
    before: Callable[[], None],
) -> None:
    _environment(0, size, port)
    try:
        open_store()
        before()
        channel(timeout)
        answer.send(work() if victim is None else work(lambda: os.kill(victim, of)))
        end()
    except Exception as error:
        answer.send(error)
        os._exit(1)
    os._exit(0)
