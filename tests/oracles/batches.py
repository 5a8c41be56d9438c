"""Texts of a batch beside those of each prompt."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from transformers import PreTrainedModel

from spsbench.engines.eager import EagerLM
from spsbench.loop import decode as loop
from spsbench.loop.batch import Batch, BatchedLM
from spsbench.loop.drafter_context import Variant
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import Warp
from spsbench.loop.types import LM, Drafter, Limits, Round, Verifier
from spsbench.methods.drafters.chains import Chains
from spsbench.methods.drafters.frontier import Frontier
from spsbench.methods.drafters.model import ModelDrafter, NoDrafter
from spsbench.methods.drafters.ngram import NgramDrafter
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.sps import Sps
from spsbench.methods.verifiers.traversal import Traversal
from tests.oracles.models import tiny

PROMPTS = [1, 2, 3], [4, 5, 6, 7, 8, 9, 10, 11, 1, 2], [3], [5, 6], [9, 8, 7, 6, 5]
METHODS: dict[str, tuple[Callable[[LM], Drafter], Verifier]] = {
    "plain": (lambda lm: NoDrafter(), Sps()),
    "sps": (ModelDrafter, Sps()),
    "ngram": (lambda lm: NgramDrafter(), Match()),
    "tree": (lambda lm: Chains().over(Frontier(lm)), Traversal()),
}
Open = Callable[[PreTrainedModel], LM]


def text(
    prompt: Sequence[int],
    number: int,
    method: str,
    models: tuple[Any, Any],
    session: Open = EagerLM,
    batch: Batch | None = None,
    eos: int = 7,
) -> list[Round]:
    """The rounds of a text, alone or in a row of `batch`."""
    target, draft = (session(model) for model in models)
    if batch is not None:
        target, draft = BatchedLM(target, batch, 1), BatchedLM(draft, batch, 0)
    drafter, verifier = METHODS[method]
    rounds = loop.decode(
        prompt,
        target=target,
        drafter=drafter(draft),
        verifier=verifier,
        schedule=Constant(3),
        warp=Warp(0.9, top_p=0.95),
        noise=PhiloxStream(number),
        limits=Limits(16, frozenset({eos})),
        probs=True,
    )
    return list(rounds)


def texts(size: int, continuous: bool = False, **how: Any) -> list[list[Round]]:
    """The rounds of all prompts, each alone (`size` 0) or in batches."""
    if size == 0:
        return [text(prompt, number, **how) for number, prompt in enumerate(PROMPTS)]
    batch = Batch(size, continuous=continuous)
    calls = [partial(text, p, n, batch=batch, **how) for n, p in enumerate(PROMPTS)]
    return [row.result for row in sorted(batch.run(calls))]


def tokens_of(rounds: list[list[Round]]) -> list[list[list[int]]]:
    return [[each.tokens for each in own] for own in rounds]


def same(some: list[list[Round]], others: list[list[Round]], within: float = 0.0) -> bool:
    """Whether tokens are equal, and the probabilities of all drafted tokens to `within`."""
    probs = [
        [x for own in rounds for r in own for x in (*r.probs.p, *r.probs.q)]
        for rounds in (some, others)
    ]
    return tokens_of(some) == tokens_of(others) and probs[0] == pytest.approx(
        probs[1], abs=within, rel=0
    )


X = [1, 2, 3, 4, 5, 6, 7]
VARIANTS = Variant(frozenset({1, 2})), Variant(frozenset({0}))


def deep(architecture, **more):
    layers = {"n_layer": 4} if architecture == "gpt2" else {"num_hidden_layers": 4}
    return tiny(architecture, **layers, **more)
