"""The paper's algorithms, line for line, are the oracle of the loop: same seed, same tokens.

`reference.py` itself is checked against the distribution: its outputs are enumerated over its
uniforms. Then `decode` over real caches must repeat it token for token, in float64, on four
architectures whose draft model is a noisy copy of the target, so that every branch is met.
"""

import pytest
import torch

from spsbench.audit.exact.cases import warp_probs
from spsbench.audit.exact.enumeration import CellNoise, Walk, following, total_variation_distance
from spsbench.audit.exact.tables import ToyPair
from spsbench.engines.eager import EagerLM
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.reference import autoregressive_sampling, speculative_sampling
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Draft, Purpose
from spsbench.methods.drafters.model import ModelDrafter, NoDrafter
from spsbench.methods.verifiers.sps import Sps
from tests.decoding import output, rounds_of
from tests.oracles.models import ARCHITECTURES, laws
from tests.oracles.written_rules import case
from tests.variants import first

PROMPT = [1, 2, 3, 1, 2]
TOKENS = 20
WARPS = [Warp(), Warp(0.7, top_k=5), Warp(1.3, top_p=0.8), Warp(0)]


def rows(law):
    def model(x):
        return torch.tensor([law(tuple(x[: i + 1])) for i in range(len(x))], dtype=torch.float64)

    return model


class Unwatched(Walk):
    """A walk for code that shows neither drafts nor rounds: both follow from the chosen cells."""

    def round(self, index):
        picked, kept = self.facts.picked, 0
        while picked.get((Purpose.ACCEPT, kept)) == 0:
            kept += 1
        if index:
            self.text += [*self.facts.draft_tokens[:kept], picked[Purpose.FINAL, 0]]
        super().round(index)
        return UnwatchedRound(self, index)


class UnwatchedRound(CellNoise):
    def uniform(self, purpose, n):
        u = super().uniform(purpose, n)
        if purpose is Purpose.DRAFT:
            tokens = [self.walk.facts.picked[purpose, i] for i in range(n)]
            self.walk.facts.draft = Draft(torch.tensor(tokens, dtype=torch.int64), None)
        return u


@pytest.mark.parametrize("seed", first(1, (1, 2)))
@pytest.mark.parametrize("k", [0, 1, 2, 3])
def test_the_algorithms_have_the_target_s_distribution(seed, k):
    """Three tokens after one. K = 0 is Algorithm 1 here."""
    pair = ToyPair(2, seed, ("plain", "plain", "zeros", "equal"))
    q, p = warp_probs(pair.q), warp_probs(pair.p)
    setting = case("sps", Sps(), pair)
    expected = {output: weight for (output, _), weight in setting.expected().items()}
    for upper in False, True:
        found = {}
        script = []
        while script is not None:
            walk = Unwatched(setting, q, p, script, upper=upper)
            if k == 0:
                x = autoregressive_sampling(rows(q), [0], 4, walk)
            else:
                x = speculative_sampling(rows(q), rows(p), [0], k, 4, walk)
            found[tuple(x[1:])] = found.get(tuple(x[1:]), 0.0) + walk.weight
            script = following(walk.trail)
        assert total_variation_distance(found, expected) < 1e-12


def cacheless(model, warp):
    return lambda x: warp(laws(model, x))


def rounds(target, drafter, k, warp, seed, tokens=TOKENS):
    return rounds_of(EagerLM(target), drafter, tokens, prompt=PROMPT, k=k, warp=warp, seed=seed)


@pytest.mark.parametrize("architecture", first(2, ARCHITECTURES))
@pytest.mark.parametrize("warp", WARPS, ids=str)
@pytest.mark.parametrize("k", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_the_loop_repeats_algorithm_2(model, architecture, warp, k):
    target, draft = model(architecture), model(architecture, noise=0.05)
    made = rounds(target, ModelDrafter(EagerLM(draft)), k, warp, seed=k)
    laws_of = cacheless(target, warp), cacheless(draft, warp)
    expected = speculative_sampling(*laws_of, PROMPT, k, len(PROMPT) + TOKENS, PhiloxStream(k))
    assert PROMPT + output(made) == expected


@pytest.mark.parametrize("architecture", first(2, ARCHITECTURES))
@pytest.mark.parametrize("warp", WARPS, ids=str)
def test_no_draft_repeats_algorithm_1(model, architecture, warp):
    target = model(architecture)
    expected = autoregressive_sampling(
        cacheless(target, warp), PROMPT, len(PROMPT) + TOKENS, PhiloxStream(3)
    )
    for drafter, k in (NoDrafter(), 4), (ModelDrafter(EagerLM(target)), 0):
        made = rounds(target, drafter, k, warp, seed=3)
        assert PROMPT + output(made) == expected
        assert len(made) == TOKENS
