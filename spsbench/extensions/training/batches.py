"""Batches of texts for a step, the target's output over them, and the dtype of products.

The texts of a step are a function of the seed and the step.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from spsbench.extensions.training.texts import Text
from spsbench.hardware.environment import cpu_fields
from spsbench.loop.drafter_context import TargetParts


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Texts of the target, padded at their ends.

    Row r of a text is the position whose distribution predicts token r + 1. Rows of a batch are
    numbered in order: row r of text b is b * T + r.

    Attributes:
        ids: [B, T] tokens; 0 beyond the end.
        starts: [B] tokens of the prompt.
        lengths: [B] tokens in all.
    """

    ids: Tensor
    starts: Tensor
    lengths: Tensor

    @property
    def in_continuation(self) -> Tensor:
        """Return [B * T] bool: rows that predict a token of the continuation."""
        rows = torch.arange(self.ids.shape[1], device=self.ids.device)
        return ((rows >= self.starts[:, None] - 1) & (rows < self.lengths[:, None] - 1)).flatten()

    @property
    def next_tokens(self) -> Tensor:
        """Return [B * T] the token after each row; 0 after the last."""
        return torch.nn.functional.pad(self.ids[:, 1:], (0, 1)).flatten()


def collate(texts: Sequence[Text], device: torch.device) -> TextBatch:
    """Return one or more texts as one batch, padded at their ends."""
    whole = [torch.tensor(prompt + text) for prompt, text in texts]
    starts = torch.tensor([len(prompt) for prompt, _ in texts], device=device)
    lengths = torch.tensor([len(ids) for ids in whole], device=device)
    return TextBatch(pad_sequence(whole, batch_first=True).to(device), starts, lengths)


def collate_within(texts: Sequence[Text], tokens: int, device: torch.device) -> list[TextBatch]:
    """Return texts in batches of at most `tokens` tokens, padding included, or of one text."""
    count = max(1, tokens // max(len(prompt) + len(text) for prompt, text in texts))
    return [collate(texts[i : i + count], device) for i in range(0, len(texts), count)]


class Batches:
    """Texts of each step, one or as many as fit `tokens` with padding; each epoch shuffles them."""

    def __init__(self, texts: Sequence[Text], tokens: int, seed: int) -> None:
        self.texts, self.seed = list(texts), seed
        longest = max(len(prompt) + len(text) for prompt, text in texts)
        self.count = max(1, tokens // longest)  # texts of a step
        self.epoch = -(-len(self.texts) // self.count)  # steps

    def chosen(self, step: int) -> list[int]:
        """Return the numbers of a step's texts, fewer in the last step of an epoch."""
        epoch, place = divmod(step, self.epoch)
        order = torch.Generator().manual_seed((self.seed * 7919 + epoch) % (1 << 62))
        shuffled = torch.randperm(len(self.texts), generator=order).tolist()
        return shuffled[place * self.count : (place + 1) * self.count]

    def parts(self, step: int, tokens: int) -> list[list[int]]:
        """Return a step's texts, by number, in parts of at most `tokens` tokens, or of one text.

        Padding counts. The longest texts come first, and each part is in ascending order of length.
        """
        numbers = sorted(self.chosen(step), key=lambda i: (sum(map(len, self.texts[i])), i))
        parts: list[list[int]] = []
        while numbers:
            longest = sum(map(len, self.texts[numbers[-1]]))
            count = max(1, tokens // longest)
            parts.append(numbers[-count:])
            numbers = numbers[:-count]
        return parts


@dataclass(frozen=True, slots=True)
class TeacherOutput:
    """Output of the target over a batch, without gradients."""

    hidden: Mapping[int, Tensor] | Sequence[Tensor]  # [B, T, D] by transformers' layer, -1: last
    logits: Tensor  # [B, T, V]


class Teacher:
    """A loaded target, run over batches without gradients; logits from `vocab` on are left out."""

    def __init__(self, model: PreTrainedModel, vocab: int) -> None:
        self.model, self.vocab = model, vocab
        self.parts = TargetParts.of(model, vocab)

    @torch.no_grad()
    def teach(self, batch: TextBatch) -> TeacherOutput:
        """Return all hidden states and the logits of tokens over a batch, without gradients."""
        out = self.model(input_ids=batch.ids, use_cache=False, output_hidden_states=True)
        return TeacherOutput(out.hidden_states, out.logits[..., : self.vocab])


FLOAT32, BFLOAT16 = "float32", "bfloat16"
FAST_BFLOAT16 = {"avx512_bf16", "amx_bf16"}  # flags of processors that multiply bfloat16 faster


def compute_dtype(device: torch.device) -> str:
    """Return `bfloat16` where the device multiplies it faster, else `float32`: for products."""
    flags = set(cpu_fields().get("flags", "").split())
    fast = device.type == "cuda" or (device.type == "cpu" and flags & FAST_BFLOAT16)
    return BFLOAT16 if fast else FLOAT32


@contextmanager
def products(device: torch.device, dtype: str) -> Iterator[None]:
    """Compute products in `dtype` inside the context; losses and weights stay float32."""
    with warnings.catch_warnings():
        # a norm of bfloat16 rows by float32 weights is intended; one kernel fewer is fused
        warnings.filterwarnings("ignore", "Mismatch dtype between input and weight")
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype == BFLOAT16):
            yield
