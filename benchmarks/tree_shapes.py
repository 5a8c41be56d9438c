"""Chains and trees over random models in real shapes: what a round costs, and when a tree wins.

    .venv/bin/python benchmarks/trees.py shapes

Both models are random and know nothing of each other, so that about one token a round is emitted,
whatever is drafted: nothing is learnt of tau, but costs do not depend on the weights. A round over
a plain one is the tau from which anything is won; a round over the chain's is how many times the
chain's tau a tree has to bring. Methods take turns on every prompt, so that a machine's drift falls
on all; intervals are Student's over the prompts.
"""

import math
import time
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

import torch
from transformers import LlamaConfig, PreTrainedConfig, PreTrainedModel, Qwen2Config

from arena.pairs import random_target
from spsbench.audit.exact.table_site import open_over
from spsbench.engines.fast import Fast
from spsbench.loop.decode import decode
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import Warp
from spsbench.loop.types import LM, Limits, Round
from spsbench.methods.schedules.constant import Constant
from spsbench.metrics.intervals import student
from spsbench.plugins import make
from spsbench.spec import Spec

PROMPT = 64  # tokens before the first round
SKIPPED = 2  # rounds at the beginning of a text, in which layers are still traced

SHAPES: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    "smollm2-135m": (
        LlamaConfig,
        {
            "vocab_size": 49152,
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "tie_word_embeddings": True,
        },
    ),
    "qwen2.5-0.5b": (
        Qwen2Config,
        {
            "vocab_size": 151936,
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
        },
    ),
}
DRAFT = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
METHODS: dict[str, tuple[str, int, str]] = {
    # name: drafter, K, verifier; all but the first two draft 10 tokens
    "plain": ("none", 0, "match"),
    "chain of 4": ("model", 4, "sps"),
    "chain of 10": ("model", 10, "sps"),
    "tree of 10": ("tree:shape=2x2x1,siblings=distinct", 3, "traversal"),
    "2 chains of 5": ("chains:n=2", 5, "traversal"),
    "best 10 of topk": ("topk:width=4,nodes=10", 4, "match"),
}


def built(kind: type[PreTrainedConfig], sizes: dict[str, Any], seed: int) -> PreTrainedModel:
    """A random model, packed for the engine `fast`."""
    model = random_target(kind(**sizes), seed)
    Fast().prepare(model, threads=torch.get_num_threads())
    return model


def texts(
    models: Sequence[PreTrainedModel], method: str, prompt: list[int], tokens: int
) -> list[Round]:
    """The rounds of one text."""
    drafter, k, verifier = METHODS[method]
    target, draft = (Fast().session(model) for model in models)
    return list(
        decode(
            prompt,
            target=target,
            drafter=opened(drafter, draft),
            verifier=make("verifiers", Spec.parse(verifier)),
            schedule=Constant(k),
            warp=Warp(),
            noise=PhiloxStream(0, method),
            limits=Limits(tokens),
        )
    )


def opened(drafter: str, lm: LM) -> Any:
    """A drafter over a session."""
    return open_over(lm, Spec.parse(drafter))


def shapes(name: str, prompts: int, length: int) -> list[dict[str, Any]]:
    """Tau, ms a round and ms a token of each method, and what a tree would have to bring."""
    kind, sizes = SHAPES[name]
    began = time.perf_counter()
    models = built(kind, sizes, 0), built(kind, sizes | DRAFT, 1)
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(sizes["vocab_size"], (prompts + 1, PROMPT), generator=draw).tolist()
    seconds: dict[str, list[float]] = {method: [] for method in METHODS}
    taus: dict[str, list[float]] = {method: [] for method in METHODS}
    for turn, prompt in enumerate(ids):
        for method in METHODS:
            rounds = texts(models, method, prompt, length)[SKIPPED:-1]  # the last may be cut
            if turn:  # the first prompt warms up
                seconds[method].append(1e3 * fmean(each.seconds for each in rounds))
                taus[method].append(fmean(len(each.tokens) for each in rounds))
    rows = []
    for method in METHODS:
        figures = {
            "tau": taus[method],
            "ms a round": seconds[method],
            "ms a token": quotients(seconds[method], taus[method]),
            "rounds over plain": quotients(seconds[method], seconds["plain"]),
            "rounds over a chain of 4": quotients(seconds[method], seconds["chain of 4"]),
        }
        told = {name: around(values) for name, values in figures.items()}
        print(f"{method}: " + ", ".join(f"{n} {said(x)}" for n, x in told.items()), flush=True)
        rows.append({"method": method, **told})
    print(f"{time.perf_counter() - began:.0f} s, models and all")
    return rows


def quotients(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Of each prompt."""
    return [a / b for a, b in zip(above, below, strict=True)]


def around(values: Sequence[float]) -> dict[str, float]:
    """A mean, and half of its 95 % interval."""
    half = student(0.975, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return {"mean": fmean(values), "half": half}


def said(figure: dict[str, float]) -> str:
    """With its interval."""
    return f"{figure['mean']:.3g} +- {figure['half']:.2g}"
