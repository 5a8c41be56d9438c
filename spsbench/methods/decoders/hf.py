"""transformers' own `generate`, plain and assisted, as a black box: the peer to beat.

K goes where it is really read (the assistant's generation config), with a constant schedule and no
confidence threshold; top-k is off unless asked for; the sampling is the cell's. Its loop tells
nothing of acceptance; what reaches a streamer is one block of tokens a round, which is enough for
the counts. Stop strings are honoured afterwards: transformers misses them inside a block.

Its prefill and its first round are one pass, which nothing tells apart: what that took longer than
the median of the later rounds is given as the prefill, as the native loop's is in no round either.
"""

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from statistics import median
from types import MappingProxyType
from typing import Any, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from spsbench.engines.limits import rows_of
from spsbench.errors import UsageError
from spsbench.loop.decode import cut
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Decoder, Limits, NoiseStream, Purpose, Round, Stand, Stop


class Blocks:
    """A streamer that keeps each block of tokens with the time at which it came."""

    def __init__(self) -> None:
        self.blocks: list[tuple[list[int], float]] = []

    def put(self, tokens: Tensor) -> None:
        """One block; the first is the prompt."""
        self.blocks.append((tokens.flatten().tolist(), time.perf_counter()))

    def end(self) -> None:
        """Nothing is left to do."""


