"""Ranks as forks of the process that tests: torch and transformers are imported already."""

import multiprocessing
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

import torch

from spsbench.engines.channel import end
from spsbench.engines.company import LostRankError
from spsbench.library.ranks import follow

FORK = multiprocessing.get_context("fork")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def team(
    size: int,
    work: Callable[..., Any],
    *,
    dies: int | None = None,
    of: signal.Signals = signal.SIGKILL,
) -> Any:
    """What `work` returns on rank 0 of `size`; the rank `dies` is hit when work asks for it."""
    here, there = FORK.Pipe(duplex=False)
    port = free_port()
    others = [FORK.Process(target=_follow, args=(rank, size, port)) for rank in range(1, size)]
    for process in others:
        process.start()
    victim = None if dies is None else others[dies - 1].pid
    first = FORK.Process(target=_lead, args=(size, port, work, there, victim, of))
    first.start()
    there.close()
    try:
        answer = here.recv() if here.poll(120) else None
        if dies is not None:
            others[dies - 1].kill()  # it may only stand still
        for process in (first, *others):
            process.join(30)
        codes = [process.exitcode for process in (first, *others)]
    finally:
        for process in (first, *others):
            if process.is_alive():
                process.kill()
    return answer, codes


def _environment(rank: int, size: int, port: int) -> None:
    named = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in named.items()}
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    torch.set_num_threads(1)


def _follow(rank: int, size: int, port: int) -> None:
    _environment(rank, size, port)
    try:
        follow()
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
) -> None:
    _environment(0, size, port)
    try:
        answer.send(work() if victim is None else work(lambda: os.kill(victim, of)))
        end()
    except Exception as error:
        answer.send(error)
        os._exit(1)
    os._exit(0)
