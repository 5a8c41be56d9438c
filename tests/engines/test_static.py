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
from tests.oracles.models import DEVICE, laws, tiny

IDS = [(5 * i + i // 7) % 12 for i in range(300)]


def test_attention_reads_more_rows_step_by_step_and_padding_leaves_the_context():
    model, parts, shapes = tiny("gpt2", context=300), [], set()
    exact, lm = laws(model, IDS), StaticLM(model, layers=(1,))
    lm.append(torch.tensor(IDS[:248]), keep=0)
    for i in range(248, 300, 4):
        lm.append(torch.tensor([11] * 4), keep=4)
        lm.commit(i)  # rejected
        parts.append(lm.append(torch.tensor(IDS[i : i + 4]), keep=4))
        shapes |= set(lm._runner.replays)
    torch.testing.assert_close(torch.cat([part.logits for part in parts]), exact[248:])
    assert {part.hidden[1].shape for part in parts} == {(4, 32)}
    assert shapes == {(5, 256), (5, 300), (5, 512)}


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
    for part in IDS[:29], IDS[29:30]:  # the second makes room
        lm.append(torch.tensor(part), keep=1)
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
        (("llama", {}), "static", "not recorded" if DEVICE.type == "cpu" else "recorded as graphs"),
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
