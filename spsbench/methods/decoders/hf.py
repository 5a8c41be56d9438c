"""transformers' own `generate`, plain and assisted, as a black box: the baseline to compare with.

K is set where transformers reads it (the assistant's generation config), with a constant schedule
and no confidence threshold; top-k is off unless asked for. The sampling is the cell's alone: for
the time of a call the models' own generation configs are empty, since transformers fills open
values from them. Its loop reports no acceptance; but a streamer receives one block of tokens a
round, and the target scores one row more than was drafted, which is enough for the counts. Stop
strings are applied afterwards: transformers misses them inside a block.

Its prefill and its first round are one pass. The time of that pass beyond the median of the later
rounds counts as prefill, because the native loop's rounds exclude the prefill too.
"""

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import pairwise
from statistics import median
from types import MappingProxyType
from typing import Any, NamedTuple, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, PreTrainedModel, PreTrainedTokenizerBase

from spsbench.engines.eager import context_of, rows_of
from spsbench.errors import DataError, UsageError
from spsbench.loop.decode import cut, token_budget
from spsbench.loop.decoder import Decoder, DecoderContext
from spsbench.loop.sampling import Warp
from spsbench.loop.text import token_ids
from spsbench.loop.types import Limits, NoiseStream, Purpose, Round, Stop

_LENT: WeakKeyDictionary[PreTrainedModel, PreTrainedModel] = WeakKeyDictionary()


class Block(NamedTuple):
    """The tokens of one round of transformers' loop; the first block is the prompt."""

    tokens: list[int]
    came: float  # time.perf_counter()
    drafted: int  # tokens that were tried; what came of them are `tokens`


class Blocks:
    """A streamer that keeps each block of tokens, and a hook that counts the drafted tokens."""

    def __init__(self, prompt: int) -> None:
        self.blocks: list[Block] = []
        self._length = prompt  # tokens of the text so far
        self._scored = 1

    def watch(self, model: PreTrainedModel, args: Any, kwargs: Mapping[str, Any]) -> None:
        """Count the rows that the target scores, as a pre-hook of its forward pass.

        Only the last pass of a round counts: a model that is its own assistant drafts before it.
        """
        keep = kwargs.get("logits_to_keep")
        if keep is None:  # not every model can leave rows out; then the rows fed must tell
            fed = kwargs["input_ids"].shape[1]
            keep = fed - self._length + 1 if fed >= self._length else fed
        self._scored = int(keep)

    def put(self, tokens: Tensor) -> None:
        """Record one block."""
        block = Block(tokens.flatten().tolist(), time.perf_counter(), self._scored - 1)
        self._length += len(block.tokens) if self.blocks else 0
        self.blocks.append(block)

    def end(self) -> None:
        """Do nothing: the blocks are complete."""


class Ends(LogitsProcessor):  # type: ignore[misc]
    """A logits processor that lets prompt lookup draft up to the end of the context.

    Prompt lookup has no such bound: transformers asks the processors, with a score of 1 for every
    token, whether a looked-up token is forbidden; in a text as long as the context all are. Real
    scores pass unchanged.
    """

    def __init__(self, context: int) -> None:
        self._context = context

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        is_at_limit = input_ids.shape[1] >= self._context and bool(
            (scores[scores.isfinite()] == 1).all()
        )
        return torch.full_like(scores, -torch.inf) if is_at_limit else scores


