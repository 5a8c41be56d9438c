"""The model `sps` in lm-evaluation-harness; skipped where the harness is not installed."""

import importlib.util
from types import SimpleNamespace

import pytest
import torch

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("lm_eval") is None, reason="lm_eval is not installed"
    ),
    pytest.mark.slow,  # the harness imports for seconds
    pytest.mark.filterwarnings("default"),  # its own warnings are not ours
]
PROMPT = "def add(a, b):\n    "


@pytest.fixture(scope="module")
def model():
    from spsbench.extensions.lm_eval.command import register_model

    return register_model().create_from_arg_string(
        "target=nano,draft=nano-draft,k=4,offline=True,engine=eager",
        {"batch_size": 1, "device": None},
    )


def request(*arguments):
    return SimpleNamespace(args=arguments)


def test_greedy_texts_are_the_target_s_own(model):
    asked = {"until": ["\n\n"], "max_gen_toks": 24}
    (text,) = model.generate_until([request(PROMPT, asked)], disable_tqdm=True)
    alone = model.pair.generate(PROMPT, k=0, temperature=0, max_new_tokens=24, stop=["\n\n"])
    assert text == alone.text
    assert model.rounds


def test_likelihoods_are_those_of_a_plain_pass(model):
    continuation = "return a + b"
    ((found, greedy),) = model.loglikelihood([request(PROMPT, continuation)], disable_tqdm=True)
    whole = model.tok_encode(PROMPT + continuation)
    begin = len(model.tok_encode(PROMPT.rstrip()))  # the harness gives the rest to what follows
    with torch.inference_mode():
        logits = model.pair.loaded.target(torch.tensor([whole])).logits[0].double()
    logs = logits[:, : model.pair.loaded.vocab_size].log_softmax(-1)
    expected = sum(float(logs[i - 1, whole[i]]) for i in range(begin, len(whole)))
    assert found == pytest.approx(expected, abs=1e-4)
    likeliest = [int(logs[i - 1].argmax()) for i in range(begin, len(whole))]
    assert greedy == (likeliest == whole[begin:])


def test_a_rolling_likelihood_is_one_window_of_a_short_text(model):
    text = "import os\nimport sys\n"
    (rolling,) = model.loglikelihood_rolling([request(text)], disable_tqdm=True)
    ((whole, _),) = model.loglikelihood([request("", text)], disable_tqdm=True)
    assert rolling == pytest.approx(whole)


def test_a_context_is_read_as_likelihoods_read_it(model):
    context = f"def add(a, b):{model.tokenizer.eos_token}def"
    ids = model.tok_encode(context)
    assert model.eot_token_id in ids
    alone = model.pair.generate(ids, k=0, temperature=0, max_new_tokens=8)
    (text,) = model.generate_until([request(context, {"max_gen_toks": 8})], disable_tqdm=True)
    assert text == alone.text


def test_repeats_of_a_request_are_samples_of_their_own(model):
    asked = {"max_gen_toks": 16, "do_sample": True, "temperature": 1.0}
    requests = [request("def add(a, b):", asked)] * 4
    assert len(set(model.generate_until(requests, disable_tqdm=True))) == 4
