"""Prompts of random token ids, for timing without data or trained weights."""

import random
from collections.abc import Iterator

from spsbench.errors import DataError
from spsbench.settings.task import Fits, Sample, Task

IDS = 256  # every vocabulary has at least this many
MAX_TOKENS = 100_000


class Latency(Task):
    """Random prompts that time a pair of models; the completions mean nothing."""

    name = "latency"
    verifier = "synthetic:alpha=0.8"
    stop: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()

    def __init__(
        self, prompt_tokens: int = 128, count: int = 20, max_new_tokens: int = 128, seed: int = 0
    ) -> None:
        """Choose the number and the lengths of prompts; ValueError: a size out of range.

        Args:
            prompt_tokens: tokens of each prompt.
            count: number of prompts.
            max_new_tokens: tokens to generate for each.
            seed: seed of the prompts.
        """
        for name, value in (
            ("prompt_tokens", prompt_tokens),
            ("count", count),
            ("max_new_tokens", max_new_tokens),
        ):
            if not 1 <= value <= MAX_TOKENS:
                raise ValueError(f"{name} is {value}: expected 1..{MAX_TOKENS}")
        self.max_new_tokens = max_new_tokens
        self._sizes = prompt_tokens, count, seed
        self.title = (
            f"timing only, output meaningless: {count:,} prompts of {prompt_tokens:,} random tokens"
        )
        self.prompt_version = f"random-1-{prompt_tokens}x{count}-{seed}"

    def samples(self, fits: Fits) -> Iterator[Sample]:
        """Yield prompts of token ids, as `17 4 230`; DataError: they do not fit the context."""
        prompt_tokens, count, seed = self._sizes
        for number in range(count):
            draw = random.Random(f"{seed}/{number}")
            prompt = " ".join(str(draw.randrange(IDS)) for _ in range(prompt_tokens))
            if not fits(sample := Sample(str(number), prompt)):
                raise DataError(
                    f"prompts of {prompt_tokens} tokens (latency): expected room for the new ones "
                    "in the shorter of the two contexts. Lower prompt_tokens or `max_new_tokens`"
                )
            yield sample
