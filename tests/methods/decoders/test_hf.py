"""transformers' own generate as a decoder: the same greedy text, and K where it is really read."""

import copy
from dataclasses import replace

import pytest
import torch
from transformers import GenerationConfig

from spsbench.engines.eager import EagerLM
from spsbench.errors import DataError
from spsbench.loop.decode import never
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Limits
from spsbench.methods.decoders.hf import HfDecoder, config_of
from tests.decoding import output, rounds_of
from tests.variants import first

PROMPT = [1, 5, 2, 7]
VOCAB = 24
GREEDY = Warp(temperature=0.0)


@pytest.fixture(scope="module")
def target(model):
    return model("llama", vocab=VOCAB, dtype=torch.float32)


@pytest.fixture(scope="module")
def draft(model):
    return model("llama", vocab=VOCAB, dtype=torch.float32, noise=0.1)


def native(target, limits, warp=GREEDY):
    return output(rounds_of(EagerLM(target), prompt=PROMPT, limits=limits, warp=warp))


def run(decoder, limits, warp=GREEDY, stop=never, seed=0):
    noise = PhiloxStream(seed)
    return list(decoder(PROMPT, limits=limits, warp=warp, noise=noise, stop=stop))


@pytest.mark.parametrize("k", first(2, (0, 3, 1, 5)))
def test_greedy_text_is_that_of_the_native_loop(target, draft, k):
    limits = Limits(40)
    rounds = run(HfDecoder(target, draft if k else None, k), limits)
    assert output(rounds) == native(target, limits)
    assert rounds[-1].finish == "length"
    assert all(done.seconds > 0 for done in rounds)


@pytest.mark.parametrize("k", first(1, (3, 0)))
def test_the_models_own_settings_change_no_text(target, draft, k):
    """What a `generation_config.json` asks for is no part of the cell, and native leaves it out."""
    wanted = native(target, Limits(40))
    asked = {
        "repetition_penalty": 5.0,
        "no_repeat_ngram_size": 2,
        "suppress_tokens": [wanted[3]],
        "begin_suppress_tokens": [wanted[0]],
        "eos_token_id": wanted[10],
        "min_new_tokens": 50,
        "output_scores": True,
        "return_dict_in_generate": True,
    }
    with_settings = [copy.copy(model) for model in (target, draft)]
    for model in with_settings:
        model.generation_config = GenerationConfig(**asked)
    before = [model.generation_config for model in with_settings]
    rounds = run(HfDecoder(with_settings[0], with_settings[1] if k else None, k), Limits(40))
    assert output(rounds) == wanted
    assert [model.generation_config for model in with_settings] == before
    looked_up = run(HfDecoder(with_settings[0], None, 3, lookup=2), Limits(40))
    assert output(looked_up) == wanted


def test_only_what_was_drafted_is_counted(target, draft):
    """Prompt lookup drafts nothing where nothing repeats, and a pass of one token tests nothing."""
    k, passes = 4, []

    def watch(module, args, kwargs):
        passes.append(kwargs["input_ids"].shape[1])

    with target.register_forward_pre_hook(watch, with_kwargs=True):
        rounds = run(HfDecoder(target, None, k, lookup=2), Limits(40))
    assert output(rounds) == native(target, Limits(40))
    drafted = [done.drafted for done in rounds]
    assert drafted == [passes[0] - len(PROMPT), *(fed - 1 for fed in passes[1:])]
    assert drafted[0] == 0 < max(drafted) <= k
    assert all(done.accepted <= done.drafted for done in rounds)
    assert all(done.tested == min(done.accepted + 1, done.drafted) for done in rounds)
    # transformers gives its assistant room for the target's own token, as the native loop does
    for assistant in draft, target:
        last = run(HfDecoder(target, assistant, k), Limits(2))
        assert last[0].drafted == 1


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
@pytest.mark.parametrize("k", [0, 3])
def test_a_text_ends_with_the_context(model, architecture, k):
    small = model(architecture, vocab=VOCAB, context=16, dtype=torch.float32)
    helper = small if k else None
    rounds = run(HfDecoder(small, helper, k), Limits(60))
    assert output(rounds) == native(small, Limits(60))
    assert (len(output(rounds)), rounds[-1].finish) == (12, "context")
    sampled = run(HfDecoder(small, helper, k), Limits(60), Warp(0.3))
    assert len(output(sampled)) == 12
    assert run(HfDecoder(small, helper, k), Limits(12))[-1].finish == "length"
    decoder = HfDecoder(small, helper, k)
    with pytest.raises(ValueError):
        list(decoder([1] * 17, limits=Limits(4), warp=GREEDY, noise=PhiloxStream(0), stop=never))


def test_a_draft_beyond_its_context_is_refused_in_time(target, model):
    short = model("gpt2", vocab=VOCAB, context=16, dtype=torch.float32)
    assert len(output(run(HfDecoder(target, short, 3), Limits(13)))) == 13
    with pytest.raises(DataError):
        run(HfDecoder(target, short, 3), Limits(14))
    assert len(output(run(HfDecoder(target, short, 0), Limits(14)))) == 14
    assert len(output(run(HfDecoder(short, None, 3, lookup=2), Limits(10)))) == 10
    with pytest.raises(DataError):
        run(HfDecoder(short, None, 3, lookup=2), Limits(11))


def test_it_ends_at_an_end_token(target):
    plain = native(target, Limits(40))
    end = plain[20]
    limits = Limits(40, frozenset({end}))
    rounds = run(HfDecoder(target, target, 4), limits)
    assert output(rounds) == plain[: plain.index(end) + 1]
    assert rounds[-1].finish == "eos"


def test_sampling_is_the_cells_and_seeded(target, draft):
    warp, limits = Warp(temperature=0.7, top_p=0.9), Limits(24)
    before = torch.get_rng_state()
    first = run(HfDecoder(target, draft, 3), limits, warp, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert output(first) == output(run(HfDecoder(target, draft, 3), limits, warp, seed=1))
    assert output(first) != output(run(HfDecoder(target, draft, 3), limits, warp, seed=2))
    config = config_of(limits, replace(warp, min_p=0.1))
    assert (config.do_sample, config.temperature, config.top_p, config.top_k) == (True, 0.7, 0.9, 0)
    assert config.min_p == 0.1


def test_rows_of_padding_are_never_drawn(target, draft):
    likely = native(target, Limits(40))
    kept = sorted(set(likely))[-1]  # the greatest id that it would draw is padding from now on
    for k in (0, 3):
        rounds = run(HfDecoder(target, draft if k else None, k, vocab_size=kept), Limits(40))
        assert max(output(rounds)) < kept
    assert max(output(run(HfDecoder(target, None, 0), Limits(40)))) == kept


def test_a_warp_that_it_cannot_honour_is_refused(target):
    with pytest.raises(TypeError):
        run(HfDecoder(target, None, 0), Limits(4), warp=lambda logits: logits.softmax(-1))
