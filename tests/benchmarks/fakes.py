"""Engines without a model, for the tests of workers and turns."""

import os
from typing import Any

from arena.contenders.contender import Contender, Setting, Turn

FAST, SLOW = 0.25, 0.5  # seconds a round: exact in binary


def convert(setting: Setting) -> None:
    """Leave a mark."""
    with open(os.path.join(setting.work, "converted"), "a") as file:
        file.write("x")


class Fake(Contender):
    """Answers at once with made-up times; `broken` fails in its SpS, `dying` takes its process."""

    def __init__(self, kind: str) -> None:
        self._kind, self._settled = kind, False

    def load(self, setting: Setting) -> None:
        print("noise on the standard output")
        self._k = setting.k

    def settle(self) -> None:
        self._settled = True

    def arms(self) -> list[str]:
        return ["ars", "sps"]

    def generate(self, arm: str, prompt: list[int], tokens: int) -> Turn:
        if arm == "sps" and self._kind == "broken" and tokens > 8:
            raise ValueError("planted")
        if arm == "sps" and self._kind == "dying" and tokens > 8:
            os._exit(3)
        size = self._k + 1 if arm == "sps" else 1
        seconds = FAST if self._kind == "fast" else SLOW
        blocks = [(size, 9.0), *[(size, seconds)] * (tokens // size), (1, 9.0)]
        return Turn(list(range(prompt[0], prompt[0] + tokens)), blocks)

    def steps(self, prompt: list[int], repeats: int) -> dict[str, list[float]]:
        return {"one": [0.25] * repeats, "block": [0.5] * repeats, "draft": [0.125]}

    def notes(self) -> dict[str, Any]:
        return {
            "settled": self._settled,
            "pid": os.getpid(),
            "threads": os.environ.get("OMP_NUM_THREADS"),
        }


class Reader:
    """A memory of two bytes a second."""

    def read(self, cores: int) -> dict[str, float]:
        return {"made up": float(cores)}
