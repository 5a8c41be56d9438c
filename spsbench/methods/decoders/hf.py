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

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import pairwise
from statistics import median
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from spsbench.engines.eager import context_of, logits_width
from spsbench.errors import DataError, UsageError
from spsbench.loop.decode import cut_block, token_budget
from spsbench.loop.decoder import Decoder, DecoderContext
from spsbench.loop.sampling import Warp
from spsbench.loop.text import to_token_ids
from spsbench.loop.types import Limits, NoiseStream, Purpose, Round, Stop
from spsbench.settings.processors import Processors


class HfRound(NamedTuple):
    """The tokens of one round of transformers' loop; the first block is the prompt."""

    tokens: list[int]
    came: float  # time.perf_counter()
    drafted: int  # tokens that were tried; what came of them are `tokens`


class Blocks:
    """A streamer that keeps each block of tokens, and a hook that counts the drafted tokens."""

    def __init__(self, prompt: int) -> None:
        self.blocks: list[HfRound] = []
        self._length = prompt  # tokens of the text so far
        self._scored = 1

    def watch(self, model: PreTrainedModel, args: Any, kwargs: Mapping[str, Any]) -> None:
        """Note for `put` how many rows the coming pass scores, as a pre-hook of the target.

        They are `logits_to_keep`, else the rows fed from the newest token on. The last pass before
        `put` counts: a model that is its own assistant drafts in those before.
        """
        keep = kwargs.get("logits_to_keep")
        if keep is None:  # not every model can leave rows out; then the rows fed must tell
            fed = kwargs["input_ids"].shape[1]
            keep = fed - self._length + 1 if fed >= self._length else fed
        self._scored = int(keep)

    def put(self, tokens: Tensor) -> None:
        """Record one block, the time, and the tokens that were drafted for it."""
        block = HfRound(tokens.flatten().tolist(), time.perf_counter(), self._scored - 1)
        self._length += len(block.tokens) if self.blocks else 0
        self.blocks.append(block)

    def end(self) -> None:
        """Do nothing: the blocks are complete."""


class HfDecoder(Decoder):
    """`target.generate(...)`, with `draft` as its assistant when `k` is above 0.

    The models are as loaded; their generation configs are not changed. `k` tokens are drafted a
    round. Rows beyond `vocab_size` are padding and never drawn. `processors` apply to texts (None:
    there are none). `lookup` is the longest n-gram of transformers' prompt lookup, in place of an
    assistant; 0 = off.
    """

    runs_engines = False
    rules = MappingProxyType({"model": "sps", "none": "sps", "ngram": "match"})

    @classmethod
    def open(cls, context: DecoderContext) -> Self:
        """Return a decoder over the cell's models.

        Drafter ngram becomes transformers' prompt lookup; without a constant K nothing is drafted.
        UsageError: options that transformers lacks, or models with other numbers of logits.
        """
        cell = context.cell
        options = dict(cell.drafter.args)
        if ours := options.keys() & {"match", "source"}:
            raise UsageError(
                f"`decoder` hf with `drafter` {cell.drafter}: transformers' prompt lookup has no "
                f"{' or '.join(sorted(ours))}. Use `decoder` native"
            )
        lookup = options.get("n", 2) if cell.drafter.name == "ngram" else 0
        models = context.target_model, context.draft_model
        return cls(*models, cell.k or 0, context.vocab_size, int(lookup), context.processors)

    def __init__(
        self,
        target_model: PreTrainedModel,
        draft_model: PreTrainedModel | None,
        k: int,
        vocab_size: int | None = None,
        lookup: int = 0,
        processors: Processors | None = None,
    ) -> None:
        self._processors = processors
        self._target, self._draft, self._k, self._lookup = target_model, draft_model, k, lookup
        self.prefill_seconds = 0.0  # the last generation's; in its first round if there is but one
        rows = [logits_width(model) for model in (target_model, draft_model or target_model)]
        if rows[0] != rows[1]:
            raise UsageError(
                f"`decoder` hf with models of {rows[0]} and {rows[1]} rows: expected the same. "
                "Use `decoder` native"
            )
        self._padding = list(range(vocab_size or rows[0], rows[0]))

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
        prompt = to_token_ids(prompt)
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
            kept, finish = cut_block(tokens, output, limits, budget, stop)
            accepted = min(len(tokens) - 1, drafted)
            tested = min(accepted + 1, drafted)
            yield Round(drafted, tested, accepted, kept, None, seconds, finish)
            if finish is not None:
                return
            output += kept

    def _check_draft(self, prompt: int, budget: int) -> None:
        """Raise DataError if `prompt` + `budget` - 1 tokens exceed the context of the draft.

        Of a look-up it is the target's, which must hold K more. Where nothing is drafted: no error.
        """
        if not self._k or (self._draft is None and not self._lookup):
            return
        limit = context_of(self._draft or self._target)
        further = self._k if self._draft is None else 0  # a look-up does not stop at the context
        if limit is not None and prompt + budget - 1 + further > limit:
            raise DataError(
                f"{prompt} prompt tokens, {budget} new ones and a draft: the context that it is "
                f"made in holds {limit}, and transformers cannot go on without it. Lower "
                "`max_new_tokens`, or use `decoder` native"
            )

    def _generate(
        self, prompt: list[int], limits: Limits, budget: int, warp: Warp, noise: NoiseStream
    ) -> list[HfRound]:
        """Run `generate`, seeded by `noise`; return its blocks, the first of them the prompt.

        The models' generation configs and the global generator are as before when it returns.
        """
        blocks = Blocks(len(prompt))
        ids = torch.tensor([prompt], device=self._target.device)
        seed = int(noise.round(0).uniform(Purpose.PLAIN, 1)[0] * 2**53)
        limits = replace(limits, max_new_tokens=budget)
        config = config_of(limits, warp, self._padding, self._processors)
        if self._lookup and self._k:
            config.prompt_lookup_num_tokens = self._k
            config.max_matching_ngram_size = self._lookup
        device = self._target.device
        with (
            torch.random.fork_rng([device] if device.type == "cuda" else []),  # others cost memory
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
            )
        return blocks.blocks

    @contextmanager
    def _assistant(self) -> Iterator[dict[str, Any]]:
        """Yield keywords of `generate`, {} without a draft; K is in its config for the block."""
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
            yield {"assistant_model": draft}


@contextmanager
def instead(model: PreTrainedModel, config: GenerationConfig) -> Iterator[None]:
    """Replace the generation config of `model` for the time of a `with` block."""
    before = model.generation_config
    model.generation_config = config
    try:
        yield
    finally:
        model.generation_config = before


def config_of(
    limits: Limits, warp: Warp, padding: Sequence[int] = (), processors: Processors | None = None
) -> GenerationConfig:
    """Return limits, sampling and processors as a generation config; `padding` is never drawn.

    Temperature 0 is greedy, whatever the other values of the warp are.
    """
    sampling: dict[str, Any] = {"do_sample": False}
    if warp.temperature > 0:
        sampling = {"do_sample": True, **asdict(warp)}
    if processors is not None:
        sampling |= {
            "sequence_bias": [[[token], bias] for token, bias in processors.biases] or None,
            "repetition_penalty": processors.repetition,
            "no_repeat_ngram_size": processors.ngram,
            "bad_words_ids": [list(word) for word in processors.words] or None,
            "min_new_tokens": processors.least or None,
        }
    return GenerationConfig(
        max_new_tokens=limits.max_new_tokens,
        eos_token_id=sorted(limits.eos) or None,
        pad_token_id=0,
        suppress_tokens=list(padding) or None,
        **sampling,
    )
