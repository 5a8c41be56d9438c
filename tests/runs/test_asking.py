"""A bench in the chat template: which cells are asked so, and what the model is given."""

import json
from pathlib import Path
from typing import Any

import pytest

import spsbench
from spsbench.errors import UsageError
from spsbench.settings.experiment import plan
from spsbench.settings.sweep import sweep
from spsbench.store.records import records
from tests import trained

XSUM = {"task": "xsum:data=mini,count=2", "target": "some/model"}


def chats(asked: dict[str, Any], has: bool = True) -> list[tuple[bool, str]]:
    parts = plan([sweep(XSUM | asked)], templates=lambda model: has).parts
    return [(cell.work.chat, part.task.prompt_version[:3]) for part in parts for cell in part.cells]


def test_auto_asks_where_there_is_a_template() -> None:
    assert chats({}) == chats({"chat": True}, has=False) == [(True, "ask")] * 2
    assert chats({}, has=False) == chats({"chat": "off"}) == [(False, "one")] * 2


def test_what_is_not_asked_has_the_id_of_before() -> None:
    cells = plan([sweep(XSUM | {"chat": "off"})]).cells
    values = cells[0].to_json()
    assert not values.pop("chat")
    assert not values.pop("system")
    assert type(cells[0]).from_json(json.loads(json.dumps(values))).id == cells[0].id


def test_what_cannot_be_asked() -> None:
    with pytest.raises(UsageError, match="--chat on with latency"):
        plan([sweep({"task": "latency", "chat": "on"})])
    with pytest.raises(UsageError, match="--system without a chat"):
        plan([sweep(XSUM | {"system": "Be brief."})])


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(name, "1")


@pytest.mark.usefixtures("offline")
def test_every_turn_has_the_answers_before_it(tmp_path: Path) -> None:
    target = trained.save(tmp_path / "target", trained.model())
    file = tmp_path / "turns.jsonl"
    file.write_text(json.dumps({"question_id": 81, "category": "a", "turns": ["the cat", "why"]}))
    asked: dict[str, Any] = {
        "target": str(target), "temperature": 0.0, "max_new_tokens": 8, "system": "Be brief.",
        "out": tmp_path / "run", "warmup": 0, "method": ["sps"],
    }  # fmt: skip
    spsbench.bench(f"jsonl:path={file}", **asked)
    first, second = records(tmp_path / "run")
    assert (first.sample, second.sample) == ("81", "81 turn 2")
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "the cat"},
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "why"},
    ]
    theirs = trained.tokenizer().apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    assert second.prompt_tokens == len(theirs)
