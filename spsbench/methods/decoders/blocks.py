"""What transformers' loop can be seen to do, and the one place where it needs a bound."""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import LogitsProcessor, PreTrainedModel


class Block(NamedTuple):
    """What one round of transformers' loop brought; the first is the prompt."""

    tokens: list[int]
    came: float  # time.perf_counter()
    drafted: int  # tokens that were tried; what came of them are `tokens`


class Blocks:
    """A streamer that keeps each block of tokens, and the hook that counts what was drafted."""

    def __init__(self, prompt: int) -> None:
        self.blocks: list[Block] = []
        self._length = prompt  # tokens of the text so far
        self._scored = 1

    def watch(self, model: PreTrainedModel, args: Any, kwargs: Mapping[str, Any]) -> None:
        """A pre-hook of the target: how many rows it is asked to score.

        Of a round's passes the last counts: a model that is its own assistant drafted before.
        """
        keep = kwargs.get("logits_to_keep")
        if keep is None:  # not every model can leave rows out; then the rows fed must tell
            fed = kwargs["input_ids"].shape[1]
            keep = fed - self._length + 1 if fed >= self._length else fed
        self._scored = int(keep)

    def put(self, tokens: Tensor) -> None:
        """One block."""
        block = Block(tokens.flatten().tolist(), time.perf_counter(), self._scored - 1)
        self._length += len(block.tokens) if self.blocks else 0
        self.blocks.append(block)

    def end(self) -> None:
        """Nothing is left to do."""


class Ends(LogitsProcessor):  # type: ignore[misc]
    """Lets prompt lookup draft up to the end of the context: it has no bound of its own there.

    transformers asks the processors, with a score of 1 for every token, whether a looked-up token
    is forbidden; in a text as long as the context all are. Real scores pass as they are.
    """

    def __init__(self, context: int) -> None:
        self._context = context

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores of the token after `input_ids` [1, n]."""
        asked = input_ids.shape[1] >= self._context and bool((scores[scores.isfinite()] == 1).all())
        return torch.full_like(scores, -torch.inf) if asked else scores
