"""Greedy texts are those of transformers' own `generate`: every engine, drafter and exact rule.

In float32. Nothing is won cheaply, and that is asserted: texts vary, the best two logits are never
near a tie (the rounding of a pass over K + 1 tokens is about 1e-6), drafts are accepted in part.
"""

import copy
from functools import cache

import pytest
import torch

from spsbench.audit.exact.tables import open_over
from spsbench.plugins import make
from spsbench.registry import entries
from spsbench.spec import Spec
from tests.decoding import output, rounds_of
from tests.oracles.models import ARCHITECTURES, laws, tiny

PROMPT, TOKENS = [1, 2, 3, 4, 5], 80
SIZE = {"vocab": 97, "scale": 6.0, "dtype": torch.float32}
ENGINES = [entry.name for entry in entries("engines")]
METHODS = [  # drafter, rule, K
    ("none", "sps", 0),
    ("model", "sps", 1),
    ("model", "block", 4),
    ("model", "match", 8),
    ("ngram:n=2,min_n=1", "match", 4),
    ("tree:shape=3x2x1x1", "match", 5),
    ("tree:shape=3x2,siblings=distinct", "recursive", 5),
    ("topk:width=4,nodes=24", "match", 5),
    ("sequoia:nodes=40", "match", 5),
    ("chains", "traversal", 5),
]
QUICK = {  # every engine, method and architecture: chains and trees on each
    (ENGINES[number % len(ENGINES)], ARCHITECTURES[number % 4], method)
    for number, method in enumerate(METHODS)
}


@cache
def wanted(architecture):
    """What transformers' own greedy search makes of the prompt."""
    ids = torch.tensor([PROMPT])
    settings = {"attention_mask": torch.ones_like(ids), "do_sample": False, "pad_token_id": 0}
    text = tiny(architecture, **SIZE).generate(ids, max_new_tokens=TOKENS, **settings)
    return text[0].tolist()[len(PROMPT) :]


@cache
def prepared(engine, architecture, noise):
    """An engine, and a model that it has prepared."""
    opened, model = (
        make("engines", Spec(engine)),
        copy.deepcopy(tiny(architecture, noise=noise, **SIZE)),
    )
    opened.prepare(model, threads=1)
    return opened, model


def session(engine, architecture, noise=0.0):
    opened, model = prepared(engine, architecture, noise)
    return opened.session(model)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_models_make_the_comparison_hard_and_fair(architecture):
    text = wanted(architecture)
    assert len(text) == TOKENS
    assert len(set(text)) > 20
    best = laws(tiny(architecture, **SIZE), PROMPT + text).topk(2).values
    assert float((best[:, 0] - best[:, 1]).min()) > 1e-4


@pytest.mark.parametrize(
    ("engine", "architecture", "method"),
    [
        pytest.param(*row, marks=() if row in QUICK else pytest.mark.slow)
        for row in ((e, a, m) for e in ENGINES for a in ARCHITECTURES for m in METHODS)
    ],
    ids=str,
)
def test_a_greedy_text_is_that_of_transformers(engine, architecture, method):
    drafter, verifier, k = method
    draft = open_over(session(engine, architecture, 0.05), Spec.parse(drafter))
    parts = {"prompt": PROMPT, "k": k, "seed": k, "verifier": make("verifiers", Spec(verifier))}
    rounds = rounds_of(session(engine, architecture), draft, TOKENS, **parts)
    assert output(rounds) == wanted(architecture)
    if k:
        assert 0 < sum(turn.accepted for turn in rounds) < sum(turn.drafted for turn in rounds)
    else:
        assert len(rounds) == TOKENS
