"""Prompts from a file: our rows, Spec-Bench's questions, and what is neither."""

import json
import re
from pathlib import Path

import pytest

from spsbench.errors import DataError
from spsbench.messages import lines_to
from spsbench.settings.experiment import task_spec
from spsbench.settings.grid import Sweep
from spsbench.settings.task import Sample
from spsbench.spec import Spec
from spsbench.tasks.jsonl import Jsonl
from tests.tasks.rows import always, written

CHAT = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": [{"type": "text", "text": "a"}], "name": None},
]


def test_the_page_on_prompts_shows_every_field_that_it_names(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "howto" / "prompts.md").read_text()
    (example,) = re.findall(r"```json\n(.*?)```", page, re.S)
    shown = [json.loads(line) for line in example.splitlines()]
    assert len(list(Jsonl(written(tmp_path, *shown)).samples(always))) == 3
    described = {
        name
        for row in re.findall(r"^\| (`.+?) \|", page, re.M)
        for name in re.findall("`(.+?)`", row)
    }
    assert described >= {name for row in shown for name in row}


def test_prompts_with_and_without_a_reference(tmp_path):
    path = written(
        tmp_path,
        {"id": "a", "prompt": " as it is\n", "reference": "the cat sat", "group": "cats"},
        {"id": 2, "prompt": "b", "category": "dogs", "more": [1]},
        {"id": "c", "prompt": "c", "reference": None, "group": None},
    )
    task = Jsonl(path)
    samples = list(task.samples(always))
    assert samples == [
        Sample("a", " as it is\n", "the cat sat", "cats"),
        Sample("2", "b", None, "dogs"),
        Sample("c", "c"),
    ]
    assert task.title == f"{path}: 3 prompts, 1 references"
    assert task.metrics[0] == "rouge2"
    assert task.score(samples[0], "The cat sat.")["rouge2"] == pytest.approx(100)
    assert task.score(samples[1], "The cat sat.") == {}


def test_questions_of_spec_bench_are_asked_by_their_first_turn(tmp_path):
    path = written(
        tmp_path,
        {"question_id": 81, "category": "writing", "turns": ["first", "second"]},
        {"question_id": 82, "category": "math", "turns": ["one"], "reference": ["two", "three"]},
    )
    samples = list(Jsonl(path).samples(always))
    assert samples == [Sample("81", "first", None, "writing"), Sample("82", "one", "two", "math")]


def test_a_prompt_a_line_is_text_or_json_with_or_without_an_id(tmp_path):
    path = tmp_path / "prompts.txt"
    lines = (" a b \r", "", '{"text": "c"}', '{"turns": ["d", "e"]}', "[f]", "")
    path.write_text("\n".join(lines), encoding="utf-8-sig", newline="")
    samples = list(Jsonl(str(path)).samples(always))
    assert [(sample.id, sample.prompt) for sample in samples] == [
        ("prompt-1", " a b "),
        ("prompt-2", "c"),
        ("prompt-3", "d"),
        ("prompt-4", "[f]"),
    ]
    turns = [sample.prompt for sample in Jsonl(str(path)).instruct().samples(always)]
    assert turns == [" a b ", "c", "d", "e", "[f]"]
    path.write_bytes(b"a\n\xff\n")
    with pytest.raises(DataError):
        Jsonl(str(path))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("list.json", '[{"prompt": "a"}, {"prompt": "b, c"}]'),
        ("list.json", '\n[\n  "a",\n  {"text": "b, c"}\n]\n'),
        ("strings.jsonl", '"a"\n"b, c"\n'),
        ("table.csv", 'id,prompt,group\n7,a,\n8,"b, c",x\n'),
        ("table.tsv", "prompt\na\nb, c\n"),
    ],
)
def test_a_document_is_read_by_its_form(tmp_path, name, content):
    path = tmp_path / name
    path.write_text(content)
    assert [sample.prompt for sample in Jsonl(str(path)).samples(always)] == ["a", "b, c"]


