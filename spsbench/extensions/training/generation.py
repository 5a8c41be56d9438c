"""Texts that the target writes: many prompts in a batch, sampled by inverse CDF.

Finished rows leave the batch to make room.
"""

from collections.abc import Iterator, Sequence
from inspect import signature
from typing import Any

import torch
from transformers import DynamicCache, DynamicLayer, PreTrainedModel

from spsbench.engines.session.cache import PreallocatedLayer
from spsbench.extensions.training.options import Training
from spsbench.extensions.training.prompts import asks_itself, nothing, user_mark
from spsbench.loop.sampling import Warp, sample
from spsbench.models.tokenizers import encode_chat

ENDED = 8  # finished rows are removed once they exceed 1 / ENDED of the batch


@torch.inference_mode()
def continue_texts(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    most: int,
    warp: Warp,
    ends: frozenset[int],
    vocab: int,
    seed: int,
) -> list[list[int]]:
    """Return the model's continuation of each prompt, including the token that ends it.

    Args:
        model: a transformers model, on its device.
        prompts: prompts of one token or more each.
        most: maximum number of tokens of each continuation.
        warp: temperature and truncation of the distributions.
        ends: tokens that end a text.
        vocab: number of tokens; logits beyond are padding and never sampled.
        seed: seed of the uniforms; token t of prompt i always uses the same uniform.
    """
    device, longest = model.device, max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts], device=device)
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=device)
    draws = torch.Generator().manual_seed(seed % (1 << 62))
    uniforms = torch.rand(len(prompts), most, generator=draws, dtype=torch.float64)
    cache = _cache(model, longest + most)
    takes = signature(model.forward).parameters
    texts: list[list[int]] = [[] for _ in prompts]
    rows = torch.arange(len(prompts))  # the prompt of each remaining row
    for at in range(most):
        model_inputs: dict[str, Any] = {"attention_mask": mask, "past_key_values": cache}
        if "position_ids" in takes:
            model_inputs["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        if "logits_to_keep" in takes:
            model_inputs["logits_to_keep"] = 1
        logits = model(input_ids=ids, use_cache=True, **model_inputs).logits[:, -1, :vocab]
        tokens = sample(warp(logits), uniforms[rows, at]).cpu()
        for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
            if not texts[row] or texts[row][-1] not in ends:
                texts[row].append(token)
        going = torch.tensor([texts[row][-1] not in ends for row in rows.tolist()])
        if not going.any():
            break
        mask = torch.cat([mask, mask.new_ones(len(rows), 1)], 1)
        ids = tokens[:, None].to(device)
        if int((~going).sum()) * ENDED > len(rows):
            remaining = going.nonzero()[:, 0]
            rows = rows[remaining]
            ids, mask = ids[remaining.to(device)], mask[remaining.to(device)]
            cache.batch_select_indices(remaining.to(device))
    return texts


def _cache(model: PreTrainedModel, room: int) -> DynamicCache:
    cache = DynamicCache(config=model.config)
    if all(type(layer) is DynamicLayer for layer in cache.layers):
        cache.layers = [PreallocatedLayer(room) for _ in cache.layers]
    return cache


Text = tuple[list[int], list[int]]  # prompt and continuation


class Writer:
    """Generator of a target's texts in batches; batch i is a function of the seed and i.

    Args:
        model: the target.
        tokenizer: the target's tokenizer.
        eos: tokens that end a text.
        vocab: number of tokens.
        options: number of texts, their length and temperature.
        chat: whether to use the target's chat template.
        prompts: the user's prompts, as `prompts_of` reads them.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Any,
        eos: frozenset[int],
        vocab: int,
        options: Training,
        chat: bool,
        prompts: Sequence[list[int]],
    ) -> None:
        self._model, self._tokenizer, self._options, self._chat = model, tokenizer, options, chat
        self._eos, self._vocab = eos, vocab
        self._prompts = list(prompts)
        self._invented_count = (
            max(0, options.count - len(self._prompts)) if asks_itself(options) else 0
        )
        self._user_batches = -(-len(self._prompts) // options.together)
        self.batches = self._user_batches + -(-self._invented_count // options.together)

    def batch(self, index: int) -> list[Text]:
        """Return batch number `index`: prompts (the user's first) and their continuations."""
        together, invented_index = self._options.together, index - self._user_batches
        if invented_index < 0:
            prompts = self._prompts[index * together : (index + 1) * together]
        else:
            count = min(together, self._invented_count - invented_index * together)
            prompts = list(self._asking(index, count))
        return list(zip(prompts, self._written(prompts, (index, 1)), strict=True))

    def _asking(self, index: int, count: int) -> Iterator[list[int]]:
        if not self._chat:
            yield from [nothing(self._tokenizer, self._eos)] * count
            return
        mark = user_mark(self._tokenizer)
        for question in self._written([mark] * count, (index, 0), self._options.prompt_tokens):
            text = self._tokenizer.decode(question, skip_special_tokens=True).strip()
            if text:
                yield encode_chat(self._tokenizer, [{"role": "user", "content": text}])

    def _written(
        self, prompts: Sequence[list[int]], key: tuple[int, int], most: int | None = None
    ) -> list[list[int]]:
        if not prompts:
            return []
        options = self._options
        return continue_texts(
            self._model,
            prompts,
            most=most or options.tokens,
            warp=Warp(options.temperature, top_p=options.top_p),
            ends=self._eos,
            vocab=self._vocab,
            seed=(options.seed * 1_000_003 + key[0]) * 2 + key[1],
        )
