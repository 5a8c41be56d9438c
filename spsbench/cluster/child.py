"""A worker in a process of its own, at the end of a pipe."""

import sys
from multiprocessing.connection import Connection

from spsbench.cluster.protocol import Done, Failed, Hand, Joined, Piece, Refused
from spsbench.errors import SpsError, first_line


def main(name: str, descriptor: int) -> None:
    """Work until the pipe ends, as it does with the driver, however that ends."""
    with Connection(descriptor) as pipe:
        try:
            sys.path[:] = pipe.recv()
            hand: Hand = pipe.recv()()
            try:
                pipe.send(Joined(name, hand.hello()))
            except SpsError as error:
                pipe.send(Refused(name, error))
                return
            while True:
                piece: Piece = pipe.recv()
                pipe.send(answer(name, hand, piece))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return


def answer(name: str, hand: Hand, piece: Piece) -> Done | Failed:
    """What comes of a piece; a hand that fails lives on."""
    try:
        return Done(name, piece.number, hand.work(piece.units))
    except Exception as error:
        return Failed(name, piece.number, f"{type(error).__name__}: {first_line(error)}")
