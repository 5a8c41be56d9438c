"""Sessions over a cache of fixed size: growth, rollbacks, and which models run in eager.

`test_sessions` runs its scripts over this engine too.
"""

import copy

import pytest
import torch
from transformers import StaticCache

from spsbench.engines import static
from spsbench.engines.eager import EagerLM
from spsbench.engines.session.engine_config import engine_config_of
from spsbench.engines.static import Static, StaticLM, unsupported
from tests.oracles.models import laws, tiny

IDS = [(5 * i + i // 7) % 12 for i in range(90)]


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_passes_of_any_size_equal_a_pass_without_a_cache(architecture, monkeypatch):
    monkeypatch.setattr(static, "FIRST_ROWS", 4)
    model = tiny(architecture, context=128)
    exact, lm, rows = laws(model, IDS), StaticLM(model, layers=(1,)), set()
    lm.append(torch.tensor(IDS[:3]), keep=0)
    for m in 1, 2, 4, 5, 7, 16, 1:
        start = lm.length
        lm.append(torch.tensor([11] * m), keep=m)
        lm.commit(start)  # rejected
        scores = lm.append(torch.tensor(IDS[start : start + m]), keep=m)
        torch.testing.assert_close(scores.logits, exact[start : start + m])
        assert scores.hidden[1].shape == (m, 32)
        rows.add(lm._rows)
    assert len(rows) > 2
    assert isinstance(lm._cache, StaticCache)


def test_a_session_serves_again_and_forgets_what_is_no_number():
    model = tiny("llama")
    exact, lm = laws(model, IDS[:20]), StaticLM(model)
    lm.append(torch.tensor(IDS[:30]), keep=0)
    with torch.inference_mode():
        lm._cache.layers[0].keys[:, :, 15:] = torch.nan
    lm.commit(0)
    lm.append(torch.tensor(IDS[:10]), keep=0)
    torch.testing.assert_close(lm.append(torch.tensor(IDS[10:20]), 10).logits, exact[10:20])


@pytest.mark.parametrize(
    ("model", "engine", "reason"),
    [
        (("llama", {}), "static", "not compiled, which is for CUDA"),
        (("mistral", {"sliding_window": 5}), "eager", "attends otherwise"),
    ],
)
def test_models_without_passes_of_fixed_shape_run_in_eager(model, engine, reason):
    model = tiny(model[0], **model[1])
    chosen = Static().prepare(model)
    assert (chosen["engine"], reason in chosen["reason"]) == (engine, True)
    assert type(Static().session(model)) is (StaticLM if engine == "static" else EagerLM)
    assert engine_config_of(model).engine == engine


def test_forwards_that_fixed_shapes_do_not_fit_are_named(monkeypatch):
    model = copy.deepcopy(tiny("llama"))
    assert unsupported(model) is None
    model.config._attn_implementation = "flex_attention"
    assert (
        unsupported(model) == "attention flex_attention takes no ready mask: expected sdpa or eager"
    )
    monkeypatch.setattr(type(model), "_can_compile_fullgraph", False)
    assert "does not say that the forward of LlamaForCausalLM" in unsupported(model)


def test_a_model_whose_static_sessions_are_wrong_runs_in_eager(monkeypatch):
    def frozen(self, m, parents):
        return torch.arange(m)

    monkeypatch.setattr(StaticLM, "_positions", frozen)
    model = tiny("llama")
    assert "after a rollback its logits are off" in Static().prepare(model)["reason"]
    assert type(Static().session(model)) is EagerLM


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:::torch")  # of its compiler
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_compiled_passes_are_those_of_eager():
    model = copy.deepcopy(tiny("llama", dtype=torch.float32)).cuda()
    eager, lm = EagerLM(model), StaticLM(model)
    for session in eager, lm:
        session.append(torch.tensor(IDS[:9]), keep=0)
    for _ in range(4):  # compiled, recorded, replayed
        for m in 1, 5:
            block = torch.tensor(IDS[lm.length : lm.length + m])
            logits = [session.append(block, keep=m).logits for session in (eager, lm)]
            torch.testing.assert_close(logits[1], logits[0], rtol=1e-4, atol=1e-4)
            for session in eager, lm:
                session.commit(session.length - m // 2)
