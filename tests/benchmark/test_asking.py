"""A bench in the chat template: which cells are asked so, and what the model is given."""

import json
from dataclasses import replace

import pytest

import spsbench
from spsbench.errors import UsageError
from spsbench.settings.experiment import expand_tables
from spsbench.settings.grid import Sweep
from spsbench.settings.models import ModelFacts
from spsbench.settings.options import parse
from spsbench.store.records import records
from tests import trained

XSUM = {"task": "xsum:data=mini,count=2", "target": "some/model"}


def chats(asked, has=True):
    parts = expand_tables(
        [parse(XSUM | asked, Sweep)[0]], ModelFacts(template=lambda model: has)
    ).parts
    return [(r.chat, part.task.prompt_version[:3]) for part, some, _ in parts for r in some]


def test_auto_asks_where_there_is_a_template():
    assert chats({}) == chats({"chat": True}, has=False) == [(True, "ask")] * 2
    assert chats({}, has=False) == chats({"chat": "off"}) == [(False, "one")] * 2


def sampled(asked):
    own = {"temperature": 0.2, "top_k": 20}
    made = expand_tables(
        [parse(XSUM | asked, Sweep)[0]], ModelFacts(lambda model: True, lambda model: own)
    )
    laws = made.cells
    return {(law.temperature, law.top_p, law.top_k) for law in laws}


def test_a_chat_is_sampled_as_its_model_names_and_flags_win(said):
    assert sampled({}) == {(0.2, 1.0, 20)}
    assert said[-1].startswith(
        "chat: temperature 0.2, top-k 20 from the generation_config of some/"
    )
    assert sampled({"temperature": [1.0, 0.5], "top_p": 0.9}) == {(1.0, 0.9, 20), (0.5, 0.9, 20)}
    assert sampled({"temperature": [0.0, 0.5]}) == {(0.0, 1.0, 0), (0.5, 1.0, 20)}
    assert sampled({"chat": "off"}) == {(1.0, 1.0, 0)}
    assert sampled({"setting": "nucleus"}) == {(1.0, 0.8, 0)}


def test_what_cannot_be_asked():
    with pytest.raises(UsageError):
        expand_tables([parse({"task": "latency", "chat": "on"}, Sweep)[0]])
    with pytest.raises(UsageError):
        expand_tables([parse(XSUM | {"system": "Be brief."}, Sweep)[0]])


def test_a_pair_chats_with_the_sampling_of_its_target(tmp_path):
    target = trained.save(tmp_path / "target", trained.model())
    named = {"temperature": 0.25, "top_p": 0.9, "repetition_penalty": 1.1}
    (target / "generation_config.json").write_text(json.dumps(named))
    said = []
    pair = spsbench.load(target=str(target), max_new_tokens=4, offline=True, say=said.append)

    def law(prompt, **asked):
        used = pair.generation(prompt, **asked).cell
        return used.temperature, used.top_p

    chat = [{"role": "user", "content": "the cat"}]
    assert law("the cat", chat=True) == law(chat) == (0.25, 0.9)
    assert law(chat, temperature=1.0) == (1.0, 0.9)
    assert not any("temperature=0.25" in line for line in said)
    assert law("the cat") == (1.0, 1.0)
    assert sum("temperature=0.25, top_p=0.9" in line for line in said) == 1
    chats = [line for line in said if line.startswith("chat: temperature 0.25, top-p 0.9")]
    assert len(chats) == 1
    assert "repetition-penalty 1.1" in chats[0]
    compared = pair.compare("the", chat=True, max_new_tokens=2)
    assert compared.ars.cell.temperature == compared.sps.cell.temperature == 0.25
    cold = spsbench.load(target=str(target), temperature=0.0, offline=True)
    greedy = cold.generation(chat).cell  # a penalty changes greedy texts as well
    assert str(greedy.repetition_penalty) == "1.1"
    assert replace(greedy, repetition_penalty=cold.cell.repetition_penalty) == cold.cell


@pytest.mark.parametrize("fields", [{}, {"system": "Be kind to all."}])
def test_every_turn_has_a_system_message_and_the_answers_before_it(tmp_path, fields):
    target = trained.save(tmp_path / "target", trained.model())
    file = tmp_path / "turns.jsonl"
    file.write_text(
        json.dumps({"question_id": 81, "category": "a", "turns": ["the cat", "why"], **fields})
    )
    asked = {
        "target": str(target), "temperature": 0.0, "max_new_tokens": 8, "system": "Be brief.",
        "out": tmp_path / "run", "warmup": 0, "offline": True, "method": ["sps"],
    }  # fmt: skip
    spsbench.bench(f"jsonl:path={file}", **asked)
    first, second = records(tmp_path / "run")
    assert (first.sample, second.sample) == ("81", "81 turn 2")
    messages = [
        {"role": "system", "content": fields.get("system", "Be brief.")},
        {"role": "user", "content": "the cat"},
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "why"},
    ]
    theirs = trained.tokenizer().apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    assert second.prompt_tokens == len(theirs)
