"""Logs of every format, and logs that cannot be used."""

import gzip
import io
import json
from types import SimpleNamespace

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
    }
    (one, two), _ = read(tmp_path, lines(entry, {"prompt": "x", "completion": "y"}))
    assert (one.prompt, one.answer, one.logprobs) == ([1, 2], [3, 4], [-0.5, 0.0])
    assert (one.temperature, one.group, two.id) == (0.7, "code", "1")


def test_openai_batch_files(tmp_path):
    asked = {
        "custom_id": "r1",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"messages": [{"role": "user", "content": "hi"}], "temperature": 0},
    }
    content = [{"token": "y", "logprob": -0.1, "top_logprobs": [{"logprob": -0.1}]}]
    answer = {
        "custom_id": "r1",
        "response": {
            "body": {"choices": [{"message": {"content": "yes"}, "logprobs": {"content": content}}]}
        },
    }
    (one,), reader = read(tmp_path, lines(asked, answer))
    assert (one.id, one.prompt, one.answer) == ("r1", "user: hi\nassistant: ", "yes")
    assert (one.temperature, one.logprobs) == (0.0, [-0.1])
    assert dict(reader.formats) == {"OpenAI batch output": 1}


def batch(custom_id, question="", answer=""):
    if question:
        return {"custom_id": custom_id, "body": {"prompt": question}}
    return {"custom_id": custom_id, "response": {"body": {"choices": [{"text": answer}]}}}


@pytest.mark.parametrize(
    ("order", "pairs", "left_out"),
    [
        ([batch("a", "q"), batch("a", answer="x")], [("q", "x")], 0),
        ([batch("a", answer="x"), batch("a", "q")], [("q", "x")], 0),
        ([batch("a", "q"), batch("a", answer="x"), batch("a", answer="x")], [("q", "x")] * 2, 0),
        (
            [batch("a", "q"), batch("a", answer="x"), batch("a", "r"), batch("a", answer="y")],
            [("q", "x"), ("r", "y")],
            0,
        ),
        ([batch("a", "q"), batch("a", "r"), batch("a", answer="x")], [], 1),
        ([batch("a", answer="x"), batch("a", "q"), batch("a", answer="y"), batch("a", "r")], [], 2),
        ([batch("a", answer="x")], [(None, "x")], 0),
    ],
)
def test_answers_of_a_batch_find_their_requests(tmp_path, order, pairs, left_out):
    answers, reader = read(tmp_path, lines(*order))
    assert [(answer.prompt, answer.answer) for answer in answers] == pairs
    assert reader.left_out.total() == left_out


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


def test_gzip(tmp_path):
    text = lines({"prompt": "x", "completion": "y"}).encode()
    assert len(read(tmp_path, gzip.compress(text))[0]) == 1
    with pytest.raises(DataError):
        read(tmp_path, gzip.compress(text)[:-6])


@pytest.mark.parametrize(
    ("line", "word"),
    [
        *(("nonsense\n", ""), ('{"prompt": "x", "comp', "cut off"), ("7\n", "a number")),
        ('{"prompt": "x", "usage": {}}\n', "prompt, usage"),
        *((f'{{"token_ids": {ids}}}\n', "token_ids") for ids in ("[1, -2]", "[1, true]", '"1 2"')),
        *((f'{{"response": {value}}}\n', "response") for value in ('{"body": {}}', "3")),
        ('{"prompt": ["a", "b"], "response": "c"}\n', "prompt, response"),
        ('{"prompt": "a", "response": "c", "temperature": 1%s}\n' % ("0" * 400), "temperature"),
        ('{"response": ' + '{"body":' * 190 + "1" + "}" * 191 + "\n", "response"),
    ],
)
def test_lines_that_hold_no_request_are_counted_with_their_fields(tmp_path, line, word):
    found, reader = read(tmp_path, lines({"prompt": "x", "completion": "y"}) + line)
    assert len(found) == 1
    assert list(reader.left_out.values()) == [1]
    assert word in str(reader.left_out)


@pytest.mark.parametrize(
    "values",
    [
        *([0.5, -1], [-1, None], [float("nan")], "x", [-1, "y"], [True], [-1, -9999.0]),
        *([-1, -(10**400)], {"content": [{"logprob": -1.0}, {"logprob": -9999.0}]}),
    ],
)
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


def test_values_of_a_list_are_counted_one_by_one(tmp_path, monkeypatch):
    monkeypatch.setattr(requests, "CHUNK", 1 << 8)
    monkeypatch.setattr(requests, "MAX_VALUES", 1 << 7)
    rows = [{"token_ids": [n] * 20} for n in range(100)]
    found, _ = read(tmp_path, json.dumps(rows))
    assert [request.answer for request in found] == [row["token_ids"] for row in rows]
    with pytest.raises(DataError):
        read(tmp_path, json.dumps([*rows, {"token_ids": [7] * 200}]))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(MissingError):
        list(LogReader([tmp_path / "none"]))
    with pytest.raises(DataError):
        list(LogReader([tmp_path]))
    for text in ("[\n{]", '[{"prompt": "x", "completion": "y"}', "[\n" + "[" * 100_000):
        with pytest.raises(DataError):
            read(tmp_path, text)


def test_left_out_lines_of_many_reasons_are_counted_together(tmp_path):
    _, reader = read(tmp_path, lines(*({f"field{n}": 1} for n in range(200))))
    assert len(reader.left_out) == requests.MAX_REASONS + 1
    assert reader.left_out.total() == 200


class Letters:
    """A tokenizer of one id a letter."""

    def encode(self, text, add_special_tokens):
        assert not add_special_tokens
        return SimpleNamespace(ids=[ord(letter) for letter in text])


def test_ids_of_the_log_are_taken_and_texts_are_encoded():
    tokens = Tokens(Letters(), 128)
    assert tokens.of(Request(id="a", prompt="ab", answer="cd")) == ([97, 98], [99, 100])
    assert tokens.of(Request(id="a", prompt="ab", answer=[99, 100])) == ([97, 98], [99, 100])
    assert Tokens().of(Request(id="a", prompt="ab", answer=[99, 100])) == ([], [99, 100])
    assert tokens.of(Request(id="a", prompt=None, answer=[1], first=0)) == ([], [1])
    for request in (
        Request(id="a", prompt=[1], answer=[]),
        Request(id="a", prompt=[1], answer=[2]),
        Request(id="a", prompt=[200], answer=[1, 2]),
        Request(id="a", prompt="x", answer="a \ud83d b"),
    ):
        with pytest.raises(LeftOutError):
            tokens.of(request)
    with pytest.raises(LeftOutError):
        Tokens().of(Request(id="a", prompt="x", answer="yes"))


def test_standard_input(monkeypatch):
    class Stdin:
        buffer = io.BytesIO(lines({"prompt": "x", "completion": "y"}).encode())

    from pathlib import Path

    monkeypatch.setattr("sys.stdin", Stdin())
    assert len(list(LogReader([Path("-")]))) == 1
