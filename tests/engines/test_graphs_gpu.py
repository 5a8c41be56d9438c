"""What only a CUDA device can show: recordings, their memory, and that a round waits once.

The logic is tested without one in `test_graphs.py` (recordings on a tape) and in
`tests/test_host_reads.py` (a simulated device).
"""

from collections.abc import Callable, Iterator

import pytest
import torch
from transformers import PreTrainedModel

from spsbench.engines.cuda import graphs, static
from spsbench.engines.cuda.graphs import GraphLM
from spsbench.engines.eager import EagerLM
from spsbench.loop import decode as loop
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import Warp
from spsbench.loop.timing import Stopwatch, TimedDrafter, TimedLM
from spsbench.loop.types import Limits, Round, Verifier
from spsbench.methods.drafters.model import ModelDrafter
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.block import Block
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.sps import Sps
from tests.tiny_models import ARCHITECTURES, tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

Make = Callable[..., PreTrainedModel]
VOCAB, TOKENS = 300, 400  # beyond the first 256 rows
architectures = pytest.mark.parametrize("architecture", ARCHITECTURES)


def on_cuda(architecture: str, dtype: torch.dtype = torch.float64, **more: float) -> object:
    return tiny(architecture, vocab=VOCAB, context=1024, dtype=dtype, **more).to("cuda")


def generate(
    kind: type[EagerLM],
    target: PreTrainedModel,
    draft: PreTrainedModel,
    *,
    k: int = 4,
    verifier: Verifier | None = None,
    warp: Warp | None = None,
    tokens: int = TOKENS,
) -> list[Round]:
    watch = Stopwatch(target.device)
    return list(
        loop.decode(
            [1, 2, 3, 4],
            target=TimedLM(kind(target), watch),
            drafter=TimedDrafter(ModelDrafter(kind(draft)), watch),
            verifier=verifier or Sps(),
            schedule=Constant(k),
            warp=warp or Warp(0.9, top_k=50, top_p=0.95),
            noise=PhiloxStream(7),
            limits=Limits(tokens),
        )
    )


def texts(rounds: list[Round]) -> list[list[int]]:
    return [turn.tokens for turn in rounds]


class Waits:
    """While armed, every synchronisation is an error but in `decode.read`; its calls counted."""

    def __init__(self) -> None:
        self.armed, self.reads = False, 0

    def arm(self, armed: bool) -> None:
        self.armed, self.reads = armed, 0
        self.mode("error")

    def mode(self, mode: str) -> None:
        torch.cuda.set_sync_debug_mode(mode if self.armed else "default")


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[Waits]:
    made, read = Waits(), loop.read

    def reads(*given: object) -> object:
        made.mode("default")
        made.reads += 1
        ruling = read(*given)
        made.mode("error")
        return ruling

    monkeypatch.setattr(loop, "read", reads)
    yield made
    made.arm(False)


@architectures
@pytest.mark.parametrize("kind", [EagerLM, GraphLM])
@pytest.mark.parametrize(
    ("verifier", "warp"),
    [(Sps(), None), (Sps(), Warp(0)), (Block(), Warp()), (Match(), Warp(0.7))],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_round_waits_once(
    architecture: str,
    kind: type[EagerLM],
    verifier: Verifier,
    warp: Warp | None,
    waits: Waits,
) -> None:
    target, draft = on_cuda(architecture), on_cuda(architecture, noise=0.1)
    parts = {"verifier": verifier, "warp": warp}
    for _ in range(2):  # recordings, and what libraries set up in first calls, wait
        generate(kind, target, draft, **parts)
    waits.arm(True)
    rounds = generate(kind, target, draft, **parts)
    reads = waits.reads
    waits.arm(False)
    assert reads == len(rounds)
    if kind is GraphLM:
        assert graphs.known(target).reason is graphs.known(draft).reason is None


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_the_debug_mode_sees_a_wait(waits: Waits) -> None:
    x, index = torch.ones(3, device="cuda"), torch.ones((), dtype=torch.int64, device="cuda")
    waits.arm(True)
    with pytest.raises(RuntimeError, match="synchronizing"):
        x[index]


@architectures
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_tokens_are_eager_s(architecture: str, dtype: torch.dtype) -> None:
    target, draft = on_cuda(architecture, dtype), on_cuda(architecture, dtype, noise=0.1)
    for k in 0, 3, 4:
        ours = texts(generate(GraphLM, target, draft, k=k))
        assert ours == texts(generate(EagerLM, target, draft, k=k))
        assert ours == texts(generate(GraphLM, target, draft, k=k))  # now from recordings alone
    assert graphs.known(target).reason is None
    if dtype == torch.float64:
        near = target.to("cpu"), draft.to("cpu")
        assert texts(generate(EagerLM, *near, tokens=40)) == texts(
            generate(GraphLM, *(model.to("cuda") for model in near), tokens=40)
        )


@architectures
def test_half_precision_is_as_near_to_the_truth_as_eager(architecture: str) -> None:
    exact, half = on_cuda(architecture), on_cuda(architecture, torch.bfloat16)
    ids = torch.arange(40) * 7 % VOCAB
    truth, plain, ours = EagerLM(exact), EagerLM(half), GraphLM(half)
    errors = []
    for lm in truth, plain, ours:
        lm.append(ids[:30], keep=0)
    for at in range(30, 40, 5):
        rows = [lm.append(ids[at : at + 5], keep=5).logits.double() for lm in (truth, plain, ours)]
        errors.append([float((row - rows[0]).abs().max()) for row in rows[1:]])
    assert ours.reason is None
    eager, graph = (max(column) for column in zip(*errors, strict=True))
    assert graph <= 2 * eager + 1e-3


def test_every_pass_is_recorded_once_and_memory_stands_still() -> None:
    target, draft = on_cuda("llama"), on_cuda("llama", noise=0.1)
    for _ in range(3):
        generate(GraphLM, target, draft)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    passes = {
        id(run): run.recording is not None
        for model in (target, draft)
        for idle in graphs.known(model).idle.values()
        for runner in idle
        for run in runner._passes.values()
    }
    assert passes
    assert all(passes.values())
    for _ in range(5):
        generate(GraphLM, target, draft)
    torch.cuda.synchronize()
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before


def test_growth_records_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static, "ROOM", 256)
    target, draft = on_cuda("qwen3"), on_cuda("qwen3", noise=0.1)
    for _ in range(2):
        ours = texts(generate(GraphLM, target, draft))
        assert ours == texts(generate(EagerLM, target, draft))


def test_a_forward_that_waits_runs_as_eager() -> None:
    target, draft = on_cuda("gpt2"), on_cuda("gpt2", noise=0.1)
    plain = texts(generate(EagerLM, target, draft, tokens=40))
    forward = target.forward

    def reads(**given: object) -> object:
        if int(given["input_ids"].max()) < 0:
            raise ValueError
        return forward(**given)

    target.forward = reads
    assert texts(generate(GraphLM, target, draft, tokens=40)) == plain
    assert "cannot be recorded" in str(graphs.known(target).reason)
    assert graphs.known(draft).reason is None
    torch.cuda.synchronize()  # the failed recording left the device usable
