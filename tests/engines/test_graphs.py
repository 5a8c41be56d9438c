"""Passes of fixed shape give what `eager` gives, whatever was fed, rejected, or grown past."""

import gc
import random
from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from spsbench.audit.exact.draft_kinds import FixedDrafter
from spsbench.audit.exact.enumeration import prove
from spsbench.engines import eager
from spsbench.engines.cuda import cache, graphs, static
from spsbench.engines.cuda.graphs import GraphLM
from spsbench.engines.cuda.static import Recorder
from spsbench.engines.eager import EagerLM
from spsbench.loop.decode import decode
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Limits, Verifier
from spsbench.methods.drafters.model import ModelDrafter
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.sps import Sps
from tests.engines.test_sessions import ancestry, close, grown, over_caches, tree
from tests.recording import record_on_the_cpu
from tests.tiny_models import ARCHITECTURES, laws, tiny

Make = Callable[..., PreTrainedModel]
VOCAB = 12
WARPED, SPS = Warp(0.8, top_k=8, top_p=0.9), Sps()

architectures = pytest.mark.parametrize("architecture", ARCHITECTURES)


@pytest.fixture(autouse=True)
def small_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 8, 16, 32, ..., so that short texts grow past several of them."""
    monkeypatch.setattr(cache, "SMALLEST", 8)
    monkeypatch.setattr(static, "ROOM", 8)
    monkeypatch.setattr(graphs, "_KNOWN", type(graphs._KNOWN)())


@pytest.fixture(params=[False, True], ids=["run", "recorded"])
def recording(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Once with passes that are run, once with passes that are recorded and replayed."""
    if request.param:
        record_on_the_cpu(monkeypatch)
    return request.param


@architectures
@pytest.mark.parametrize(
    ("attention", "dtype", "within"),
    [("sdpa", "float64", 1e-9), ("eager", "float64", 1e-5), ("sdpa", "float32", 1e-3)],
)
def test_any_script_gives_the_logits_of_eager(
    model: Make, architecture: str, attention: str, dtype: str, within: float, recording: bool
) -> None:
    target = model(architecture, attention=attention, dtype=getattr(torch, dtype))
    rows = set()
    for seed in range(3):
        rng, plain, ours = random.Random(seed), EagerLM(target), GraphLM(target)
        assert ours.reason is None
        for _ in range(14):
            fed = [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 7))]
            keep, parents = rng.randrange(len(fed) + 1), None
            if rng.random() < 0.4 and plain.length:
                nodes = tree(rng, rng.randrange(1, 6))
                fed += [rng.randrange(VOCAB) for _ in nodes]
                keep, parents = len(fed), torch.tensor(nodes)
            before = plain.length
            if parents is None:
                a, b = (lm.append(torch.tensor(fed), keep).logits for lm in (plain, ours))
            else:
                cut, cuts = len(fed) - len(nodes), rng.random()
                a, b = (
                    grown(random.Random(cuts), lm, fed[:cut], fed[cut:], nodes)
                    for lm in (plain, ours)
                )
            assert close(a, b, within)
            length, path = before + rng.randrange(len(fed) + 1), []
            if parents is not None:
                length = before + len(fed) - len(nodes)
                path = ancestry(rng.randrange(-1, len(nodes)), nodes)
            for lm in plain, ours:
                lm.commit(length, path)
                assert lm.length == length + len(path)
            rows |= {shape.reads for shape in ours._runner._passes}
            assert all(
                (run.recording is not None) == recording for run in ours._runner._passes.values()
            )
        assert ours.reason is None
    assert len(rows) > 2


@architectures
def test_hidden_states_are_those_of_eager(model: Make, architecture: str) -> None:
    target = model(architecture)
    lms = EagerLM(target, layers=(0, 2)), GraphLM(target, layers=(0, 2))
    for fed, keep in ([3, 1, 4, 1], 0), ([5, 9, 2, 6], 4), ([5], 1):
        plain, ours = (lm.append(torch.tensor(fed), keep) for lm in lms)
        assert plain.hidden.keys() == ours.hidden.keys() == {0, 2}
        assert all(close(plain.hidden[layer], ours.hidden[layer]) for layer in (0, 2))


