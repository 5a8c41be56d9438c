"""Requests of the harness to the model `sps`, without the harness."""

from types import SimpleNamespace

import pytest

from spsbench.extensions.lm_eval.command import PairModel


class Model(PairModel):
    cache_hook = SimpleNamespace(add_partial=lambda *arguments: None)


@pytest.fixture(scope="module")
def model():
    return Model(target="nano", drafter="ngram", k=2, offline=True, engine="eager")


def texts_of(model, *requests):
    return model.generate_until([SimpleNamespace(args=request) for request in requests], True)


def test_a_context_is_read_as_likelihoods_read_it(model):
    context = f"def add(a, b):{model.tokenizer.eos_token}def"
    ids = model.tok_encode(context)
    assert model.eot_token_id in ids
    alone = model.pair.generate(ids, k=0, temperature=0, max_new_tokens=8)
    assert texts_of(model, (context, {"max_gen_toks": 8})) == [alone.text]


def test_repeats_of_a_request_are_samples_of_their_own(model):
    request = ("def add(a, b):", {"max_gen_toks": 16, "do_sample": True, "temperature": 1.0})
    assert len(set(texts_of(model, *[request] * 4))) == 4
