"""Logs of every format, and logs that cannot be used."""

import gzip
import io
import json
import os
import threading

import pytest

from spsbench.errors import DataError, MissingError
from spsbench.planning.logs import requests
from spsbench.planning.logs.formats import LeftOutError, Request
from spsbench.planning.logs.requests import LogReader, Tokens


def read(tmp_path, text, **more):
    path = tmp_path / "log"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    reader = LogReader([path], **more)
    return list(reader), reader


def lines(*entries):
    return "\n".join(map(json.dumps, entries)) + "\n"


def test_plain_lines(tmp_path):
    entry = {
        "id": "a",
        "prompt_token_ids": [1, 2],
        "token_ids": [3, 4],
        "logprobs": [-0.5, 0.0001],
        "temperature": 0.7,
        "group": "code",
        "created": 5,
    }
    (one, two, three), _ = read(
        tmp_path,
        lines(
            entry,
            {"prompt": "x", "completion": "y"},
            {"messages": [{"role": "user", "content": "hi"}], "response": "z"},
        ),
    )
    assert (one.prompt, one.answer, one.logprobs) == ([1, 2], [3, 4], [-0.5, 0.0])
    assert (one.temperature, one.group, one.created) == (0.7, "code", 5)
    assert (two.id, two.prompt, two.answer) == ("1", "x", "y")
    assert three.prompt == "user: hi\nassistant: "


def test_openai_batch_files(tmp_path):
    asked = {
        "custom_id": "r1",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"messages": [{"role": "user", "content": "hi"}], "temperature": 0},
    }
    content = [
        {"token": "y", "logprob": -0.1, "top_logprobs": [{"logprob": -0.1}, {"logprob": -2.5}]}
    ]
    answer = {
        "custom_id": "r1",
        "response": {
            "body": {
                "created": 9,
                "choices": [{"message": {"content": "yes"}, "logprobs": {"content": content}}],
            }
        },
    }
    (one,), reader = read(tmp_path, lines(asked, answer))
    assert (one.id, one.prompt, one.answer) == ("r1", "user: hi\nassistant: ", "yes")
    assert (one.temperature, one.created, one.logprobs) == (0.0, 9, [-0.1])
    assert one.top_logprobs == [[-0.1, -2.5]]
    assert dict(reader.formats) == {"OpenAI batch output": 1}


def test_conversations_and_benchmarks(tmp_path):
    talk = [
        {"from": "human", "value": "a"},
        {"from": "gpt", "value": "b"},
        {"from": "human", "value": "c"},
        {"from": "gpt", "value": "d"},
    ]
    found, _ = read(tmp_path, json.dumps([{"id": "t", "conversations": talk}]))
    assert [(r.id, r.answer) for r in found] == [("t/1", "b"), ("t/3", "d")]
    bench = {"generated_texts": ["x", "y"], "input_lens": [1, 1]}
    found, _ = read(tmp_path, json.dumps(bench), prompts={"0": "p0", "1": "p1"})
    assert [(r.prompt, r.answer) for r in found] == [("p0", "x"), ("p1", "y")]


def test_recorded_rounds(tmp_path):
    entry = {"prompt_token_ids": [1], "generated_token_ids": [2, 3], "eagle": {"acc_len": [2, 1]}}
    (one,), _ = read(tmp_path, lines(entry))
    assert one.recorded == {"eagle": [1, 0]}


def test_gzip_and_pipes(tmp_path):
    text = lines({"prompt": "x", "completion": "y"}).encode()
    assert len(read(tmp_path, gzip.compress(text))[0]) == 1
    with pytest.raises(DataError, match="damaged gzip"):
        read(tmp_path, gzip.compress(text)[:-6])
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(text,))
    writer.start()
    while not writer.is_alive():
        pass
    with open(pipe, "rb") as held:
        path = tmp_path / "copy"
        path.write_bytes(held.read())
    writer.join(60)
    assert len(list(LogReader([path]))) == 1


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("nonsense\n", "no JSON"),
        ('{"prompt": "x", "comp', "no JSON (the last line, cut off)"),
        ("7\n", "no JSON object"),
        ('{"prompt": "x"}\n', "no answer in a known field"),
        ('{"token_ids": [1, -2]}\n', "token_ids that are no token ids"),
        ('{"token_ids": [1, true]}\n', "token_ids that are no token ids"),
        ('{"token_ids": "1 2"}\n', "token_ids that are no token ids"),
        ('{"custom_id": "a", "response": {"body": {}}}\n', "a response without choices"),
        ('{"custom_id": "a", "response": 3}\n', "no usable response"),
        ('{"conversations": 3}\n', "no usable conversations"),
        ("[" * 100_000 + "\n", "no JSON"),
    ],
)
def test_lines_that_hold_no_request_are_counted(tmp_path, line, reason):
    good = {"prompt": "x", "completion": "y"}
    found, reader = read(tmp_path, lines(good) + line)
    assert len(found) == 1
    assert dict(reader.left_out) == dict.fromkeys((reason,), 1)


@pytest.mark.parametrize("values", [[0.5, -1], [-1, None], [float("nan")], "x", [-1, "y"], [True]])
def test_log_probabilities_that_are_none_are_not_used(tmp_path, values):
    (one,), _ = read(tmp_path, lines({"token_ids": [1, 2], "logprobs": values}))
    assert one.logprobs is None
    assert one.answer == [1, 2]


def test_a_long_line_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(requests, "LINE_BYTES", 1 << 10)
    good = {"prompt": "x", "completion": "y"}
    found, reader = read(tmp_path, lines(good, {"prompt": "x" * 5000, "completion": "y"}, good))
    assert len(found) == 2
    assert sum(reader.left_out.values()) == 1


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(MissingError, match="no file"):
        list(LogReader([tmp_path / "none"]))
    with pytest.raises(DataError, match="a folder"):
        list(LogReader([tmp_path]))
    with pytest.raises(DataError, match="no JSON"):
        read(tmp_path, "[\n{]")


class Letters:
    """A tokenizer of one id a letter."""

    def encode(self, text):
        return [ord(letter) for letter in text]

    def decode(self, ids):
        return "".join(map(chr, ids))


def test_ids_of_the_log_are_taken_and_compared():
    tokens = Tokens(Letters(), 128)
    assert tokens.of(Request(id="a", prompt="ab", answer="c")) == ([97, 98], [99])
    assert tokens.of(Request(id="a", prompt=[1], answer=[99], text="c")) == ([1], [99])
    assert tokens.of(Request(id="a", prompt=[1], answer=[99], text="d")) == ([1], [99])
    assert (tokens.compared, tokens.different) == (2, 1)
    for request, reason in (
        (Request(id="a", prompt=[1], answer=[]), "an empty answer"),
        (Request(id="a", prompt=[200], answer=[1]), "beyond the vocabulary"),
    ):
        with pytest.raises(LeftOutError, match=reason):
            tokens.of(request)
    with pytest.raises(LeftOutError, match="no tokenizer"):
        Tokens().of(Request(id="a", prompt="x", answer="y"))


def test_standard_input(monkeypatch):
    class Stdin:
        buffer = io.BytesIO(lines({"prompt": "x", "completion": "y"}).encode())

    from pathlib import Path

    monkeypatch.setattr("sys.stdin", Stdin())
    assert len(list(LogReader([Path("-")]))) == 1
