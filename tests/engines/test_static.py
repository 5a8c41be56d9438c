"""Sessions that borrow recorded passes: shapes, growth, reuse, and which models run in eager.

On a CPU a recording makes its pass again into the same results, which is what a graph does.
`test_sessions` runs its scripts over this engine too.
"""

import copy

import pytest
import torch

from spsbench.engines.eager import EagerLM
from spsbench.engines.session.engine_config import engine_config_of
from spsbench.engines.static import Static, StaticLM, idle_runners, why_unsupported
from tests.oracles.models import laws, tiny

IDS = [(5 * i + i // 7) % 12 for i in range(300)]


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_passes_of_any_size_equal_a_pass_without_a_cache(architecture):
    model = tiny(architecture, context=64)
    exact, lm = laws(model, IDS[:64]), StaticLM(model, layers=(1,))
    lm.append(torch.tensor(IDS[:17]), keep=0)
    for m in 1, 2, 4, 5, 7, 16, 1, 11:
        start = lm.length
        lm.append(torch.tensor([11] * m), keep=m)
        lm.commit(start)  # rejected
        scores = lm.append(torch.tensor(IDS[start : start + m]), keep=m)
        torch.testing.assert_close(scores.logits, exact[start : start + m])
        assert scores.hidden[1].shape == (m, 32)
    assert lm._runner.rows == 128  # padding reached beyond the context


def test_attention_reads_more_rows_step_by_step():
    model = tiny("llama", context=512)
    exact, lm = laws(model, IDS), StaticLM(model)
    lm.append(torch.tensor(IDS[:250]), keep=0)
    parts = [lm.append(torch.tensor(IDS[i : i + 5]), keep=5).logits for i in range(250, 300, 5)]
    torch.testing.assert_close(torch.cat(parts), exact[250:])
    assert set(lm._runner.replays) == {(5, 256), (5, 512)}


def test_sessions_in_turn_share_buffers_and_recordings_at_once_they_do_not():
    model, seen = copy.deepcopy(tiny("llama")), set()
    for text in range(3):
        lm = StaticLM(model)
        lm.append(torch.tensor(IDS[text:30]), keep=0)
        for m in 1, 5, 3, 5:
            lm.append(torch.tensor(IDS[:m]), keep=m)
        lm.commit(20)
        addresses = [buffer.data_ptr() for x in lm._cache.layers for buffer in (x.keys, x.values)]
        seen.add((tuple(addresses), *map(id, lm._runner.replays.values())))
        other = StaticLM(model)
        assert other._runner is not lm._runner
        del lm, other
    assert len(seen) == 1
    assert len(idle_runners(model, ())) == 2
    model.double().float().double()  # other addresses
    assert idle_runners(model, ()) == []


@pytest.mark.parametrize("again", [True, False], ids=["the same session", "the next"])
def test_what_is_no_number_is_forgotten(again):
    model = copy.deepcopy(tiny("llama"))
    exact, lm = laws(model, IDS[:20]), StaticLM(model)
    lm.append(torch.tensor(IDS[:30]), keep=0)
    with torch.inference_mode():
        lm._cache.layers[0].keys[:, :, 15:] = torch.nan
    if again:
        lm.commit(0)
    else:
        del lm
        lm = StaticLM(model)
    lm.append(torch.tensor(IDS[:10]), keep=0)
    torch.testing.assert_close(lm.append(torch.tensor(IDS[10:20]), 10).logits, exact[10:20])


@pytest.mark.parametrize(
    ("model", "engine", "reason"),
    [
        (("llama", {}), "static", "not recorded, which is for CUDA"),
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
    assert why_unsupported(model) is None
    model.config._attn_implementation = "flex_attention"
    assert (
        why_unsupported(model)
        == "attention flex_attention takes no ready mask: expected sdpa or eager"
    )
    monkeypatch.setattr(type(model), "_can_compile_fullgraph", False)
    assert "does not say that the forward of LlamaForCausalLM" in why_unsupported(model)


def test_a_forward_that_a_recording_would_freeze_runs_in_eager():
    model = copy.deepcopy(tiny("llama"))
    stock = model.forward

    def asks(past_key_values=None, **inputs):
        if past_key_values is not None:
            past_key_values.get_seq_length()
        return stock(past_key_values=past_key_values, **inputs)

    model.forward = asks
    assert "its forward asks the cache for its length" in Static().prepare(model)["reason"]
    assert type(Static().session(model)) is EagerLM


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_recorded_passes_are_those_of_eager_and_do_not_grow():
    model = copy.deepcopy(tiny("llama", dtype=torch.float32)).cuda()
    assert Static().prepare(model)["engine"] == "static"
    for _ in range(3):
        eager, lm = EagerLM(model), StaticLM(model)
        count = len(lm._runner.replays)
        for session in eager, lm:
            session.append(torch.tensor(IDS[:9]), keep=0)
        for m in (1, 5) * 4:
            block = torch.tensor(IDS[lm.length : lm.length + m])
            logits = [session.append(block, keep=m).logits for session in (eager, lm)]
            torch.testing.assert_close(logits[1], logits[0], rtol=1e-4, atol=1e-4)
            for session in eager, lm:
                session.commit(session.length - m // 2)
        grown = len(lm._runner.replays) - count
        del eager, lm
    assert grown == 0
