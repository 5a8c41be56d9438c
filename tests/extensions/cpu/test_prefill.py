"""A prompt is read by operators over many rows, and its rows are those of single steps."""

import pytest
import torch

from spsbench.engines.quantization.layers import quantise
from spsbench.engines.session.engine_config import engine_config_of, prepared
from spsbench.extensions.cpu.fast import Fast
from spsbench.extensions.cpu.kernels.native import KINDS
from spsbench.extensions.cpu.replay.stretched import Stretched, StretchedPrograms
from tests import variants
from tests.extensions.cpu.laid_out import laid_out
from tests.extensions.cpu.programs import MODELS
from tests.oracles.models import tiny

dtypes = pytest.mark.parametrize("dtype", KINDS, ids=str)
PROMPT, STEPS = 150, 20  # tokens: more than a program takes; that are fed one by one
ARCHITECTURES = ("llama", "gpt2", "qwen3", "qwen2", "phi3")  # without windows


def model_of(architecture, dtype=torch.float32, weights=None):
    wide = {"n_inner": 128} if architecture == "gpt2" else {"intermediate_size": 128}
    model = tiny(architecture, vocab=96, dtype=dtype, **MODELS[architecture], **wide)
    if weights:
        quantise(model, weights)
    laid_out(model, "panels")
    return model


def read(model, *sizes):
    """Logits of a text in passes of these sizes, in a session that has read another one."""
    lm, text = Fast().session(model), 7 * torch.arange(sum(sizes)) % 96
    for other in (30, 40):
        lm.append(torch.arange(other), keep=0)
        lm.commit(0)
    return torch.cat([lm.append(part, keep=len(part)).logits for part in text.split(sizes)])


def way(model, *, hidden=False):
    return prepared(model).replay._prefill._ways[hidden]


@dtypes
@pytest.mark.parametrize("architecture", variants.first(3, ARCHITECTURES))
def test_rows_of_a_prompt_have_the_bits_of_steps(architecture, dtype):
    model = model_of(architecture, dtype)
    whole, steps = read(model, PROMPT), read(model, PROMPT - STEPS, *[1] * STEPS)
    assert engine_config_of(model).row_bits
    assert way(model).programs.any()
    assert prepared(model).replay._prefill._body is model.base_model
    assert whole.isfinite().all()
    assert torch.equal(whole, steps)


@dtypes
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_over_codes_too(weights, dtype):
    model = model_of("llama", dtype, weights)
    assert torch.equal(read(model, PROMPT), read(model, PROMPT - STEPS, *[1] * STEPS))


@pytest.mark.parametrize("architecture", variants.first(1, ARCHITECTURES))
def test_a_prompt_whose_logits_nobody_reads_leaves_the_same_keys(architecture):
    model = model_of(architecture)
    whole, text = read(model, PROMPT), 7 * torch.arange(PROMPT) % 96
    last = len(model.base_model.layers if architecture != "gpt2" else model.base_model.h)
    for layers in (), (1, 3), (0, last):
        lm = Fast().session(model, layers=layers)
        prefill = lm.append(text[:-STEPS], keep=0)
        steps = [lm.append(token, keep=1).logits for token in text[-STEPS:].split(1)]
        assert torch.equal(torch.cat(steps), whole[-STEPS:])
        assert prefill.logits.shape == (0, 96)
        assert [len(prefill.hidden[n]) for n in layers] == [PROMPT - STEPS] * len(layers)


@pytest.mark.parametrize("architecture", variants.first(1, ARCHITECTURES))
def test_the_first_prompt_of_a_session_runs_programs_with_hidden_states_too(
    architecture, monkeypatch
):
    model, text = model_of(architecture), 7 * torch.arange(PROMPT) % 96
    read(model, PROMPT)
    calls = []
    run = StretchedPrograms.run

    def counted(self, *given):
        result = run(self, *given)
        calls.append(result is not None)
        return result

    for layers in (), (1, 3), (0, 2):
        lm = Fast().session(model, layers=layers)
        lm.append(text[:1], keep=0)  # of another text, which is the trial's
        lm = Fast().session(model, layers=layers)
        with monkeypatch.context() as patch:
            patch.setattr(StretchedPrograms, "run", counted)
            prefill = lm.append(text, keep=0)
        assert calls
        assert all(calls)
        steps = Fast().session(model, layers=layers)
        rows = [steps.append(token, keep=1).hidden for token in text.split(1)]
        for layer in layers:
            each = torch.cat([row[layer] for row in rows])
            assert torch.equal(prefill.hidden[layer], each)
    assert way(model, hidden=True).programs.joins


def test_a_prompt_in_chunks_is_one_prompt():
    model = model_of("llama")
    assert torch.equal(read(model, 400), read(model, 200, 150, 50))


def test_a_stretched_program_that_is_wrong_is_not_used(monkeypatch):
    stock, right = read(model_of("llama"), PROMPT), Stretched.__init__

    def wrong(self, few, twice, tokens, keys_alone=False):
        right(self, few, twice, tokens, keys_alone)
        for operation in self.steps:
            operation.n[0] -= operation.n[0] == tokens

    monkeypatch.setattr(Stretched, "__init__", wrong)
    model = model_of("llama")
    assert torch.equal(read(model, PROMPT), stock)
    assert way(model).programs is None
    assert way(model).groups


def test_layers_whose_inputs_a_model_changes_run_one_by_one(monkeypatch):
    model = model_of("llama")
    read(model, PROMPT)
    programs, layers = way(model).programs, model.model.layers
    joined = read(model, PROMPT)
    forward = layers[1].forward
    monkeypatch.setattr(
        layers[1], "forward", lambda x, *more, **named: forward(x * 2, *more, **named)
    )
    changed = read(model, PROMPT)
    assert not programs.joins
    assert not torch.equal(changed, joined)
    assert torch.equal(read(model, PROMPT), changed)


def test_hooks_hear_every_prompt():
    model, heard = model_of("llama"), []
    read(model, PROMPT)
    for module in (model, model.lm_head, model.model.norm, model.model.layers[-1]):
        handle = module.register_forward_hook(lambda *_: heard.append(1))
        Fast().session(model).append(torch.arange(PROMPT) % 96, keep=0)
        handle.remove()
    assert len(heard) == 4
