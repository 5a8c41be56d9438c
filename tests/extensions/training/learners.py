"""Ranks that learn together, as forks of the process that tests: what each of them returns."""

import os
from collections.abc import Callable
from typing import Any

import torch

from forked import FORK, be_rank, free_port
from spsbench.parallel.process_group import process_group


def learn(size: int, work: Callable[[Any], Any], timeout: float = 60.0) -> list[Any]:
    """What `work` returns, or raises, on each rank; None: it was ended."""
    port = free_port()
    pipes = [FORK.Pipe(duplex=False) for _ in range(size)]
    made = [
        FORK.Process(target=_rank, args=(rank, size, port, work, pipes[rank][1], timeout))
        for rank in range(size)
    ]
    for process in made:
        process.start()
    for _, there in pipes:
        there.close()
    try:
        return [_answer(here) for here, _ in pipes]
    finally:
        for process in made:
            process.join(60)
            if process.is_alive():
                process.kill()


def _answer(here: Any) -> Any:
    try:
        return here.recv() if here.poll(120) else "nothing in two minutes"
    except EOFError:
        return None


def _rank(
    rank: int, size: int, port: int, work: Callable[[Any], Any], answer: Any, timeout: float
) -> None:
    be_rank(rank, size, port)
    torch.set_num_threads(1)
    try:
        answer.send(work(process_group(timeout)))
    except Exception as error:
        answer.send(error)
        os._exit(1)
    os._exit(0)