class HfDecoder(Decoder):
    """`target.generate(...)`, with `draft` as its assistant when `k` is above 0.

    Args:
        target_model, draft_model: as loaded; their generation configs are not changed.
        k: tokens drafted a round.
        vocab_size: tokens of the vocabulary; rows of padding beyond are never drawn.
        lookup: the longest n-gram of transformers' prompt lookup, instead of an assistant; 0 = off.
        tokenizer, assistant_tokenizer: of models with different vocabularies. transformers then
            goes its universal way, which changes the assistant for good: a copy is lent to it.

    Raises:
        UsageError: models whose numbers of rows differ, without their tokenizers.
    """

    live = False  # all rounds come at the end
    runs_engines = False
    translates = True
    rules = MappingProxyType({"model": "sps", "none": "sps", "ngram": "match"})

    @classmethod
    def open(cls, stand: Stand) -> Self:
        """Over the models as they are; prompt lookup is transformers' own."""
        method = stand.cell.method
        lookup = dict(method.drafter.args).get("n", 2) if method.drafter.name == "ngram" else 0
        translated = stand.draft_tokenizer is not None
        return cls(
            stand.target_model,
            stand.draft_model,
            method.k or 0,
            stand.vocab_size,
            int(lookup),
            stand.tokenizer if translated else None,
            stand.draft_tokenizer,
        )

    def __init__(
        self,
        target_model: PreTrainedModel,
        draft_model: PreTrainedModel | None,
        k: int,
        vocab_size: int | None = None,
        lookup: int = 0,
        tokenizer: PreTrainedTokenizerBase | None = None,
        assistant_tokenizer: PreTrainedTokenizerBase | None = None,
    ) -> None:
        self._target, self._draft, self._k, self._lookup = target_model, draft_model, k, lookup
        self.prefill_seconds = 0.0  # of the last generation; in its first round if there is but one
        rows = [rows_of(model) for model in (target_model, draft_model or target_model)]
        if rows[0] != rows[1] and assistant_tokenizer is None:
            raise UsageError(
                f"--decoder hf with models of {rows[0]} and {rows[1]} rows: expected the same, "
                "else transformers needs both tokenizers. Use --decoder native"
            )
        self._padding = list(range(vocab_size or rows[0], rows[0]))
        self._tokenizers: dict[str, Any] = {}
        if draft_model is not None and assistant_tokenizer is not None:
            self._draft = lent(draft_model)
            self._tokenizers = {"tokenizer": tokenizer, "assistant_tokenizer": assistant_tokenizer}

    def __call__(
        self,
        prompt: Sequence[int],
        *,
        limits: Limits,
        warp: Callable[[Tensor], Tensor],
        noise: NoiseStream,
        stop: Stop,
    ) -> Iterator[Round]:
        """Continue `prompt`; all rounds come when the whole generation is over.

        Raises:
            TypeError: a warp that is not temperature, top-k and top-p.
        """
        if not isinstance(warp, Warp):
            raise TypeError(f"transformers cannot run the warp {warp!r}: expected sampling.Warp")
        if limits.max_new_tokens == 0:
            return
        blocks = self._generate(list(prompt), limits, warp, noise)
        output: list[int] = []
        times = [at - before for (_, before), (_, at) in pairwise(blocks)]
        self.prefill_seconds = max(0.0, times[0] - median(times[1:] or times))
        times[0] -= self.prefill_seconds
        for (tokens, _), seconds in zip(blocks[1:], times, strict=True):
            kept, finish = cut(tokens, output, limits, limits.max_new_tokens, stop)
            drafted = self._k if self._draft is not None or self._lookup else 0
            accepted = min(len(tokens) - 1, drafted)
            tested = min(accepted + 1, drafted)
            yield Round(drafted, tested, accepted, kept, None, seconds, finish)
            if finish is not None:
                return
            output += kept

    def _generate(
        self, prompt: list[int], limits: Limits, warp: Warp, noise: NoiseStream
    ) -> list[tuple[list[int], float]]:
        blocks = Blocks()
        ids = torch.tensor([prompt], device=self._target.device)
        seed = int(noise.round(0).uniform(Purpose.PLAIN, 1)[0] * 2**53)
        config = config_of(limits, warp, self._padding)
        if self._lookup and self._k:
            config.prompt_lookup_num_tokens = self._k
            config.max_matching_ngram_size = self._lookup
        with torch.random.fork_rng(cards(self._target)), self._assistant() as assistant:
            torch.manual_seed(seed)  # transformers draws from the global generator: lend it one
            self._target.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                generation_config=config,
                streamer=blocks,
                **assistant,
            )
        return blocks.blocks

    @contextmanager
    def _assistant(self) -> Iterator[dict[str, Any]]:
        """The argument that makes generation assisted, K set where transformers reads it."""
        draft = self._draft
        if draft is None or self._k == 0:
            yield {}
            return
        before = draft.generation_config
        config = copy.deepcopy(before)
        config.num_assistant_tokens = self._k
        config.num_assistant_tokens_schedule = "constant"
        config.assistant_confidence_threshold = 0.0
        draft.generation_config = config
        try:
            yield {"assistant_model": draft, **self._tokenizers}
        finally:
            draft.generation_config = before


def cards(model: PreTrainedModel) -> list[torch.device]:
    """The CUDA devices that `model` draws on; asked for all, torch would take memory on each."""
    return [model.device] if model.device.type == "cuda" else []


_LENT: WeakKeyDictionary[PreTrainedModel, PreTrainedModel] = WeakKeyDictionary()


def lent(draft: PreTrainedModel) -> PreTrainedModel:
    """The copy of `draft` that transformers may change: always one, for it caches what it did."""
    if draft not in _LENT:
        _LENT[draft] = copy.deepcopy(draft)
    return _LENT[draft]


def config_of(limits: Limits, warp: Warp, padding: Sequence[int] = ()) -> GenerationConfig:
    """The cell's sampling in transformers' words; ids of `padding` are never drawn."""
    sampling: dict[str, Any] = {"do_sample": False}
    if warp.temperature > 0:
        sampling = {
            "do_sample": True,
            "temperature": warp.temperature,
            "top_k": warp.top_k,
            "top_p": warp.top_p,
        }
    return GenerationConfig(
        max_new_tokens=limits.max_new_tokens,
        eos_token_id=sorted(limits.eos) or None,
        pad_token_id=0,
        suppress_tokens=list(padding) or None,
        **sampling,
    )
