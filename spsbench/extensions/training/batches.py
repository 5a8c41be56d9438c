"""Batches of texts for a step, texts that the student writes, and the dtype of products.

The texts of a step are a function of the seed and the step.
"""

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from spsbench.extensions.training.generation import Text
from spsbench.extensions.training.students.student import Batch, Student


class Batches:
    """Batches of texts, in an order that each epoch shuffles anew.

    Args:
        texts: training texts.
        tokens: tokens of a batch, padding included.
        seed: seed of the order.
        device: device of the batches.
    """

    def __init__(self, texts: Sequence[Text], tokens: int, seed: int, device: torch.device) -> None:
        self.texts, self.tokens, self.seed, self._device = list(texts), tokens, seed, device
        longest = max(len(prompt) + len(text) for prompt, text in texts)
        self.count = max(1, tokens // longest)
        self.epoch = -(-len(self.texts) // self.count)

    def chosen(self, step: int) -> list[int]:
        """Return the numbers of the texts of a step."""
        epoch, place = divmod(step, self.epoch)
        order = torch.Generator().manual_seed((self.seed * 7919 + epoch) % (1 << 62))
        shuffled = torch.randperm(len(self.texts), generator=order).tolist()
        return shuffled[place * self.count : (place + 1) * self.count]

    def parts(self, step: int, tokens: int) -> list[list[int]]:
        """Split the texts of a step into parts of at most `tokens` tokens, longest together."""
        numbers = sorted(self.chosen(step), key=lambda i: (sum(map(len, self.texts[i])), i))
        parts: list[list[int]] = []
        while numbers:
            longest = sum(map(len, self.texts[numbers[-1]]))
            count = max(1, tokens // longest)
            parts.append(numbers[-count:])
            numbers = numbers[:-count]
        return parts

    def together(self, numbers: Sequence[int]) -> Batch:
        """Return the texts `numbers` as one batch."""
        return together([self.texts[i] for i in numbers], self._device)


def together(texts: Sequence[Text], device: torch.device) -> Batch:
    """Return texts as one batch, padded at their ends."""
    lengths = [len(prompt) + len(text) for prompt, text in texts]
    ids: Tensor = torch.zeros(len(texts), max(lengths), dtype=torch.int64)
    for row, (prompt, text) in enumerate(texts):
        ids[row, : lengths[row]] = torch.tensor(prompt + text)
    starts = torch.tensor([len(prompt) for prompt, _ in texts])
    return Batch(ids.to(device), starts.to(device), torch.tensor(lengths).to(device))


def together_within(texts: Sequence[Text], tokens: int, device: torch.device) -> list[Batch]:
    """Return texts in batches of at most `tokens` tokens, padding included, or of one text."""
    count = max(1, tokens // max(len(prompt) + len(text) for prompt, text in texts))
    return [together(texts[i : i + count], device) for i in range(0, len(texts), count)]


Key = tuple[int, int]
Continue = Callable[[Student, Sequence[list[int]], Key, int], list[list[int]]]
"""Continuations by a student of some prompts: (student, prompts, key of the draw, length)."""


@dataclass(frozen=True, slots=True)
class OnPolicyTexts:
    """On-policy texts for a share of the steps, which are spread evenly.

    A text is a function of the weights, the seed and the step.

    Attributes:
        share: share of the steps that use on-policy texts, 0..1.
        write: samples the texts.
        device: device of the batches.
    """

    share: float
    write: Continue
    device: torch.device

    def is_due(self, step: int) -> bool:
        """Return whether step number `step` (from 0) uses on-policy texts."""
        return math.floor((step + 1) * self.share) > math.floor(step * self.share)

    def batch(self, student: Student, texts: Sequence[Text], key: Key) -> Batch:
        """Return the prompts of `texts`, each continued by the student to its text's length."""
        prompts = [prompt for prompt, _ in texts]
        written = self.write(student, prompts, key, max(len(text) for _, text in texts))
        continued = [
            (prompt, mine[: len(text)]) for (prompt, text), mine in zip(texts, written, strict=True)
        ]
        return together(continued, self.device)


ROWS, WIDTH, INNER = 512, 576, 1536
TIMES = 5
FASTER = 0.75  # of the time of float32, or less
FLOAT32, BFLOAT16 = "float32", "bfloat16"


def quicker(device: torch.device) -> str:
    """Return the dtype of a training's matrix products: `bfloat16` or `float32`.

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
    """Compute products in dtype `numbers` inside the context; losses and weights stay float32."""
    with warnings.catch_warnings():
        # a norm of bfloat16 rows by float32 weights is intended; one kernel fewer is fused
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
