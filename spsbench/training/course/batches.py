"""Texts cut into batches: which ones a step sees is a function of the seed and the step."""

from collections.abc import Sequence

import torch
from torch import Tensor

from spsbench.training.students.student import Batch
from spsbench.training.text.writing import Text


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
