"""A prompt is read by a program, and its rows have the bits of single steps."""

import pytest
import torch

from spsbench.engines.quantization.layers import quantise
from spsbench.engines.session.engine_config import engine_config_of, get_prepared
from spsbench.extensions.cpu.fast import Fast
from spsbench.extensions.cpu.kernels.native import KINDS
from spsbench.extensions.cpu.replay.program import Affine
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


@dtypes
@pytest.mark.parametrize("architecture", variants.first(2, ARCHITECTURES))
def test_rows_of_a_prompt_have_the_bits_of_steps(architecture, dtype):
    model = model_of(architecture, dtype)
    whole, steps = read(model, PROMPT), read(model, PROMPT - STEPS, *[1] * STEPS)
    assert engine_config_of(model).row_bits
    assert get_prepared(model).replay.refused is None
    assert whole.isfinite().all()
    assert torch.equal(whole, steps)


@dtypes
@pytest.mark.parametrize("weights", variants.first(1, ("int4", "int8")))
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


def test_the_first_prompt_of_a_session_runs_programs_with_hidden_states_too():
    model, text = model_of("llama"), 7 * torch.arange(PROMPT) % 96
    Fast().session(model).append(text, keep=1)
    assert not get_prepared(model).replay._recordings  # the first prompt of a model waits for none
    for layers in (), (1, 3), (0, 2):
        for _ in range(2):  # the first of a kind is compared
            by_programs = get_prepared(model).replay.counts[1]
            prefill = Fast().session(model, layers=layers).append(text, keep=0)
        assert get_prepared(model).replay.counts[1] == by_programs + 1
        steps = Fast().session(model, layers=layers)
        rows = [steps.append(token, keep=1).hidden for token in text.split(1)]
        for layer in layers:
            each = torch.cat([row[layer] for row in rows])
            assert torch.equal(prefill.hidden[layer], each)


def test_a_prompt_in_chunks_is_one_prompt():
    model = model_of("llama")
    assert torch.equal(read(model, 400), read(model, 200, 150, 50))


def test_a_program_for_many_tokens_that_is_wrong_is_not_used(monkeypatch):
    stock, right = read(model_of("llama"), PROMPT), Affine.at

    def wrong(self, size):
        numbers = right(self, size).copy()
        numbers[numbers == PROMPT] -= 1
        return numbers

    monkeypatch.setattr(Affine, "at", wrong)
    model = model_of("llama")
    assert torch.equal(read(model, PROMPT), stock)
    assert "differs" in get_prepared(model).replay.refused


def test_hooks_hear_every_prompt():
    model, heard = model_of("llama"), []
    read(model, PROMPT)
    for module in (model, model.lm_head, model.model.norm, model.model.layers[-1]):
        handle = module.register_forward_hook(lambda *_: heard.append(1))
        Fast().session(model).append(torch.arange(PROMPT) % 96, keep=0)
        handle.remove()
    assert len(heard) == 4
