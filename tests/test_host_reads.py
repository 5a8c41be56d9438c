"""One host read a round: the loop over a simulated device, where every other one raises.

The tokens must be the CPU's, for the device computes the same. That the simulation sees whatever
makes a host wait is shown by planting each kind of it.
"""

import copy
from dataclasses import replace

import pytest
import torch

from spsbench.audit.exact.draft_kinds import FixedDrafter
from spsbench.engines.cuda.graphs import GraphLM
from spsbench.engines.eager import EagerLM
from spsbench.loop import decode as loop
from spsbench.loop.noise import PhiloxStream, on_device
from spsbench.loop.sampling import Warp, send
from spsbench.loop.types import LM, Drawn, Purpose
from spsbench.methods.drafters.model import ModelDrafter, NoDrafter
from spsbench.methods.drafters.ngram import NgramDrafter
from spsbench.methods.drafters.shaped import TreeDrafter
from spsbench.methods.schedules.by_history import Heuristic
from spsbench.methods.verifiers.block import Block
from spsbench.methods.verifiers.gbv import Gbv
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.recursive import Recursive
from spsbench.methods.verifiers.set_acceptance import Distance, TopK, Typical
from spsbench.methods.verifiers.spectr import SpecTr
from spsbench.methods.verifiers.sps import Sps
from spsbench.methods.verifiers.synthetic import Synthetic
from spsbench.methods.verifiers.traversal import Traversal
from tests.decoding import rounds_of
from tests.parts import ByLaw
from tests.simulated_device import FAR, HostWaitsError, SimulatedDevice, moved
from tests.tiny_models import ARCHITECTURES, tiny
from tests.variants import first

ENGINES = {"eager": EagerLM, "graphs": GraphLM}


class Chains(FixedDrafter):
    """Two equal chains, said to be drawn independently from the even law."""

    drawn = Drawn.IID

    def draft(self, context, *rest):
        draft = super().draft(context, *rest)
        width = context.last.scores.logits.shape[-1] if context.last else self.width
        return replace(draft, probs=torch.full((len(draft.tokens), width), 1 / width))

    def __init__(self, lm: LM) -> None:
        super().__init__((5, 7, 6, 8), (-1, -1, 0, 1))
        self.width = lm.vocab_size


DRAFTERS = {
    "model": ModelDrafter,
    "ngram": lambda lm: NgramDrafter(2, 1),
    "tree": lambda lm: FixedDrafter((5, 7, 6, 8, 9), (-1, -1, 0, 1, 1)),
    "chains": Chains,
    "widths": lambda lm: TreeDrafter(lm, "2x2x1"),
    "none": lambda lm: NoDrafter(),
}


def generate(models, engine="graphs", drafter="model", **more):
    target, draft = map(ENGINES[engine], models)
    usual = {"prompt": (1, 2, 3, 1, 2), "k": 3, "warp": Warp(0.9, top_k=9, top_p=0.95)}
    return rounds_of(target, DRAFTERS[drafter](draft), 8, seed=5, **usual | more)


def figures(rounds):
    return [(*turn[:4], round(turn.overlap or 0, 6), turn.finish) for turn in rounds]


@pytest.fixture
def models():
    return tiny("llama"), tiny("llama", noise=0.1)


@pytest.fixture
def device(monkeypatch):
    """A simulated device; only `decode.read` may wait for it, and the trial of a new model."""
    simulated = SimulatedDevice()
    read, init = loop.read, GraphLM.__init__

    def reads(*given):
        with simulated.reading():
            return read(*given)

    def tries(self, *given, **more):
        before = simulated.reads
        with simulated.reading():
            init(self, *given, **more)
        simulated.reads = before

    monkeypatch.setattr(loop, "read", reads)
    monkeypatch.setattr(GraphLM, "__init__", tries)
    return simulated


def far(models):
    return tuple(moved(copy.deepcopy(model)) for model in models)


def assert_one_read_a_round(models, device, **settings):
    near, there = figures(generate(models, **settings)), far(models)
    with device:
        rounds = generate(there, **settings)
    assert figures(rounds) == near
    assert device.reads == len(rounds)


