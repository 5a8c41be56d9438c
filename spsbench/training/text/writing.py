"""The target writes: prompts in batches."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from spsbench.loop.sampling import Warp
from spsbench.models.tokenizers import encode_chat
from spsbench.settings.commands import Training
from spsbench.training.text.asking import asks_itself, nothing, user_mark
from spsbench.training.text.many import continued

Text = tuple[list[int], list[int]]  # a prompt and what was written


class Writer:
    """Texts of a target, a batch at a time; batch i is a function of the seed and i.

    Args:
        model: the target.
        tokenizer: its own.
        eos: tokens that end a text.
        asked: how many texts, how long, at which temperature.
        chat: in the target's template.
        prompts: that are given, as `prompts_of` reads them.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Any,
        eos: frozenset[int],
        vocab: int,
        asked: Training,
        chat: bool,
        prompts: Sequence[list[int]],
    ) -> None:
        self._model, self._tokenizer, self._asked, self._chat = model, tokenizer, asked, chat
        self._eos, self._vocab = eos, vocab
        self._prompts = list(prompts)
        self._asked_self = max(0, asked.count - len(self._prompts)) if asks_itself(asked) else 0
        self._given = -(-len(self._prompts) // asked.together)
        self.batches = self._given + -(-self._asked_self // asked.together)

    @property
    def dtype(self) -> torch.dtype:
        """Of the target that writes."""
        dtype: torch.dtype = self._model.dtype
        return dtype

    def given(self, index: int) -> list[list[int]] | int:
        """The prompts of a batch; those that are given come first, then what it asks itself.

        Returns:
            Them, or how many the target is to ask itself.
        """
        together, own = self._asked.together, index - self._given
        if own < 0:
            return self._prompts[index * together : (index + 1) * together]
        return min(together, self._asked_self - own * together)

    def batch(self, index: int, given: list[list[int]] | int | None = None) -> list[Text]:
        """Batch number `index`: prompts, and what the target wrote after each.

        Args:
            given: as another writer of the same training has said.
        """
        asked = self.given(index) if given is None else given
        prompts = list(self._asking(index, asked)) if isinstance(asked, int) else asked
        return list(zip(prompts, self._written(prompts, (index, 1)), strict=True))

    def _asking(self, index: int, count: int) -> Iterator[list[int]]:
        if not self._chat:
            yield from [nothing(self._tokenizer, self._eos)] * count
            return
        mark = user_mark(self._tokenizer)
        for said in self._written([mark] * count, (index, 0), self._asked.prompt_tokens):
            text = self._tokenizer.decode(said, skip_special_tokens=True).strip()
            if text:
                yield encode_chat(self._tokenizer, [{"role": "user", "content": text}])

    def _written(
        self, prompts: Sequence[list[int]], key: tuple[int, int], most: int | None = None
    ) -> list[list[int]]:
        if not prompts:
            return []
        asked = self._asked
        return continued(
            self._model,
            prompts,
            most=most or asked.tokens,
            warp=Warp(asked.temperature, top_p=asked.top_p),
            ends=self._eos,
            vocab=self._vocab,
            seed=(asked.seed * 1_000_003 + key[0]) * 2 + key[1],
        )
