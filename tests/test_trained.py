"""Engines, loader, chat and audit on models that behave as trained ones do (`tests/trained.py`)."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import spsbench
from spsbench.models.tokenizers import encode_chat, load_tokenizer
from tests import trained

ASK = [{"role": "user", "content": "the cat and the dog"}]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    home = tmp_path_factory.mktemp("trained")
    made = {"target": trained.model(), "draft": trained.model(noise=0.05)}
    target, draft = (str(trained.save(home / name, one)) for name, one in made.items())
    return target, draft


@pytest.fixture(scope="module")
def pair(folders):
    return spsbench.load(target=folders[0], draft=folders[1], max_new_tokens=48)


def test_it_is_unlike_random_weights(folders):
    model = AutoModelForCausalLM.from_pretrained(folders[0])
    ids = torch.tensor(
        [load_tokenizer(Path(folders[0]), trust_remote_code=False)("the cat sat")["input_ids"]]
    )
    with torch.inference_mode():
        found = model(ids, output_hidden_states=True)
    hidden = found.hidden_states[2][0].abs()
    rest = [i for i in range(trained.WIDTH) if i not in trained.OUTLIERS]
    assert hidden[:, list(trained.OUTLIERS)].max() > 50 * hidden[:, rest].median()
    assert found.logits.abs().max() > 20
    assert {model.config.bos_token_id, model.config.eos_token_id} == {1, 2}


@pytest.mark.needs_fast
@pytest.mark.parametrize(
    ("engine", "chat"),
    [
        ("fast", True),
        ("eager", False),
        pytest.param("fast", False, marks=pytest.mark.slow),
        pytest.param("eager", True, marks=pytest.mark.slow),
    ],
)
def test_greedy_text_is_that_of_transformers(folders, engine, chat):
    pair = spsbench.load(
        target=folders[0],
        draft=folders[1],
        engine=engine,
        temperature=0.0,
        max_new_tokens=40,
    )
    done = pair.generate(ASK if chat else "the cat sat on")
    tokenizer = pair.loaded.tokenizer
    ids = (
        tokenizer.apply_chat_template(ASK, add_generation_prompt=True, return_dict=False)
        if chat
        else tokenizer("the cat sat on")["input_ids"]
    )
    theirs = AutoModelForCausalLM.from_pretrained(folders[0]).generate(
        torch.tensor([ids]), max_new_tokens=40, do_sample=False, pad_token_id=2
    )
    assert done.tokens == theirs[0, len(ids) :].tolist()
    assert sum(r.accepted for r in done.rounds) > 0


def test_the_template_is_that_of_the_model(folders):
    tokenizer = load_tokenizer(Path(folders[0]), trust_remote_code=False)
    for messages in ASK, [{"role": "system", "content": "Be kind."}, *ASK]:
        assert encode_chat(tokenizer, messages) == tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False
        )


@pytest.mark.slow
def test_an_audit_holds(pair):
    held = pair.verify(bias=0.2, prompts=4, max_tokens=20_000, workers=1, task=("xsum:data=mini",))
    assert held


def test_a_greedy_audit_holds(pair):
    assert pair.verify(prompts=3, temperature=0.0, max_new_tokens=24, task=("xsum:data=mini",))