@architectures
def test_prompts_in_chunks_and_passes_beyond_the_largest_shape(
    model: Make, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eager, "PREFILL_CHUNK", 7)
    target, rng = model(architecture), random.Random(1)
    ids = torch.tensor([rng.randrange(VOCAB) for _ in range(190)])
    ours = GraphLM(target)
    ours.append(ids[:30], keep=0)
    assert not ours._runner._passes
    logits = [ours.append(ids[30:170], keep=3).logits, ours.append(ids[170:], keep=20).logits]
    truth = laws(target, ids.tolist())
    assert close(logits[0], truth[167:170])
    assert close(logits[1], truth[170:])
    assert {shape.fed for shape in ours._runner._passes} == {33}


@architectures
def test_what_pads_a_pass_may_stand_beyond_the_context(model: Make, architecture: str) -> None:
    target = model(architecture, context=16)
    ours, ids = GraphLM(target), [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]
    ours.append(torch.tensor(ids[:12]), keep=0)
    assert close(ours.append(torch.tensor(ids[12:]), keep=4).logits, laws(target, ids)[12:])
    assert ours.reason is None
    with pytest.raises(ValueError, match="the context holds 16"):
        ours.append(torch.tensor([1]), keep=1)


def test_sessions_in_turn_share_a_runner_and_sessions_at_once_do_not(model: Make) -> None:
    target = model("gpt2")
    one, two = GraphLM(target), GraphLM(target)
    assert one._runner is not two._runner
    one.append(torch.tensor([5, 6, 7]), keep=3)
    assert close(two.append(torch.tensor([1, 2]), keep=2).logits, laws(target, [1, 2]))
    runner = one._runner
    del one
    three = GraphLM(target)
    assert three._runner is runner
    assert three.length == 0
    assert close(three.append(torch.tensor([1, 2]), keep=2).logits, laws(target, [1, 2]))
    other = GraphLM(target, layers=(1,))
    assert other._runner not in (runner, two._runner)


def test_runners_go_with_their_model() -> None:
    target = tiny("llama")
    GraphLM(target).append(torch.tensor([1, 2]), keep=2)
    assert len(graphs._KNOWN) == 1
    assert [len(idle) for idle in graphs.known(target).idle.values()] == [1]
    del target
    gc.collect()
    assert len(graphs._KNOWN) == 0


def test_weights_that_have_moved_are_not_replayed() -> None:
    """As after `model.to`: a recording would read where they were."""
    target = tiny("llama")
    runner = GraphLM(target)._runner
    assert GraphLM(target)._runner is runner
    for weight in target.parameters():
        weight.data = weight.data * 1.5
    ours = GraphLM(target)
    assert ours._runner is not runner
    assert close(ours.append(torch.tensor([1, 2]), keep=2).logits, laws(target, [1, 2]))
    assert len(graphs._KNOWN) == 1


def test_numbers_that_are_none_do_not_outlive_their_generation(model: Make) -> None:
    target = model("llama")
    ours = GraphLM(target)
    ours.append(torch.tensor([1, 2, 3, 4]), keep=4)
    for layer in ours._cache.layers:
        with torch.inference_mode():
            layer.values.fill_(float("nan"))
    ours.commit(0)
    assert close(ours.append(torch.tensor([1, 2]), keep=2).logits, laws(target, [1, 2]))


def generate(
    kind: type[EagerLM],
    target: PreTrainedModel,
    draft: PreTrainedModel,
    k: int,
    warp: Warp = WARPED,
    verifier: Verifier = SPS,
) -> list[tuple]:
    """What is compared of a generation's rounds: all but their times."""
    rounds = decode(
        [1, 2, 3, 4],
        target=kind(target),
        drafter=ModelDrafter(kind(draft)),
        verifier=verifier,
        schedule=Constant(k),
        warp=warp,
        noise=PhiloxStream(3),
        limits=Limits(40),
    )
    return [(turn.drafted, turn.accepted, turn.tokens, turn.finish) for turn in rounds]