@pytest.mark.parametrize("engine", ["eager", pytest.param("graphs", marks=pytest.mark.slow)])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_round_reads_once_and_gives_the_tokens_of_the_cpu(architecture, engine, device):
    models = tiny(architecture), tiny(architecture, noise=0.1)
    assert_one_read_a_round(models, device, engine=engine)


PAIRINGS = {
    "model": [Block(), Match(), TopK(3)],
    "tree": [Match(), Recursive()],
    "chains": [Traversal(), SpecTr(), Gbv()],
    "widths": [Match()],
    "ngram": [Distance(2)],
    "none": [Sps()],
    "model, more": [Traversal(), Synthetic(0.7), Typical()],
}


@pytest.mark.parametrize("pairing", first(6, PAIRINGS))
def test_every_pairing_reads_once_a_round(pairing, models, device):
    drafter = pairing.partition(",")[0]
    for verifier in PAIRINGS[pairing]:
        device.reads = 0
        warp = Warp(0) if isinstance(verifier, Match) and drafter != "tree" else Warp()
        settings = {"drafter": drafter, "verifier": verifier, "warp": warp}
        assert_one_read_a_round(models, device, engine="eager", **settings)


@pytest.mark.parametrize("settings", [{"prompt": (3,)}, {"schedule": Heuristic()}], ids=str)
def test_a_prompt_of_one_token_and_schedules_by_history_read_nothing_more(settings, models, device):
    assert_one_read_a_round(models, device, **settings)


def test_uniforms_come_in_one_copy_a_round():
    plain, copies = PhiloxStream(5), []
    wants = [(Purpose.DRAFT, 4), (Purpose.ACCEPT, 4), (Purpose.FINAL, 1)]
    with SimulatedDevice() as device:
        stream = on_device(PhiloxStream(5), FAR)
        for index in range(6):
            before, fresh = device.uploads, stream.round(index)
            for purpose, most in wants:
                for n in most, 1, 0:
                    u = fresh.uniform(purpose, n)
                    assert torch.equal(u.near, plain.round(index).uniform(purpose, n))
            copies.append(device.uploads - before)
        more = stream.round(6).uniform(Purpose.DRAFT, 9)  # more than was foreseen
    assert copies == [3, 2, 1, 1, 1, 1]  # the first teaches; the second is sent at its beginning
    assert torch.equal(more.near, plain.round(6).uniform(Purpose.DRAFT, 9))


# Planted: each makes the host wait, and each is seen.


WAITS = {
    "spsbench.methods.verifiers.sps.row": (lambda x, index: x[index], "_local_scalar_dense"),
    **{
        f"spsbench.{place}.send": (lambda values, device: values.to(device), "blocking upload")
        for place in ("loop.noise", "loop.decode", "engines.cuda.static")
    },
}


@pytest.mark.parametrize("place", WAITS)
def test_a_planted_wait_is_seen(place, models, device, monkeypatch):
    there, (planted, why) = far(models), WAITS[place]
    monkeypatch.setattr(place, planted)
    with device, pytest.raises(HostWaitsError, match=why):
        generate(there)


def test_a_schedule_that_reads_laws_is_seen(models, device):
    there = far(models)
    with device, pytest.raises(HostWaitsError, match="_local_scalar_dense"):
        generate(there, schedule=ByLaw())


def test_the_simulation_raises_where_a_host_waits():
    for wait in (
        lambda x: x[x > 1],
        lambda x: bool((x > 1).any()),
        lambda x: x.cpu(),
        lambda x: (x > 1).nonzero(),
        lambda x: x[torch.tensor([1, 2])],
        lambda x: x.add_(torch.tensor([1.0], device=FAR)),
        lambda x: x.copy_(torch.zeros(4)),
    ):
        with SimulatedDevice():
            x = send(torch.arange(4.0), FAR)
            with pytest.raises(HostWaitsError):
                wait(x)
            with pytest.raises(RuntimeError, match="operands on the device and on the host"):
                x + torch.ones(4)
