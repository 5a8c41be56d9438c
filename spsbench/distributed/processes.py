"""Workers that are processes of this machine: no other software, and no other machine."""

import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait

from spsbench.distributed.protocol import Event, Lost, Opener, Piece

PROGRAM = (
    "import sys; from spsbench.distributed.child import main; main(sys.argv[1], int(sys.argv[2]))"
)
END = 5.0  # seconds to end in


class Processes:
    """`count` of them. They end with the driver, even a killed one: their pipe does.

    Args:
        opener: what each is to do.
    """

    def __init__(self, opener: Opener, count: int) -> None:
        self._opening = pickle.dumps(opener)
        self._number = 0
        self._there: dict[str, tuple[subprocess.Popen[bytes], Connection]] = {}
        for _ in range(count):
            self._start()

    @property
    def coming(self) -> int:
        """All of them: who is lost is replaced at once."""
        return len(self._there)

    def pids(self) -> dict[str, int]:
        """Worker -> its process."""
        return {name: process.pid for name, (process, _) in self._there.items()}

    def give(self, worker: str, piece: Piece) -> None:
        """One that is dead is noticed by `wait`."""
        try:
            self._there[worker][1].send(piece)
        except OSError:
            return

    def wait(self, seconds: float) -> Sequence[Event]:
        """What they have sent, and who has ended."""
        pipes = {pipe: name for name, (_, pipe) in self._there.items()}
        found: list[Event] = []
        for pipe in wait(list(pipes), seconds):
            name = pipes[pipe]  # type: ignore[index]
            try:
                found.append(self._there[name][1].recv())
            except (EOFError, OSError, pickle.UnpicklingError):
                found.append(Lost(name, self._end(name)))
                self._start()
        return found

    def close(self) -> None:
        """Kill them: what they were at is not recorded, and is made again."""
        for process, pipe in self._there.values():
            pipe.close()
            process.kill()
        for process, _ in self._there.values():
            process.wait()
        self._there.clear()

    def _start(self) -> None:
        self._number += 1
        name = f"process {self._number}"
        ours, theirs = socket.socketpair()
        with theirs:
            # apart from our signals: Ctrl-C is the driver's affair. -P: see `score_apart`
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM, name, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        pipe = Connection(ours.detach())
        self._there[name] = process, pipe
        try:
            pipe.send(sys.path)
            pipe.send_bytes(self._opening)
        except OSError:
            return  # noticed by `wait`

    def _end(self, name: str) -> str:
        """Why it ended."""
        process, pipe = self._there.pop(name)
        pipe.close()
        try:
            code = process.wait(END)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"