@architectures
@pytest.mark.parametrize(
    "dtype", [torch.float64, pytest.param(torch.float32, marks=pytest.mark.slow)], ids=str
)
def test_the_same_tokens_as_eager(
    model: Make, architecture: str, dtype: torch.dtype, recording: bool
) -> None:
    target, draft = model(architecture, dtype=dtype), model(architecture, dtype=dtype, noise=0.1)
    accepted = set()
    for k in 0, 3, 4:
        for warp in Warp(0), WARPED:
            plain = generate(EagerLM, target, draft, k, warp)
            assert generate(GraphLM, target, draft, k, warp) == plain
            accepted |= {(turn[0], turn[1]) for turn in plain}
    assert {(4, 0), (4, 4)} <= accepted
    assert any(0 < kept < drafted for drafted, kept in accepted)
    assert graphs.known(target).reason is graphs.known(draft).reason is None


def test_the_law_of_the_loop_over_it() -> None:
    case = over_caches("sps", Sps(), "llama", schedule=Constant(2))
    plain = case.lm
    case.lm = lambda case, text, target: GraphLM(plain(case, text, target).model)
    proof = prove(case)
    assert proof.constant
    assert proof.distance < 1e-9
    assert {"none", "some", "all"} <= proof.kinds


def test_the_law_of_the_loop_over_it_with_trees() -> None:
    case = over_caches("match", Match(), "qwen3", GraphLM, schedule=Constant(2))
    case.drafter = lambda lm: FixedDrafter((0, 1, 2, 0), (-1, -1, 0, 1))
    proof = prove(case)
    assert proof.constant
    assert proof.distance < 1e-9
    assert {"none", "some"} <= proof.kinds


# What does not fit runs as `eager`, and says why.


def test_windows_and_other_layers_run_as_eager(model: Make) -> None:
    target = model("mistral", sliding_window=4)
    ours = GraphLM(target)
    assert ours.reason == "MistralForCausalLM has layers without full attention (sliding)"
    ids = [3, 1, 4, 1, 5, 9]
    assert close(ours.append(torch.tensor(ids), keep=6).logits, laws(target, ids))
    ours.commit(3)
    again = ours.append(torch.tensor([2, 6]), keep=2).logits
    assert close(again, laws(target, [3, 1, 4, 2, 6])[3:])
    mixed = tiny("qwen3")
    mixed.config.layer_types = ["full_attention", "sliding_attention"]
    assert "(sliding_attention)" in str(GraphLM(mixed).reason)


def test_what_a_model_says_of_itself_is_believed() -> None:
    remote, flex, short = tiny("llama"), tiny("llama"), tiny("llama", context=6)
    remote._can_compile_fullgraph = False
    flex.config._attn_implementation = "flex_attention"
    assert "does not say that the forward of LlamaForCausalLM" in str(GraphLM(remote).reason)
    assert "attention flex_attention takes no ready mask" in str(GraphLM(flex).reason)
    assert "has a context of 6" in str(GraphLM(short).reason)


@pytest.mark.parametrize(("room", "again"), [(64, False), (8, True)])
def test_a_shape_is_recorded_once_and_once_more_after_growth(
    model: Make, monkeypatch: pytest.MonkeyPatch, room: int, again: bool
) -> None:
    record_on_the_cpu(monkeypatch)
    monkeypatch.setattr(static, "ROOM", room)
    target, draft, made = model("llama"), model("llama", noise=0.1), []
    record = Recorder.record
    monkeypatch.setattr(Recorder, "record", lambda self, w: made.append(w) or record(self, w))
    counts = []
    for _ in range(4):
        generate(GraphLM, target, draft, 3)
        counts.append(len(made))
    assert counts[0] > 0
    assert (counts[1] > counts[0]) == again  # the rows of short texts, at their new addresses
    assert counts[1] == counts[2] == counts[3]


