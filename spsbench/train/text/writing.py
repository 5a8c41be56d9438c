"""The target writes: prompts in batches, by transformers' own generate."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from spsbench.models.loader import encode_chat
from spsbench.settings.training import Training
from spsbench.train.text.asking import nothing, prompts_of, user_mark

TOGETHER = 32  # texts in a batch
Text = tuple[list[int], list[int]]  # a prompt and what was written


class Writer:
    """Texts of a target, a batch at a time; batch i is a function of the seed and i.

    Args:
        model: the target.
        tokenizer: its own.
        eos: tokens that end a text.
        asked: how many texts, how long, at which temperature.
        chat: in the target's template.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Any,
        eos: frozenset[int],
        vocab: int,
        asked: Training,
        chat: bool,
    ) -> None:
        self._model, self._tokenizer, self._asked, self._chat = model, tokenizer, asked, chat
        self._eos, self._vocab = eos, vocab
        self._prompts = prompts_of(asked, tokenizer, chat) if asked.prompts else None
        self.batches = -(
            -(asked.count if self._prompts is None else len(self._prompts)) // TOGETHER
        )

    def given(self, index: int) -> list[list[int]] | None:
        """The prompts of a batch; None: the target asks itself."""
        if self._prompts is None:
            return None
        return self._prompts[index * TOGETHER : (index + 1) * TOGETHER]

    def batch(self, index: int, given: Sequence[list[int]] | None = None) -> list[Text]:
        """Batch number `index`: prompts, and what the target wrote after each.

        Args:
            given: its prompts, where another writer read them.
        """
        prompts = list(self._asking(index) if given is None else given)
        return list(zip(prompts, self._written(prompts, (index, 1)), strict=True))

    def _asking(self, index: int) -> Iterator[list[int]]:
        if (prompts := self.given(index)) is not None:
            yield from prompts
            return
        count = min(TOGETHER, self._asked.count - index * TOGETHER)
        if not self._chat:
            yield from [nothing(self._tokenizer, self._eos)] * count
            return
        mark = user_mark(self._tokenizer)
        for said in self._written([mark] * count, (index, 0), self._asked.prompt_tokens):
            text = self._tokenizer.decode(said, skip_special_tokens=True).strip()
            if text:
                yield encode_chat(self._tokenizer, [{"role": "user", "content": text}])

    @torch.no_grad()
    def _written(
        self, prompts: Sequence[list[int]], key: tuple[int, int], most: int | None = None
    ) -> list[list[int]]:
        if not prompts:
            return []
        asked, model = self._asked, self._model
        longest = max(map(len, prompts))
        pad = min(self._eos, default=0)
        ids = torch.tensor([[pad] * (longest - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        drawn = asked.temperature > 0
        options: dict[str, Any] = {"do_sample": drawn}
        if drawn:
            options |= {"temperature": asked.temperature, "top_p": asked.top_p, "top_k": 0}
        config = GenerationConfig(
            max_new_tokens=most or asked.tokens,
            pad_token_id=pad,
            eos_token_id=sorted(self._eos) or None,
            suppress_tokens=list(range(self._vocab, _rows(model))) or None,
            **options,
        )
        before, model.generation_config = model.generation_config, GenerationConfig()
        seed = (asked.seed * 1_000_003 + key[0]) * 2 + key[1]
        try:
            with torch.random.fork_rng(devices=_devices(model)):
                torch.manual_seed(seed % (1 << 62))
                out = model.generate(
                    ids.to(model.device),
                    attention_mask=mask.to(model.device),
                    generation_config=config,
                )
        finally:
            model.generation_config = before
        return [self._cut(row) for row in out[:, longest:].tolist()]

    def _cut(self, row: list[int]) -> list[int]:
        """Up to the first token that ends a text, itself included."""
        for at, token in enumerate(row):
            if token in self._eos:
                return row[: at + 1]
        return row


def _rows(model: PreTrainedModel) -> int:
    return int(model.get_output_embeddings().weight.shape[0])


def _devices(model: PreTrainedModel) -> list[Any]:
    return [] if model.device.type == "cpu" else [model.device]
