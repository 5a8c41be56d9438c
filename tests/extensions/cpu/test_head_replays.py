"""Passes of a head as programs, and drafts in one call: as by the network's own code."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from spsbench.engines.quantization.layers import quantise
from spsbench.extensions.cpu.fast import Fast
from spsbench.extensions.cpu.kernels.native import KINDS
from spsbench.extensions.cpu.kernels.steps import available
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import Warp
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.tree_rejection import Recursive
from tests import variants
from tests.decoding import rounds_of
from tests.heads import writers
from tests.heads.stage import HeadSite
from tests.oracles.models import tiny

pytestmark = [pytest.mark.numeric, pytest.mark.skipif(not available(), reason="needs a C compiler")]
K, TOKENS, PROMPT = 4, 14, [1, 5, 3, 7]
WIDTHS = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
FAMILIES = {
    "eagle": writers.eagle,
    "eagle3": writers.eagle3,
    "3.1": lambda folder, target, **more: writers.speculators(
        folder, target, norm_output=True, fc_norm=True, inner={"head_dim": 16}, **more
    ),
    "medusa": writers.medusa,
    "blockwise": writers.blockwise,
    "mlp": lambda folder, target: writers.mlp(folder, target, stages=4, tied="copies"),
    "mlp, untied": writers.mlp,
}
PASSES = {  # each a program
    "medusa": {("look", depth) for depth in (1, 2, 3)},
    "blockwise": {("look", depth) for depth in (1, 2, 3)},
    "mlp": {("step", 0), ("step", 1)},
    "mlp, untied": {("step", 0), ("step", 1), ("step", 2)},
}
QUICK = {("3.1", torch.float32), ("mlp", torch.bfloat16)}
AT_ONCE = ("medusa", "blockwise")  # laws that do not depend on what is drawn
WARPS = (Warp(0.0), Warp(1.0), Warp(0.6), Warp(1.0, top_p=0.7))


class Stepwise(Constant):
    """A schedule that looks at each law, so that nothing is drawn ahead."""

    def go_on(self, p):
        return super().go_on(p)


@pytest.fixture(scope="module", params=KINDS, ids=str)
def target(request):
    made = tiny("llama", vocab=96, dtype=request.param, num_hidden_layers=8, scale=1.5, **WIDTHS)
    Fast().prepare(made, threads=1)
    return made


def site_of(family, target, folder, weights=None, **more):
    """A head whose network is prepared by the engine."""
    site = HeadSite(FAMILIES[family](folder, target, **more), target)
    network = site.drafter()._frontier.network
    if weights:
        assert quantise(network, weights)
    Fast().pack(network)
    return site


def drafts(site, target, warp, schedule, seed, frontier=None, **more):
    drafter = site.drafter(**more)
    if frontier is not None:
        kind = type(drafter._frontier)
        drafter._frontier.__class__ = type(frontier.__name__, (frontier, kind), {})
    lm = Fast().session(target, layers=drafter.layers)
    made, draft = [], drafter.draft
    drafter.draft = lambda *given: made.append(draft(*given)) or made[-1]
    given = {"warp": warp, "schedule": schedule, "noise": PhiloxStream(seed)}
    if drafter.tree:
        given["verifier"] = Recursive()
    rounds_of(lm, drafter, TOKENS, prompt=PROMPT, **given)
    return made


def replay(site):
    return site.drafter()._frontier._replay


def assert_same(found, wanted):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one.tokens, other.tokens)
        assert (one.probs is None) == (other.probs is None)
        assert one.probs is None or torch.equal(one.probs, other.probs)


class OwnCode:
    """A frontier without programs."""

    @property
    def _replay(self):
        return None

    @_replay.setter
    def _replay(self, value):
        pass


class Counted:
    """A frontier that counts what is fed one by one, and what is rolled out."""

    fed, rolled = 0, 0

    def feed(self, *given):
        Counted.fed += 1
        return super().feed(*given)

    def roll_out(self, *given):
        made = super().roll_out(*given)
        Counted.rolled += made is not None
        return made


class Misdrawn(Counted):
    """A roll-out over other tokens than the law gives, from the second on."""

    def roll_out(self, logits, u, *given):
        return super().roll_out(logits, torch.cat([u[:1], 1 - u[1:]]), *given)


@pytest.mark.parametrize(
    ("family", "target"),
    variants.first(2, sorted(product(FAMILIES, KINDS), key=QUICK.__contains__, reverse=True)),
    indirect=["target"],
)
def test_drafts_by_programs_are_those_of_the_network_s_own_code(family, target, tmp_path):
    """Tokens and laws bit for bit: in one call, step by step, as trees, and after a misdraw."""
    site = site_of(family, target, tmp_path)
    for warp in WARPS if target.dtype == torch.float32 else WARPS[::3]:
        Counted.fed = Counted.rolled = 0
        for seed in range(1 + (warp == Warp())):
            wanted = drafts(site, target, warp, Stepwise(K), seed, OwnCode)
            assert sum(len(draft.tokens) for draft in wanted) > TOKENS // 2
            for schedule in Constant(K), Stepwise(K):
                found = drafts(site, target, warp, schedule, seed, Counted)
                assert_same(found, wanted)
            fed = Counted.fed
            assert_same(drafts(site, target, warp, Constant(K), seed, Misdrawn), wanted)
            again = Counted.fed > fed  # step by step, after what was drawn wrongly
            assert again == (warp.temperature > 0 and family not in AT_ONCE) or not Counted.rolled
        assert (Counted.rolled > 0) == (family != "mlp, untied")
        tree = {"shape": "3x2x1"}
        wanted = drafts(site, target, warp, Constant(3), 0, OwnCode, **tree)
        assert_same(drafts(site, target, warp, Constant(3), 0, **tree), wanted)
    replays = replay(site).replays
    assert all(one.refused is None and one.counts[1] for one in replays.values())
    assert set(replays) == PASSES.get(family, {"read", "scores", "feed"})


@pytest.mark.parametrize("weights", variants.first(1, ("int4", "int8")))
@pytest.mark.parametrize("family", variants.first(1, ("eagle3", "medusa", "mlp")))
def test_heads_over_codes_draft_by_programs_too(family, weights, target, tmp_path):
    site = site_of(family, target, tmp_path, weights)
    wanted = drafts(site, target, Warp(1.0), Stepwise(K), 1, OwnCode)
    assert_same(drafts(site, target, Warp(1.0), Constant(K), 1), wanted)
    assert_same(drafts(site, target, Warp(1.0), Stepwise(K), 1), wanted)
    assert all(one.refused is None for one in replay(site).replays.values())
    whole = drafts(site_of(family, target, tmp_path), target, Warp(1.0), Stepwise(K), 1, OwnCode)
    apart = (whole[0].probs[0] - wanted[0].probs[0]).abs().sum()
    assert 0 < apart < (0.1 if weights == "int8" else 0.8)


@pytest.mark.parametrize("how", ["two layers", "a hook that changes"])
def test_what_is_no_program_runs_its_own_code(how, target, tmp_path):
    more = {"layers": 2, "ids": [1, 2, 3]} if how == "two layers" else {}
    site = site_of("3.1", target, tmp_path, **more)
    network = site.drafter()._frontier.network
    if how != "two layers":
        network.stack[0].register_forward_hook(lambda module, given, made: made.tanh())
    wanted = drafts(site, target, Warp(1.0), Stepwise(K), 1, OwnCode)
    assert_same(drafts(site, target, Warp(1.0), Constant(K), 1), wanted)
    by_programs = {name: one.counts[1] for name, one in replay(site).replays.items()}
    assert not any(count for name, count in by_programs.items() if name != "scores")


def test_a_program_that_differs_is_given_up(target, tmp_path):
    """Found in its first runs, and named; the text stays that of the network's own code."""

    class Differing:
        """What is recorded, three times, is not what runs afterwards."""

        def _fed(self, given, sees, cache):
            Differing.calls += 1
            return super()._fed(given, sees, cache) * (1.0 + (Differing.calls > 3))

    Differing.calls = 0
    site = site_of("eagle3", target, tmp_path)
    drafts(site, target, Warp(1.0), Stepwise(2), 1, Differing)
    assert "differs" in (replay(site).replays["feed"].refused or "")


@pytest.mark.parametrize("family", variants.first(1, ("eagle3", "eagle")))
def test_a_head_in_other_numbers_than_the_target_s_runs_its_own_code(family, tmp_path):
    """Features stay in the head's; with the target's output layer logits are in the target's."""
    target = tiny("llama", vocab=96, dtype=torch.float32, num_hidden_layers=8, **WIDTHS)
    site = HeadSite(FAMILIES[family](tmp_path, target), target)
    half = {
        name: tensor.bfloat16() if tensor.is_floating_point() else tensor
        for name, tensor in site._head.tensors.items()
    }
    site._head = replace(site._head, tensors=half)
    Fast().pack(site.drafter()._frontier.network)
    wanted = drafts(site, target, Warp(1.0), Stepwise(K), 1, OwnCode)
    assert sum(len(draft.tokens) for draft in wanted) > TOKENS // 2
    assert_same(drafts(site, target, Warp(1.0), Constant(K), 1), wanted)
