"""One host read a round: the loop over a simulated device, where every other one raises.

The tokens must be the CPU's, for the device computes the same. That the simulation sees what makes
a host wait is shown by planting each kind of it.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from spsbench.audit.exact.draft_kinds import FixedDrafter
from spsbench.engines.cuda.graphs import GraphLM
from spsbench.engines.eager import EagerLM
from spsbench.loop import decode as loop
from spsbench.loop.noise import PhiloxStream, on_device
from spsbench.loop.sampling import Warp, send
from spsbench.loop.types import LM, Context, Draft, Drafter, Drawn, Limits, Purpose, Round, Verifier
from spsbench.methods.drafters.model import ModelDrafter, NoDrafter
from spsbench.methods.drafters.ngram import NgramDrafter
from spsbench.methods.drafters.shaped import TreeDrafter
from spsbench.methods.schedules.by_distribution import Confidence, Disco, Entropy
from spsbench.methods.schedules.by_history import Constant, Ema, Goodput, Heuristic
from spsbench.methods.verifiers import sps
from spsbench.methods.verifiers.block import Block
from spsbench.methods.verifiers.ensemble import Ensemble
from spsbench.methods.verifiers.gbv import Gbv
from spsbench.methods.verifiers.lenient import Lenient
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.recursive import Recursive
from spsbench.methods.verifiers.set_acceptance import Distance, TopK, Typical
from spsbench.methods.verifiers.spectr import SpecTr
from spsbench.methods.verifiers.sps import Sps
from spsbench.methods.verifiers.synthetic import Synthetic
from spsbench.methods.verifiers.traversal import Traversal
from tests.parts import ByLaw
from tests.simulated_device import FAR, Far, HostWaitsError, SimulatedDevice, moved
from tests.tiny_models import ARCHITECTURES, tiny

WARPED = Warp(0.9, top_k=9, top_p=0.95)
ENGINES = {"eager": EagerLM, "graphs": GraphLM}


class Chains(FixedDrafter):
    """Two equal chains, said to be drawn independently from the even law."""

    drawn = Drawn.IID

    def draft(self, context: Context, *rest: object) -> Draft:
        draft = super().draft(context, *rest)
        width = context.last.scores.logits.shape[-1] if context.last else self.width
        return replace(draft, probs=torch.full((len(draft.tokens), width), 1 / width))

    def __init__(self, lm: LM) -> None:
        super().__init__((5, 7, 6, 8), (-1, -1, 0, 1))
        self.width = lm.vocab_size


DRAFTERS: dict[str, Callable[[LM], Drafter]] = {
    "model": ModelDrafter,
    "ngram": lambda lm: NgramDrafter(2, 1),
    "tree": lambda lm: FixedDrafter((5, 7, 6, 8, 9), (-1, -1, 0, 1, 1)),
    "chains": Chains,
    "widths": lambda lm: TreeDrafter(lm, "2x2x1"),
    "none": lambda lm: NoDrafter(),
}
slow = partial(pytest.param, marks=pytest.mark.slow)
engines = pytest.mark.parametrize("engine", ENGINES)


def generate(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    *,
    engine: str = "graphs",
    drafter: str = "model",
    verifier: Verifier | None = None,
    warp: Warp = WARPED,
    prompt: tuple[int, ...] = (1, 2, 3, 1, 2),
    schedule: object = None,
    tokens: int = 8,
) -> list[Round]:
    return list(
        loop.decode(
            prompt,
            target=ENGINES[engine](target),
            drafter=DRAFTERS[drafter](ENGINES[engine](draft)),
            verifier=verifier or Sps(),
            schedule=schedule or Constant(3),
            warp=warp,
            noise=PhiloxStream(5),
            limits=Limits(tokens),
        )
    )


def figures(rounds: list[Round]) -> list[tuple]:
    return [(*turn[:4], round(turn.overlap or 0, 6), turn.finish) for turn in rounds]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedDevice]:
    """The simulated device; only `decode.read` may wait for it, and the trial of a new model."""
    simulated = SimulatedDevice()
    read, init = loop.read, GraphLM.__init__

    def reads(*given: object) -> object:
        with simulated.reading():
            return read(*given)

    def tries(self: GraphLM, *given: object, **more: object) -> None:
        before = simulated.reads
        with simulated.reading():
            init(self, *given, **more)
        simulated.reads = before

    monkeypatch.setattr(loop, "read", reads)
    monkeypatch.setattr(GraphLM, "__init__", tries)
    with simulated:
        yield simulated


def pair(architecture: str = "llama") -> tuple[PreTrainedModel, PreTrainedModel]:
    return tiny(architecture), tiny(architecture, noise=0.1)


def far(models: tuple[PreTrainedModel, ...]) -> list[PreTrainedModel]:
    return [moved(copy.deepcopy(model)) for model in models]


@engines
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_one_read_a_round_and_the_cpu_s_tokens(
    architecture: str, engine: str, request: pytest.FixtureRequest
) -> None:
    models = pair(architecture)
    near = figures(generate(*models, engine=engine, tokens=16))
    there = far(models)
    device: SimulatedDevice = request.getfixturevalue("device")
    rounds = generate(*there, engine=engine, tokens=16)
    assert figures(rounds) == near
    assert device.reads == len(rounds)
    assert len({turn.accepted for turn in rounds}) > 1


@pytest.mark.parametrize(
    ("drafter", "verifier", "warp"),
    [
        ("model", Block(), Warp()),
        ("model", Match(), Warp(0)),
        ("model", Synthetic(0.7), Warp()),
        ("model", TopK(3), WARPED),
        slow("model", Lenient(0.5), Warp()),
        slow("model", Ensemble(0.5), Warp()),
        slow("model", Typical(), Warp()),
        slow("ngram", Distance(2), Warp()),
        ("ngram", Match(), Warp(0)),
        ("model", Traversal(), Warp()),
        pytest.param("model", Recursive(), Warp(), marks=pytest.mark.slow),
        pytest.param("model", SpecTr(), Warp(), marks=pytest.mark.slow),
        pytest.param("model", Gbv(), Warp(), marks=pytest.mark.slow),
        ("tree", Match(), Warp()),
        pytest.param("tree", Traversal(), Warp(), marks=pytest.mark.slow),
        ("tree", Recursive(), Warp()),
        ("widths", Match(), Warp()),
        ("chains", Traversal(), Warp()),
        pytest.param("chains", Recursive(), Warp(), marks=pytest.mark.slow),
        ("chains", SpecTr(), Warp()),
        ("chains", Gbv(), Warp()),
        pytest.param("none", Traversal(), Warp(), marks=pytest.mark.slow),
        pytest.param("none", Recursive(), Warp(), marks=pytest.mark.slow),
        pytest.param("none", SpecTr(), Warp(), marks=pytest.mark.slow),
        pytest.param("none", Gbv(), Warp(), marks=pytest.mark.slow),
        ("none", Sps(), Warp()),
        ("none", Match(), Warp(0)),
    ],
    ids=str,
)
def test_every_pairing(
    drafter: str, verifier: Verifier, warp: Warp, request: pytest.FixtureRequest
) -> None:
    models = pair()
    parts = {"drafter": drafter, "verifier": verifier, "warp": warp}
    near = figures(generate(*models, **parts))
    there = far(models)
    device: SimulatedDevice = request.getfixturevalue("device")
    rounds = generate(*there, **parts)
    assert figures(rounds) == near
    assert device.reads == len(rounds)


@engines
def test_a_prompt_of_one_token(engine: str, request: pytest.FixtureRequest) -> None:
    """Its prefill is empty, and still says where the model is."""
    models = pair()
    near = figures(generate(*models, engine=engine, prompt=(3,)))
    there = far(models)
    device: SimulatedDevice = request.getfixturevalue("device")
    rounds = generate(*there, engine=engine, prompt=(3,))
    assert figures(rounds) == near
    assert device.reads == len(rounds)


def test_uniforms_come_in_one_copy_a_round(request: pytest.FixtureRequest) -> None:
    device: SimulatedDevice = request.getfixturevalue("device")
    stream, plain = on_device(PhiloxStream(5), FAR), PhiloxStream(5)
    copies = []
    wants = [(Purpose.DRAFT, 4), (Purpose.ACCEPT, 4), (Purpose.FINAL, 1)]
    for index in range(6):
        before = device.uploads
        fresh = stream.round(index)
        for purpose, most in wants:
            for n in most, 1, 0:
                u = fresh.uniform(purpose, n)
                assert isinstance(u, Far)
                assert torch.equal(u.near, plain.round(index).uniform(purpose, n))
        copies.append(device.uploads - before)
    assert copies == [3, 2, 1, 1, 1, 1]  # the first teaches; the second is sent at its beginning
    more = stream.round(6).uniform(Purpose.DRAFT, 9)  # more than was foreseen
    assert torch.equal(more.near, plain.round(6).uniform(Purpose.DRAFT, 9))
    again = stream.round(2).uniform(Purpose.PLAIN, 2)  # any round, at any time
    assert torch.equal(again.near, plain.round(2).uniform(Purpose.PLAIN, 2))


def test_on_the_cpu_noise_is_left_alone() -> None:
    stream = PhiloxStream(1)
    assert on_device(stream, torch.device("cpu")) is stream


@pytest.mark.parametrize(
    "schedule", [ByLaw(), *map(slow, (Confidence(), Entropy(), Disco()))], ids=str
)
def test_a_schedule_that_looks_at_laws_waits(
    schedule: object, request: pytest.FixtureRequest
) -> None:
    there = far(pair())
    request.getfixturevalue("device")
    with pytest.raises(HostWaitsError, match="_local_scalar_dense"):
        generate(*there, schedule=schedule)


@pytest.mark.parametrize(
    "schedule", [Confidence(0.3), *map(slow, (Entropy(0.5), Disco(t=0.4)))], ids=str
)
def test_it_reads_once_for_each_slot_that_it_is_asked_about(
    schedule: Confidence, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    schedule.__dict__["most"] = 4
    models = pair()
    asked: list[Tensor] = []
    near = figures(generate(*models, engine="eager", schedule=schedule))
    there = far(models)
    device: SimulatedDevice = request.getfixturevalue("device")
    look = type(schedule).go_on

    class Answer:
        """Read where it is asked for, as `if go_on(law)` does."""

        def __init__(self, far: Tensor) -> None:
            self.far = far

        def __bool__(self) -> bool:
            with device.reading():
                return bool(self.far)

    def counted(self: object, law: Tensor) -> Answer:
        asked.append(law)
        return Answer(look(self, law))

    monkeypatch.setattr(type(schedule), "go_on", counted)
    rounds = generate(*there, engine="eager", schedule=schedule)
    assert figures(rounds) == near
    assert device.reads == len(rounds) + len(asked)
    stopped = sum(1 for turn in rounds if turn.drafted < 4)
    drafted = sum(turn.drafted for turn in rounds)
    assert drafted <= len(asked) <= drafted + stopped


@pytest.mark.parametrize("schedule", [Heuristic(), *map(slow, (Ema(), Goodput()))], ids=str)
def test_a_schedule_that_looks_back_reads_nothing(
    schedule: object, request: pytest.FixtureRequest
) -> None:
    models = pair()
    near = figures(generate(*models, engine="eager", schedule=schedule))
    there = far(models)
    device: SimulatedDevice = request.getfixturevalue("device")
    rounds = generate(*there, engine="eager", schedule=schedule)
    assert figures(rounds) == near
    assert device.reads == len(rounds)


# Planted: each makes the host wait, and each is seen.


def indexed(x: Tensor, index: Tensor) -> Tensor:
    return x[index]


def blocking(values: Tensor, device: torch.device) -> Tensor:
    return values.to(device)


class Eager(Constant):
    def go_on(self, p: Tensor) -> Tensor:
        return torch.ones((), dtype=torch.bool, device=p.device)


def test_a_row_taken_by_plain_indexing_is_seen(request: pytest.FixtureRequest) -> None:
    there = far(pair())
    request.getfixturevalue("device")
    with (
        patch.object(sps, "row", indexed),
        pytest.raises(HostWaitsError, match="_local_scalar_dense"),
    ):
        generate(*there)


@pytest.mark.parametrize(
    "module", ["loop.noise", "loop.decode", "loop.sampling", "engines.cuda.static"]
)
def test_a_blocking_copy_is_seen(module: str, request: pytest.FixtureRequest) -> None:
    there = far(pair())
    request.getfixturevalue("device")
    # `sampling` sends only what no one has sent before
    ahead = (lambda noise, device: noise) if module == "loop.sampling" else on_device
    planted = patch(f"spsbench.{module}.send", blocking)
    with (
        planted,
        patch.object(loop, "on_device", ahead),
        pytest.raises(HostWaitsError, match="blocking upload"),
    ):
        generate(*there)


def test_a_flag_on_the_device_is_seen(request: pytest.FixtureRequest) -> None:
    there = far(pair())
    request.getfixturevalue("device")
    with pytest.raises(HostWaitsError, match="_local_scalar_dense"):
        generate(*there, schedule=Eager(3))


def test_what_else_waits(device: SimulatedDevice) -> None:
    x = send(torch.arange(4.0), FAR)
    mask = x > 1
    for wait in (
        lambda: x[mask],
        lambda: bool(mask.any()),
        lambda: float(x[0]),
        lambda: x.cpu(),
        lambda: mask.nonzero(),
        lambda: torch.equal(x, x),
        lambda: x[torch.tensor([1, 2])],
        lambda: x.add_(torch.tensor([1.0], device=FAR)),
        lambda: x.copy_(torch.zeros(4)),
    ):
        with pytest.raises(HostWaitsError):
            wait()
    with pytest.raises(RuntimeError, match="operands on the device and on the host"):
        x + torch.ones(4)
    assert torch.equal((x[1:3] + 1).near, torch.tensor([2.0, 3.0]))