class HfDecoder(Decoder):
    """`target.generate(...)`, with `draft` as its assistant when `k` is above 0.

    Args:
        target_model, draft_model: as loaded; their generation configs are not changed.
        k: tokens drafted a round.
        vocab_size: tokens of the vocabulary; rows of padding beyond are never drawn.
        lookup: the longest n-gram of transformers' prompt lookup, instead of an assistant; 0 = off.
        tokenizer, assistant_tokenizer: of models with different vocabularies. transformers then
            goes its universal way, which changes the assistant for good: a copy is lent to it.
    """

    live = False  # all rounds come at the end
    runs_engines = False
    translates = True
    rules = MappingProxyType({"model": "sps", "none": "sps", "ngram": "match"})

    @classmethod
    def open(cls, context: DecoderContext) -> Self:
        cell = context.cell
        options = dict(cell.drafter.args)
        if ours := options.keys() & {"match", "source"}:
            raise UsageError(
                f"`decoder` hf with `drafter` {cell.drafter}: transformers' prompt lookup has no "
                f"{' or '.join(sorted(ours))}. Use `decoder` native"
            )
        lookup = options.get("n", 2) if cell.drafter.name == "ngram" else 0
        translated = context.draft_tokenizer is not None
        return cls(
            context.target_model,
            context.draft_model,
            cell.k or 0,
            context.vocab_size,
            int(lookup),
            context.tokenizer if translated else None,
            context.draft_tokenizer,
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
                f"`decoder` hf with models of {rows[0]} and {rows[1]} rows: expected the same, "
                "else transformers needs both tokenizers. Use `decoder` native"
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
        """Continue `prompt`; all rounds come when the whole generation is over."""
        if not isinstance(warp, Warp):
            raise TypeError(f"transformers cannot run the warp {warp!r}: expected sampling.Warp")
        prompt = token_ids(prompt)
        budget = token_budget(len(prompt), limits, context_of(self._target))
        if budget == 0:
            return
        self._check_draft(len(prompt), budget)
        blocks = self._generate(prompt, limits, budget, warp, noise)
        output: list[int] = []
        times = [block.came - before.came for before, block in pairwise(blocks)]
        self.prefill_seconds = max(0.0, times[0] - median(times[1:] or times))
        times[0] -= self.prefill_seconds
        for (tokens, _, drafted), seconds in zip(blocks[1:], times, strict=True):
            kept, finish = cut(tokens, output, limits, budget, stop)
            accepted = min(len(tokens) - 1, drafted)
            tested = min(accepted + 1, drafted)
            yield Round(drafted, tested, accepted, kept, None, seconds, finish)
            if finish is not None:
                return
            output += kept

    def _check_draft(self, prompt: int, budget: int) -> None:
        """Refuse a text too long for the draft model's context; the last token needs no draft."""
        limit = None if self._draft is None or not self._k else context_of(self._draft)
        if limit is not None and prompt + budget - 1 > limit:
            raise DataError(
                f"{prompt} prompt tokens and {budget} new ones: the draft model's context holds "
                f"{limit}, and transformers cannot go on without it. Lower `max_new_tokens`, or "
                "use `decoder` native"
            )

    def _generate(
        self, prompt: list[int], limits: Limits, budget: int, warp: Warp, noise: NoiseStream
    ) -> list[Block]:
        blocks = Blocks(len(prompt))
        ids = torch.tensor([prompt], device=self._target.device)
        seed = int(noise.round(0).uniform(Purpose.PLAIN, 1)[0] * 2**53)
        config = config_of(replace(limits, max_new_tokens=budget), warp, self._padding)
        ends: dict[str, Any] = {}
        if self._lookup and self._k:
            config.prompt_lookup_num_tokens = self._k
            config.max_matching_ngram_size = self._lookup
            context = context_of(self._target)
            if context is not None and len(prompt) + budget + self._k > context:
                ends["logits_processor"] = [Ends(context)]
        with (
            torch.random.fork_rng(cards(self._target)),
            instead(self._target, GenerationConfig()),
            self._assistant() as assistant,
            self._target.register_forward_pre_hook(blocks.watch, with_kwargs=True),
        ):
            torch.manual_seed(seed)  # transformers draws from the global generator: lend it one
            self._target.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                generation_config=config,
                streamer=blocks,
                **assistant,
                **ends,
            )
        return blocks.blocks

    @contextmanager
    def _assistant(self) -> Iterator[dict[str, Any]]:
        """Return the argument that makes generation assisted, with K set where it is read."""
        draft = self._draft
        if draft is None or self._k == 0:
            yield {}
            return
        config = GenerationConfig(
            num_assistant_tokens=self._k,
            num_assistant_tokens_schedule="constant",
            assistant_confidence_threshold=0.0,
        )
        with instead(draft, config):
            yield {"assistant_model": draft, **self._tokenizers}


@contextmanager
def instead(model: PreTrainedModel, config: GenerationConfig) -> Iterator[None]:
    """Replace the generation config of `model` for the time of a `with` block."""
    before = model.generation_config
    model.generation_config = config
    try:
        yield
    finally:
        model.generation_config = before


def cards(model: PreTrainedModel) -> list[torch.device]:
    """Return the CUDA devices of `model`; seeding all devices would take memory on each."""
    return [model.device] if model.device.type == "cuda" else []


def lent(draft: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of `draft`, which transformers may change: it caches its state in the model."""
    if draft not in _LENT:
        _LENT[draft] = copy.deepcopy(draft)
    return _LENT[draft]


def config_of(limits: Limits, warp: Warp, padding: Sequence[int] = ()) -> GenerationConfig:
    """Translate the cell's sampling to a generation config; ids of `padding` are never drawn."""
    sampling = {"do_sample": True, **asdict(warp)} if warp.temperature > 0 else {"do_sample": False}
    return GenerationConfig(
        max_new_tokens=limits.max_new_tokens,
        eos_token_id=sorted(limits.eos) or None,
        pad_token_id=0,
        suppress_tokens=list(padding) or None,
        **sampling,
    )
