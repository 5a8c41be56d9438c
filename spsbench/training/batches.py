"""Texts cut into batches: which ones a step sees is a function of the seed and the step."""

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from spsbench.training.generation import Text
from spsbench.training.students.student import Batch, Student


class Batches:
    """Texts of like lengths together, in an order that each epoch shuffles anew.

    Args:
        texts: to learn from.
        tokens: of a batch, padding included.
        seed: of the order.
        device: where they go.
    """

    def __init__(self, texts: Sequence[Text], tokens: int, seed: int, device: torch.device) -> None:
        self.texts, self.tokens, self.seed, self._device = list(texts), tokens, seed, device
        longest = max(len(prompt) + len(text) for prompt, text in texts)
        self.each = max(1, tokens // longest)
        self.epoch = -(-len(self.texts) // self.each)

    def chosen(self, step: int) -> list[int]:
        """The texts of a step, by number."""
        epoch, place = divmod(step, self.epoch)
        order = torch.Generator().manual_seed((self.seed * 7919 + epoch) % (1 << 62))
        shuffled = torch.randperm(len(self.texts), generator=order).tolist()
        return shuffled[place * self.each : (place + 1) * self.each]

    def parts(self, step: int, tokens: int) -> list[list[int]]:
        """The texts of a step, a few at a time: as many as `tokens` hold, longest together."""
        numbers = sorted(self.chosen(step), key=lambda i: (sum(map(len, self.texts[i])), i))
        parts: list[list[int]] = []
        while numbers:
            longest = sum(map(len, self.texts[numbers[-1]]))
            count = max(1, tokens // longest)
            parts.append(numbers[-count:])
            numbers = numbers[:-count]
        return parts

    def together(self, numbers: Sequence[int]) -> Batch:
        """Some of the texts as one batch."""
        return together([self.texts[i] for i in numbers], self._device)


def together(texts: Sequence[Text], device: torch.device) -> Batch:
    """Some texts as one batch, padded at their ends."""
    lengths = [len(prompt) + len(text) for prompt, text in texts]
    ids: Tensor = torch.zeros(len(texts), max(lengths), dtype=torch.int64)
    for row, (prompt, text) in enumerate(texts):
        ids[row, : lengths[row]] = torch.tensor(prompt + text)
    starts = torch.tensor([len(prompt) for prompt, _ in texts])
    return Batch(ids.to(device), starts.to(device), torch.tensor(lengths).to(device))


# Texts that a draft model writes itself while it learns, to be judged by its target at each place.

Key = tuple[int, int]
Continue = Callable[[Student, Sequence[list[int]], Key, int], list[list[int]]]
"""What a student writes after some prompts: by what it is now, a key of the draw, and how much."""


@dataclass(frozen=True, slots=True)
class OwnTexts:
    """A share of the steps, spread evenly; a text is a function of the weights, seed and step.

    Attributes:
        share: of the steps, 0..1.
        write: draws the texts.
        device: where they go.
    """

    share: float
    write: Continue
    device: torch.device

    def is_due(self, step: int) -> bool:
        """Whether step number `step` (from 0) is on texts of its own."""
        return math.floor((step + 1) * self.share) > math.floor(step * self.share)

    def batch(self, student: Student, texts: Sequence[Text], key: Key) -> Batch:
        """The prompts of some texts, each continued by the student for as long as its text was."""
        prompts = [prompt for prompt, _ in texts]
        written = self.write(student, prompts, key, max(len(text) for _, text in texts))
        made = [
            (prompt, mine[: len(text)]) for (prompt, text), mine in zip(texts, written, strict=True)
        ]
        return together(made, self.device)


# In which numbers products are computed: bfloat16 where this machine is faster with it.

ROWS, WIDTH, INNER = 512, 576, 1536
TIMES = 5
FASTER = 0.75  # of the time of float32, or less
FLOAT32, BFLOAT16 = "float32", "bfloat16"


def quicker(device: torch.device) -> str:
    """The numbers that products of a training are computed in: `bfloat16` or `float32`.

    On a CPU it is measured: a product of a layer's size, in processor time of this thread.
    """
    if device.type == "cuda":
        return BFLOAT16
    if device.type != "cpu":
        return FLOAT32
    spent = {name: _seconds(getattr(torch, name)) for name in (FLOAT32, BFLOAT16)}
    return BFLOAT16 if spent[BFLOAT16] < FASTER * spent[FLOAT32] else FLOAT32


@contextmanager
def products(device: torch.device, numbers: str) -> Iterator[None]:
    """A context in which products are computed so; sums of a loss and weights stay float32."""
    with warnings.catch_warnings():
        # a norm of narrow rows by float32 weights is what is meant; it is one kernel less fused
        warnings.filterwarnings("ignore", "Mismatch dtype between input and weight")
        with torch.autocast(device.type, torch.bfloat16, enabled=numbers == BFLOAT16):
            yield


@torch.inference_mode()
def _seconds(dtype: torch.dtype) -> float:
    rows, weight = torch.ones(ROWS, WIDTH, dtype=dtype), torch.ones(INNER, WIDTH, dtype=dtype)
    return min(_timed(rows, weight) for _ in range(TIMES + 1))


def _timed(rows: Tensor, weight: Tensor) -> float:
    began = time.process_time()
    torch.nn.functional.linear(rows, weight)
    return time.process_time() - began