@pytest.mark.parametrize(
    "content",
    [
        *(b'[{"role": "user", "content": "a"}]\n' * 2, b'"a"\n["b"]\n', b'["a", ["b"]]'),
        *(b'{\n  "prompts": ["a"]\n}\n', b'[{"conversations": [{"from": "human"}]}]'),
        *(b"#!/bin/sh\necho a\n", b"%PDF-1.7\n", "\ufeffa\n".encode("utf-16-le")),
        *(b'[\n {"prompt": "a"},\n', b'["a", 1]'),
    ],
)
def test_a_document_of_another_form_is_no_prompt(tmp_path, content):
    path = tmp_path / "prompts.json"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        Jsonl(str(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_with_a_short_line_is_refused(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("id,prompt\n7,a\n8\n")
    with pytest.raises(DataError):
        Jsonl(str(path))


def test_fields_that_would_change_a_prompt_are_named(tmp_path):
    rows = {"prompt": "a", "system": "Be brief.", "tools": [1]}, {"prompt": "b", "images": ["c"]}
    said: list[str] = []
    with lines_to(said.append):
        task = Jsonl(written(tmp_path, *rows, {"prompt": "c", "id": 9, "reference": "r"}))
        assert len(list(task.instruct().samples(always))) == 3
        (line,) = said
        assert re.findall(r"(\w+) \((\d)\)", line) == [("tools", "1"), ("images", "1")]
        assert [len(list(task.samples(always))) for _ in range(2)] == [3, 3]
    assert len(said) == 2  # once a file


@pytest.mark.parametrize(
    ("row", "systems"),
    [
        ({"prompt": "a", "system": "s"}, ["s"]),
        ({"turns": ["a", "b"], "system": "s"}, ["s", "s"]),
        ({"prompt": "a", "system": [{"type": "text", "text": "s"}]}, ["s"]),
        *(({"text": "a", **more}, [""]) for more in ({}, {"system": None}, {"system": ""})),
    ],
)
def test_a_row_has_the_system_message_of_all_its_turns(tmp_path, row, systems):
    task = Jsonl(written(tmp_path, row))
    assert [sample.system for sample in task.instruct().samples(always)] == systems
    other = Jsonl(written(tmp_path, {**row, "system": "other"}))
    assert other.prompt_version == task.prompt_version  # plain prompts have none
    assert other.instruct().prompt_version != task.instruct().prompt_version


@pytest.mark.parametrize("key", ["messages", "prompt"])
def test_messages_are_a_prompt_with_its_system_message_and_answer(tmp_path, key):
    answered = [*CHAT, {"role": "assistant", "content": "r"}]
    rows = {key: CHAT}, {key: answered}, {key: CHAT[1:], "system": "s", "reference": ["r"]}
    samples = Jsonl(written(tmp_path, *rows)).instruct().samples(always)
    assert [s.reference for s in samples if (s.prompt, s.system) == ("a", "s")] == [None, "r", "r"]


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("prompts.jsonl", Spec("jsonl", (("path", "prompts.jsonl"),))),
        ("./prompts", Spec("jsonl", (("path", "./prompts"),))),
        ("a,b.txt:max_new_tokens=9", Spec("jsonl", (("path", "a,b.txt"), ("max_new_tokens", 9)))),
        ("jsonl:path=a/b.jsonl", Spec("jsonl", (("path", "a/b.jsonl"),))),
        ("./mine.py:Task:n=1", Spec("./mine.py:Task", (("n", 1),))),
        ("xsum:data=mini", Spec("xsum", (("data", "mini"),))),
    ],
)
def test_a_path_is_taken_where_a_task_is(text, spec):
    assert Spec.of_task(text) == spec
    assert task_spec(Sweep(task=text)) == spec if spec.path is None else True


def test_limits_and_stop_strings_are_arguments(tmp_path):
    path = written(tmp_path, {"id": 1, "prompt": "a"})
    assert (Jsonl(path).max_new_tokens, Jsonl(path).stop) == (128, ())
    task = Jsonl(path, max_new_tokens=1, stop=r"\n\n|END")
    assert (task.max_new_tokens, task.stop) == (1, ("\n\n", "END"))
    with pytest.raises(ValueError):
        Jsonl()
    with pytest.raises(ValueError):
        Jsonl(path, max_new_tokens=0)


def test_repeated_lines_are_counted_and_contradictions_and_no_lines_refused(tmp_path):
    one = {"id": 1, "prompt": "a"}
    assert "1 repeated lines left out" in Jsonl(written(tmp_path, one, one)).title
    for rows in ((), (one, {"id": "1", "prompt": "b"})):
        with pytest.raises(DataError):
            Jsonl(written(tmp_path, *rows))


@pytest.mark.parametrize(
    "row",
    [
        *({"id": "1"}, {"id": "1", "prompt": ""}, {"text": 3}),
        *({"id": "1", "prompt": "a", "reference": value} for value in (3, [3])),
        {"id": "1", "prompt": "a", "group": 3},
        *({"question_id": 1, "turns": turns} for turns in ([], "first", [{}], ["\ud800"])),
        *({"messages": chat} for chat in ([], "a", ["a"], CHAT[:1], CHAT[::-1], CHAT * 2)),
        *(
            {"messages": [{**CHAT[1], key: x}]}
            for key, x in (("role", []), ("content", 3), ("t", 1))
        ),
        {"messages": CHAT, "system": "s"},
    ],
)
def test_a_row_of_another_kind_is_named(tmp_path, row):
    good = {"id": "0", "prompt": "a"}
    with pytest.raises(DataError) as caught:
        Jsonl(written(tmp_path, good, row))
    assert "\n" not in str(caught.value)
