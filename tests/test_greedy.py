"""Greedy speculative sampling is greedy decoding, token for token, in float32.

Three witnesses: the loop with drafts, the loop without, and transformers' own `generate`. The
models are chosen so that nothing is won cheaply: outputs vary, the best two logits are never near a
tie (the rounding of a pass over K + 1 tokens is about 1e-6), and drafts are accepted in part. All
of that is asserted too.
"""

import pytest
import torch

from spsbench.engines.eager import EagerLM
from spsbench.methods.drafters.model import ModelDrafter, NoDrafter
from spsbench.methods.drafters.ngram import NgramDrafter
from spsbench.methods.verifiers.block import Block
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.sps import Sps
from tests.decoding import output, rounds_of
from tests.oracles.models import laws
from tests.variants import first

PROMPT = [1, 2, 3, 4, 5]
TOKENS = 120
SIZE = {"vocab": 97, "scale": 6.0, "dtype": torch.float32}
VERIFIERS = [Sps(), Block(), Match()]

NAMES = ["llama", "gpt2", "qwen3"]
architectures = pytest.mark.parametrize("architecture", NAMES)


def decoded(target, drafter, verifier, k):
    made = rounds_of(
        EagerLM(target), drafter, TOKENS, prompt=PROMPT, k=k, seed=k, verifier=verifier
    )
    return output(made), made


@pytest.fixture(scope="module")
def greedy(model):
    """What transformers' own greedy search makes of the prompt."""
    known = {}

    def generate(architecture):
        if architecture not in known:
            ids = torch.tensor([PROMPT])
            mask = torch.ones_like(ids)
            out = model(architecture, **SIZE).generate(
                ids, attention_mask=mask, max_new_tokens=TOKENS, do_sample=False
            )
            known[architecture] = out[0].tolist()[len(PROMPT) :]
        return known[architecture]

    return generate


@architectures
def test_the_models_make_the_comparison_hard_and_fair(model, greedy, architecture):
    output = greedy(architecture)
    assert len(output) == TOKENS
    assert len(set(output)) > 20
    best = laws(model(architecture, **SIZE), PROMPT + output).topk(2).values
    assert float((best[:, 0] - best[:, 1]).min()) > 1e-4


@architectures
def test_without_drafts(model, greedy, architecture):
    output, made = decoded(model(architecture, **SIZE), NoDrafter(), Sps(), 0)
    assert output == greedy(architecture)
    assert len(made) == TOKENS


@pytest.mark.parametrize(
    ("architecture", "k"), first(4, zip(NAMES * 2, (1, 2, 4, 8, 3, 6), strict=True))
)
def test_with_a_draft_model(model, greedy, architecture, k):
    draft = model(architecture, noise=0.05, **SIZE)
    drafter = ModelDrafter(EagerLM(draft))
    output, made = decoded(model(architecture, **SIZE), drafter, VERIFIERS[(k + k // 4) % 3], k)
    assert output == greedy(architecture)
    assert 0 < sum(turn.accepted for turn in made) < sum(turn.drafted for turn in made)


@pytest.mark.slow
@architectures
@pytest.mark.parametrize("k", range(1, 9))
@pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda v: type(v).__name__)
def test_every_rule_with_a_draft_model(model, greedy, architecture, k, verifier):
    drafter = ModelDrafter(EagerLM(model(architecture, noise=0.05, **SIZE)))
    output, _ = decoded(model(architecture, **SIZE), drafter, verifier, k)
    assert output == greedy(architecture)


@pytest.mark.parametrize(("architecture", "k"), list(zip(NAMES, (4, 1, 8), strict=True)))
def test_with_prompt_lookup(model, greedy, architecture, k):
    output, made = decoded(model(architecture, **SIZE), NgramDrafter(2, 1), Match(), k)
    assert output == greedy(architecture)
    assert 0 < sum(turn.accepted for turn in made) < sum(turn.drafted for turn in made)