def test_logits_are_not_overwritten_by_a_replay(
    model: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_on_the_cpu(monkeypatch)
    ours = GraphLM(model("llama"), layers=(1,))
    first = ours.append(torch.tensor([1]), keep=1)
    kept = first.logits.clone(), first.hidden[1].clone()
    ours.append(torch.tensor([2]), keep=1)
    assert torch.equal(first.logits, kept[0])
    assert torch.equal(first.hidden[1], kept[1])


def test_a_length_frozen_in_a_recording_is_found(
    model: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mask or a place made from the host's count: right at first, wrong in every replay."""
    record_on_the_cpu(monkeypatch)
    fill, run = static.StaticPass.fill, static.StaticPass.run
    counts: dict[object, int] = {}

    def counting(self: object, tokens: object, start: int, parents: object) -> None:
        counts[self] = start
        fill(self, tokens, start, parents)

    def frozen(self: object, *given: object) -> object:
        device_s, self._start = self._start, torch.full((), counts[self])
        try:
            return run(self, *given)
        finally:
            self._start = device_s

    monkeypatch.setattr(static.StaticPass, "fill", counting)
    monkeypatch.setattr(static.StaticPass, "run", frozen)
    for architecture in ARCHITECTURES:
        assert "are off by" in str(GraphLM(model(architecture)).reason)


def test_a_forward_that_reads_a_value_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    record_on_the_cpu(monkeypatch)
    target = tiny("gpt2")
    forward = target.forward

    def reads(**given: object) -> object:
        if int(given["position_ids"].max()) < 0:
            raise ValueError
        return forward(**given)

    begun, graph = [], torch.cuda.graph
    monkeypatch.setattr(
        torch.cuda, "graph", lambda *given, **more: begun.append(given) or graph(*given, **more)
    )
    monkeypatch.setattr(target, "forward", reads)
    reason = str(GraphLM(target).reason)
    assert "GPT2LMHeadModel cannot be recorded (RuntimeError: called a synchronizing" in reason
    assert not begun  # a failed one harms those to come


def test_a_forward_that_asks_for_a_length_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny("llama")
    forward = target.forward

    def asks(**given: object) -> object:
        given["past_key_values"].get_seq_length()
        return forward(**given)

    monkeypatch.setattr(target, "forward", asks)
    reason = str(GraphLM(target).reason)
    assert "LlamaForCausalLM cannot be recorded" in reason
    assert "asks the cache for its length" in reason


def test_a_failure_on_the_way_changes_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = tiny("gpt2"), tiny("gpt2", noise=0.1)
    plain = generate(EagerLM, target, draft, 3)
    call, calls = static.StaticRunner.__call__, []

    def fails(self: object, model: PreTrainedModel, *given: object) -> object:
        calls.append(model is target)
        if sum(calls) == 6 and calls[-1]:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        return call(self, model, *given)

    monkeypatch.setattr(static.StaticRunner, "__call__", fails)
    assert generate(GraphLM, target, draft, 3) == plain
    assert graphs.known(draft).reason is None
    said = "GPT2LMHeadModel cannot be recorded (RuntimeError: operation not permitted when stream"
    assert GraphLM(target).reason == f"{said} is capturing)"
    assert not graphs.known(target).idle
    assert generate(GraphLM, target, draft, 3) == plain
    assert sum(calls) == 6


@pytest.mark.parametrize(
    "bug",
    [
        lambda self, slots: self._columns < slots[:, None],
        lambda self, slots: self._columns <= slots[:, None] + 1,
        lambda self, slots: (self._columns <= slots[-1]).expand(len(slots), -1),
    ],
    ids=["itself", "the next", "all"],
)
def test_a_wrong_mask_is_found(
    model: Make, monkeypatch: pytest.MonkeyPatch, bug: Callable[..., torch.Tensor]
) -> None:
    monkeypatch.setattr(static.StaticPass, "_seen", bug)
    assert "are off by" in str(GraphLM(model("llama")).reason)


def test_shapes_depend_on_lengths_alone() -> None:
    assert [static.size_for(n) for n in (1, 2, 4, 6, 65, 66, 130)] == [1, 2, 5, 9, 65, 129, None]
    assert [cache.rows_for(n) for n in (1, 8, 9, 33)] == [8, 8, 16, 64]
