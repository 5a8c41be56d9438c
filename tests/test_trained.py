"""Engines, loader and chat on models that behave as trained ones do (`tests/trained.py`)."""

import pytest
import torch
from transformers import AutoModelForCausalLM

import spsbench
from tests import trained

ASK = [{"role": "user", "content": "the cat and the dog"}]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    home = tmp_path_factory.mktemp("trained")
    made = {"target": trained.model(), "draft": trained.model(noise=0.05)}
    target, draft = (str(trained.save(home / name, one)) for name, one in made.items())
    return target, draft


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
        target=folders[0], draft=folders[1], engine=engine, temperature=0.0, max_new_tokens=40
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
