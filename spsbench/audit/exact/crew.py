"""The compatibility table by several processes: each enumerates pairings, one after the other.

The workers are programs of their own (`python -m spsbench.audit.exact.crew`), so that they start
the same from a command, a script without a guard, or a notebook. A pairing goes in by names, its
row comes back, each as a line of JSON.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from queue import Empty, SimpleQueue
from typing import IO

import torch

from spsbench.audit.exact.rules import Pairing, RuleRow, failed, needs_no_table, row_of
from spsbench.spec import Spec

PROGRAM = ("-m", "spsbench.audit.exact.crew")  # of a worker

Told = Callable[[Pairing, RuleRow], None]
"""Called for each row as it comes, in no order."""


def rows_of(
    pairings: Sequence[Pairing],
    workers: int,
    told: Told,
    begun: Callable[[Pairing], None] = lambda each: None,
) -> list[RuleRow]:
    """The rows of `pairings` in their order, from `workers` other processes, or from this one.

    Args:
        told: is called with each row as it comes, in no order.
        begun: is called with each pairing before its enumeration.
    """
    if workers == 1:
        return [_told(each, _row(each, begun), told) for each in pairings]
    waiting: SimpleQueue[int] = SimpleQueue()
    rows: dict[int, RuleRow] = {}
    for index, each in enumerate(pairings):
        if needs_no_table(each):  # the drafter's modules are imported here alone
            rows[index] = _told(each, row_of(each), told)
        else:
            waiting.put(index)
    errors: list[Exception] = []
    done = threading.Condition()

    def serve(worker: Worker) -> None:
        try:
            while not errors:
                index = waiting.get_nowait()
                with done:
                    begun(pairings[index])
                row = worker.row_of(pairings[index])
                with done:
                    rows[index] = _told(pairings[index], row, told)
        except Empty:
            pass
        except Exception as error:
            errors.append(error)

    with crew(min(workers, waiting.qsize())) as hands:
        threads = [threading.Thread(target=serve, args=(hand,), daemon=True) for hand in hands]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
    return [rows[index] for index in range(len(pairings))]


def _row(each: Pairing, begun: Callable[[Pairing], None]) -> RuleRow:
    begun(each)
    return row_of(each)


def _told(each: Pairing, row: RuleRow, told: Told) -> RuleRow:
    told(each, row)
    return row


@contextmanager
def crew(size: int) -> Iterator[list["Worker"]]:
    """So many workers, which end with the block."""
    hands = [Worker() for _ in range(size)]
    try:
        yield hands
    finally:
        for hand in hands:
            hand.end()


class Worker:
    """Another process that enumerates; a new one takes the place of one that has died."""

    def __init__(self) -> None:
        self._process = self._started()
        self._ended = False

    def row_of(self, each: Pairing) -> RuleRow:
        """The row of one pairing."""
        given, answers = pipes(self._process)
        try:
            given.write(json.dumps([asdict(each.verifier), *each[1:]]) + "\n")
            given.flush()
            line = answers.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self._process.wait()
            if not self._ended:
                close(self._process)
                self._process = self._started()
            known = {"verifier": str(each.verifier), "drafter": each.drafter}
            ended = ChildProcessError(f"its process ended with {code}")
            return failed(known | {"schedule": each.schedule}, ended)
        return RuleRow.of(json.loads(line))

    def end(self) -> None:
        """Stop it, whatever it is doing."""
        self._ended = True
        self._process.kill()
        self._process.wait()
        close(self._process)

    def _started(self) -> subprocess.Popen[str]:
        paths = os.pathsep.join(path for path in sys.path if path)
        return subprocess.Popen(
            [sys.executable, *PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
        )


def pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    """Where a worker is told, and where it answers."""
    if process.stdin is None or process.stdout is None:
        raise ValueError("a worker without pipes")
    return process.stdin, process.stdout


def close(process: subprocess.Popen[str]) -> None:
    """Close what leads to a process that has ended."""
    for pipe in pipes(process):
        with suppress(BrokenPipeError):  # a line that it has not read
            pipe.close()


def work() -> None:
    """Be a worker: until the input ends, a line in, a line out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started this one ends it
    torch.set_num_threads(1)
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)  # what a plug-in prints is no answer
        for line in sys.stdin:
            print(answer(line), file=answers, flush=True)


def answer(line: str) -> str:
    """The row of the pairing in a line, as a line."""
    spec, *rest = json.loads(line)
    args = tuple((key, value) for key, value in spec["args"])
    verifier = Spec(spec["name"], args, spec.get("source", ""))
    return json.dumps(asdict(row_of(Pairing(verifier, *rest))))


if __name__ == "__main__":
    work()
