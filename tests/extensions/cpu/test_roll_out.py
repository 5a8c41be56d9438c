"""Roll-outs: several tokens drawn and fed in one call, as one by one."""

import pytest
import torch

from spsbench.extensions.cpu.fast import Fast
from spsbench.extensions.cpu.kernels.native import KINDS
from spsbench.extensions.cpu.kernels.steps import available
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import Warp, sample
from spsbench.loop.types import Context, always
from spsbench.methods.drafters.model import ModelDrafter
from tests.extensions.cpu.programs import MODELS, ready
from tests.variants import first

pytestmark = [pytest.mark.numeric, pytest.mark.skipif(not available(), reason="needs a C compiler")]
dtypes = pytest.mark.parametrize("dtype", KINDS, ids=str)
PROMPT = [5, 3, 60, 2, 44]
WARPS = (
    *(Warp(0.0), Warp(0.4), Warp(), Warp(3.0), Warp(top_p=0.7), Warp(0.8, top_k=7, top_p=0.95)),
    *(Warp(top_k=3), Warp(2.0, min_p=0.2), Warp(top_k=5, top_p=0.8, min_p=0.3), Warp(0.0, top_k=1)),
)


def warmed(architecture="llama", dtype=torch.float32, **more):
    """A model whose programs of one token have been checked."""
    model, _ = ready(architecture, dtype, **more)
    step_by_step(opened(model), Warp(0.0), torch.zeros(8, dtype=torch.float64))
    return model


def opened(model, **more):
    lm = Fast().session(model, **more)
    lm.append(torch.tensor(PROMPT[:-1]), keep=0)
    return lm


def begun(lm):
    return lm.append(torch.tensor(PROMPT[-1:]), keep=1).logits


def step_by_step(lm, warp, u):
    """Tokens and logits of single passes."""
    logits, tokens, found = begun(lm), [], []
    for one in u:
        tokens.append(sample(warp(logits), one[None]))
        logits = lm.append(tokens[-1], keep=1).logits
        found.append(logits)
    return torch.cat(tokens), torch.cat(found)


def uniforms(n, seed=0):
    return torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@dtypes
@pytest.mark.parametrize(
    "architecture", first(2, [n for n, more in MODELS.items() if not more.get("sliding_window")])
)
def test_a_roll_out_is_its_passes_one_by_one(architecture, dtype):
    """The same tokens, logits bit for bit, and the cache for what follows."""
    model = warmed(architecture, dtype)
    for seed, warp in enumerate(WARPS * 3):
        one, other, u = opened(model), opened(model), uniforms(7, seed)
        tokens, logits = step_by_step(one, warp, u)
        found = other.roll_out(begun(other), u, warp)
        assert found is not None
        assert torch.equal(found[0], tokens), warp
        assert torch.equal(found[1], logits), warp
        assert one.length == other.length == len(PROMPT) + 7
        after = [lm.append(torch.tensor([9, 1]), keep=2).logits for lm in (one, other)]
        assert torch.equal(*after)


def test_a_roll_out_draws_by_inverse_cdf():
    """From a uniform on to the next, in the order of tokens; another temperature is another law."""
    model, grid = warmed(), (torch.arange(400, dtype=torch.float64) + 0.5) / 400
    lm, drawn = opened(model), []
    logits = begun(lm)
    for u in grid:
        drawn.append(int(lm.roll_out(logits, u[None], Warp(0.7))[0]))
        lm.commit(len(PROMPT))
    wanted = sample(Warp(0.7)(logits).expand(400, -1), grid).tolist()
    assert drawn == wanted
    assert drawn == sorted(drawn)
    assert drawn != sample(Warp(0.9)(logits).expand(400, -1), grid).tolist()


@pytest.mark.parametrize("why", ["unchecked", "window", "layers", "context"])
def test_a_roll_out_that_cannot_be_is_none_and_feeds_nothing(why):
    more = {"max_position_embeddings": 11} if why == "context" else {}
    model = ready("mistral" if why == "window" else "llama", **more)[0]
    if why == "context":
        lm = opened(model)
        for _ in range(4):
            begun(lm)
            lm.commit(len(PROMPT) - 1)
    elif why != "unchecked":
        step_by_step(opened(model), Warp(0.0), torch.zeros(8, dtype=torch.float64))
    lm = opened(model, **({"layers": (1,)} if why == "layers" else {}))
    logits = torch.zeros(1, 70) if why == "unchecked" else begun(lm)
    before = lm.length
    assert lm.roll_out(logits, uniforms(7), Warp()) is None
    assert lm.length == before


def drafted(lm, warp, go_on, k=6, seed=1):
    drafter = ModelDrafter(lm)
    drafter.begin(PROMPT, None)
    noise = PhiloxStream(seed).round(0)
    first = drafter.draft(Context(PROMPT, warp, None, None), k, noise, go_on)
    text = [*PROMPT, *first.tokens.tolist()[:2], 17]  # two are accepted
    return first, drafter.draft(Context(text, warp, None, None), k, noise, go_on)


class Counted:
    """A session that counts its passes outside of roll-outs."""

    def __init__(self, lm):
        self._lm, self.passes = lm, 0

    def __getattr__(self, name):
        return getattr(self._lm, name)

    def append(self, tokens, keep, parents=None):
        self.passes += keep > 0
        return self._lm.append(tokens, keep, parents)


class Misdrawn(Counted):
    """A session that rolls out over other tokens than the law gives, from the third on."""

    def roll_out(self, logits, u, warp):
        return self._lm.roll_out(logits, torch.cat([u[:2], 1 - u[2:]]), warp)


@pytest.mark.parametrize("warp", first(6, WARPS), ids=str)
def test_drafts_by_roll_outs_are_drafts_by_single_passes(warp):
    model = warmed(dtype=torch.bfloat16)
    wanted = drafted(Fast().session(model), warp, lambda p: always(p))
    right, wrong = Counted(Fast().session(model)), Misdrawn(Fast().session(model))
    for found in drafted(right, warp, always), drafted(wrong, warp, always):
        for one, other in zip(found, wanted, strict=True):
            assert torch.equal(one.tokens, other.tokens)
            assert torch.equal(one.probs, other.probs)
    assert right.passes == 2  # the first of each draft
    assert (wrong.passes > 2) == (warp.temperature > 0)
