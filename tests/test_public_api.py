"""Whoever brings their own model and noise needs `decode`, `types` and nothing else of ours.

The file uses only public names: a table-backed `LM` of ten lines, noise from `random`, and parts
found by their names in the registry.
"""

import itertools
import random
from collections.abc import Sequence

import torch
from torch import Tensor

from spsbench.loop.decode import decode
from spsbench.loop.types import Limits, Purpose, Scores
from spsbench.registry import find


class Bigrams:
    """A language model: which token follows which, and how often."""

    def __init__(self, counts: Sequence[Sequence[float]]) -> None:
        self.logits = torch.tensor(counts).log()
        self.vocab_size, self.limit = len(counts), None
        self.cache: list[int] = []

    @property
    def length(self) -> int:
        return len(self.cache)

    def append(self, tokens: Tensor, keep: int, parents: Tensor | None = None) -> Scores:
        self.cache += tokens.tolist()
        return Scores(self.logits[tokens[len(tokens) - keep :]], {})

    def commit(self, length: int, path: Sequence[int] | None = None) -> None:
        self.cache = self.cache[:length]


class Dice:
    """Noise of the caller's own."""

    def __init__(self, seed: str) -> None:
        self.seed = seed

    def round(self, index: int) -> "Dice":
        return Dice(f"{self.seed}/{index}")

    def uniform(self, purpose: Purpose, n: int) -> Tensor:
        rng = random.Random(f"{self.seed}/{purpose.name}")
        return torch.tensor([rng.random() for _ in range(n)], dtype=torch.float64)


TARGET = [[1.0, 5.0, 2.0], [2.0, 1.0, 5.0], [5.0, 2.0, 1.0]]
DRAFT = [[2.0, 4.0, 2.0], [3.0, 1.0, 4.0], [4.0, 1.0, 3.0]]


def rounds(verifier, k, seed, tokens=12):
    return list(
        decode(
            [0, 1],
            target=Bigrams(TARGET),
            drafter=find("drafters", "model").load()(Bigrams(DRAFT)),
            verifier=find("verifiers", verifier).load()(),
            schedule=find("schedules", "constant").load()(k),
            warp=lambda logits: logits.softmax(-1),
            noise=Dice(str(seed)),
            limits=Limits(tokens),
        )
    )


def test_a_table_and_dice_of_your_own_run_in_the_loop():
    made = rounds("sps", 3, 7)
    assert sum(len(turn.tokens) for turn in made) == 12
    assert made[-1].finish == "length"
    assert [turn.finish for turn in made[:-1]] == [None] * (len(made) - 1)
    assert made == [
        turn._replace(seconds=made[i].seconds, processor=made[i].processor)
        for i, turn in enumerate(rounds("sps", 3, 7))
    ]


def test_bigrams_come_out_as_they_went_in():
    """The frequencies of a long text, at fixed seeds, are the table's within five deviations."""
    for verifier, k in ("sps", 3), ("block", 3), ("match", 2):
        text = [1] + [token for turn in rounds(verifier, k, 5, 1000) for token in turn.tokens]
        for first in range(3):
            after = [b for a, b in itertools.pairwise(text) if a == first]
            for second in range(3):
                expected = TARGET[first][second] / 8
                deviation = (expected * (1 - expected) / len(after)) ** 0.5
                assert abs(after.count(second) / len(after) - expected) < 5 * deviation
