"""A worker in a process of its own, at the end of a pipe."""

import os
import pickle
import select
import sys
from multiprocessing.connection import Connection
from threading import Thread

from spsbench.distributed.protocol import Done, Failed, Hand, Joined, Piece, Refused
from spsbench.errors import SpsError, UnavailableError, first_line


def main(name: str, descriptor: int) -> None:
    """Work until the pipe ends, as it does with the driver, however that ends."""
    Thread(target=_end_with, args=(descriptor,), daemon=True).start()
    with Connection(descriptor) as pipe:
        try:
            sys.path[:] = pipe.recv()
            try:
                hand: Hand = pickle.loads(pipe.recv_bytes())()
                pipe.send(Joined(name, hand.hello()))
            except SpsError as error:
                pipe.send(Refused(name, error))
                return
            except (ImportError, AttributeError, TypeError) as error:  # another code than ours
                pipe.send(Refused(name, unfit(error)))
                return
            while True:
                piece: Piece = pipe.recv()
                pipe.send(answer(name, hand, piece))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return


def _end_with(descriptor: int) -> None:
    """End at once when the other end is closed: nobody is left to whom the piece could be told."""
    waiting = select.poll()
    waiting.register(descriptor, 0)  # its end is told in any case
    waiting.poll()
    os._exit(0)


def unfit(error: Exception | str) -> UnavailableError:
    """The line for a worker that cannot be opened."""
    said = error if isinstance(error, str) else f"{type(error).__name__}: {first_line(error)}"
    return UnavailableError(
        f"a worker cannot begin ({said}): expected the driver's spsbench on every machine. "
        "Install the same there"
    )


def answer(name: str, hand: Hand, piece: Piece) -> Done | Failed:
    """What comes of a piece; a hand that fails lives on."""
    try:
        return Done(name, piece.number, hand.work(piece.units))
    except Exception as error:
        return Failed(name, piece.number, f"{type(error).__name__}: {first_line(error)}")
