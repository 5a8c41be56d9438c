"""Logs of every format as people have them, hostile ones, and what cannot be used."""

import gzip
import io
import json
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from spsbench.errors import DataError, MissingError, SpsError
from spsbench.planning.logs import files, requests
from spsbench.planning.logs.chats import LeftOutError
from spsbench.planning.logs.entries import Request
from spsbench.planning.logs.plan_log import plan_log
from spsbench.planning.logs.requests import RequestReader
from spsbench.planning.logs.tokens import LogTokenizer

Q, A = "Say: the quick fox", "the quick fox sleeps"
USER, REPLY = {"role": "user", "content": Q}, {"role": "assistant", "content": A}
MESSAGES = [{"role": "system", "content": "Be brief"}, USER]
CHAT = {"id": "c1", "choices": [{"index": 0, "message": REPLY, "finish_reason": "stop"}]}
SHAPES = json.loads(Path(__file__).with_name("forms.json").read_text())["shapes"]
FILES = {
    "lines": lambda rows: "".join(json.dumps(row) + "\n" for row in rows),
    "list": json.dumps,
    "indented, blank lines before": lambda rows: "\n \n" + json.dumps(rows, indent=1),
    "mark": lambda rows: "\ufeff" + json.dumps(rows),
    "lines with a mark": lambda rows: "\ufeff" + "".join(json.dumps(r) + "\r\n" for r in rows),
    "data": lambda rows: json.dumps({"object": "list", "data": rows}, indent=2),
    "gzip": lambda rows: gzip.compress(json.dumps(rows).encode()),
    "objects": lambda rows: "\n".join(json.dumps(row, indent=2) for row in rows),
}


def read(tmp_path, text, **options):
    path = tmp_path / "log"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    reader = RequestReader([path], **options)
    return list(reader), reader


def lines(*entries):
    return "\n".join(map(json.dumps, entries)) + "\n"


@pytest.mark.parametrize("shape", SHAPES)
def test_a_line_gives_its_prompt_and_its_answer(tmp_path, shape):
    ((request, *others), reader) = read(tmp_path, json.dumps(SHAPES[shape]) + "\n{}\n")
    assert Q in request.prompt
    assert A not in request.prompt
    assert request.answer == (json.dumps({"text": A}) if "JSON of its own" in shape else A)
    assert not others
    assert reader.left_out.total() == 1


@pytest.mark.parametrize("form", FILES)
def test_files_of_every_form_give_the_same_requests(tmp_path, form):
    rows = [{"id": n, **SHAPES["prompt, completion"]} for n in range(3)]
    requests, reader = read(tmp_path, FILES[form](rows))
    assert [(r.id, r.prompt, r.answer) for r in requests] == [(str(n), Q, A) for n in range(3)]
    assert not reader.left_out


def test_ids_are_read_wherever_they_stand(tmp_path):
    ids = {"token_ids": [7, 8]}
    for line in (
        {"prompt": [5, 6]} | ids,
        {"request": {"prompt": [5, 6]}, "response": {"choices": [{"token_ids": [7, 8]}]}},
        {"prompt": Q, "choices": [{"text": A, "prompt_token_ids": [5, 6], "token_ids": [7, 8]}]},
        {"messages": MESSAGES, "response": {**CHAT, "prompt_token_ids": [5, 6]}} | ids,
    ):
        ((request,), _) = read(tmp_path, json.dumps(line))
        assert (request.prompt, request.answer) == ([5, 6], [7, 8])


def test_every_choice_is_an_answer(tmp_path):
    for value in ([A, A + "!"], {"choices": [{"text": A}, {"message": {"content": A + "!"}}]}):
        requests, _ = read(tmp_path, json.dumps({"id": "r", "prompt": Q, "response": value}))
        assert [(r.id, r.answer) for r in requests] == [("r", A), ("r/1", A + "!")]


def test_a_choice_around_a_message_tells_its_end_and_its_chances(tmp_path):
    chances = {"content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1.5}]}
    choice = {"message": REPLY, "finish_reason": "length", "logprobs": chances}
    ((request,), _) = read(tmp_path, json.dumps({"prompt": Q, "response": {"choices": [choice]}}))
    assert (request.answer, request.ended_by_limit) == (A, True)
    assert request.logprobs == [-0.5, -1.5]


def test_no_number_names_two_requests(tmp_path):
    one, batch = {"prompt": Q, "completion": A}, {"data": [{"prompt": Q, "completion": A}] * 2}
    requests, _ = read(tmp_path, lines([one] * 3, one, batch, one))
    assert [r.id for r in requests] == [str(n) for n in range(7)]


GOOD = '{"token_ids": [5, 6, 5, 6, 5, 6]}'
HUGE = "1" + "0" * 400
HOSTILE = [
    *("", "\n\n", "[", "{", "]", "[]", "{}", "null", "[[[", "\x00\x01", "[1,2", "[,]", "{,}"),
    *(f'{{"prompt": "x", "response": {value}}}' for value in ("[]", "{}", "[{}]", "[null]", "7")),
    *(f'{{"prompt": {value}, "response": "ab"}}' for value in ("[[]]", "[1, true]", "[{}, 3]")),
    *(f'{{"messages": {value}, "response": "ab"}}' for value in ("7", '["a", 3]', '"[{"')),
    *(f'{GOOD[:-1]}, "{name}": {HUGE}}}' for name in ("created", "temperature", "id", "group")),
    f'{GOOD[:-1]}, "logprobs": [-{HUGE}, -1, -1, -1, -1, -1]}}',
    f'{GOOD[:-1]}, "logprobs": {{"content": [{{"top_logprobs": [{{"logprob": -{HUGE}}}]}}]}}}}',
    f'{{"token_ids": [{HUGE}, 1]}}',
    '{"token_ids": [' + "9" * 5000 + "]}",
    '{"prompt": "\\ud800a", "response": "a b c"}',
    '{"prompt": "a", "response": "a \\ud83d b"}',
    '{"id": "\\ud800\\u001b[31m", "group": "\\udfff", "token_ids": [1, 2, 1, 2]}',
    '{"\\ud800": {"acc_len": [2, 2, 2, 2]}, "token_ids": [1, 2, 1, 2]}',
    '{"custom_id": {}, "body": 7}\n{"custom_id": {}, "response": {"body": {"choices": [7]}}}',
    '{"custom_id": "a", "response": {"body": {"choices": [{"text": 1}]}}}',
    '{"response": ' + "[" * 190 + "]" * 190 + "}",
    '{"data": [7, null, [], {"data": []}]}',
    '{"prompt": "x", "response": "' + '{\\"choices\\": ' * 9 + '"}',
    "[" + "{}," * 5000 + "{}]",
    gzip.compress(b"[" + b" " * 5_000_000),
    gzip.compress(GOOD.encode())[:-9],
    b"\xff\xfe\x00",
    b"[\xff]",
]


@pytest.mark.parametrize("content", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_logs_are_counted_or_refused(tmp_path, content):
    """Alone they are refused or answered; a good line before them is read."""
    path = tmp_path / "log"
    raw = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(raw)
    with suppress(SpsError):
        plan_log(path, tokenizer="nano", k="2")
    if raw[:2] != b"\x1f\x8b":
        path.write_bytes(GOOD.encode() + b"\n" + raw)
        answer = plan_log(path, tokenizer="nano", k="2")
        assert answer.plan.requests >= 1
        json.dumps(answer.values()).encode()


@pytest.mark.parametrize("line", [{"token_ids": [1, 2, 1, 2, 1, 2]}, {"generated_texts": [A]}])
def test_requests_without_prompts_are_answered_and_counted(tmp_path, line):
    path = tmp_path / "log"
    path.write_text(json.dumps(line))
    answer = plan_log(path, tokenizer="nano", k="2")
    assert len(answer.rows) == 5
    assert "1 of 1 requests have no prompt" in str(answer.remarks())


def test_plain_lines(tmp_path):
    entry = {"id": "a", "prompt_token_ids": [1, 2], "token_ids": [3, 4], "logprobs": [-0.5, 0.0001]}
    entry |= {"temperature": 0.7, "group": "code", "logit_bias": {}, "repetition_penalty": 1}
    entry |= {"sampling_params": {"presence_penalty": 0.5}}
    (one, two), _ = read(tmp_path, lines(entry, {"prompt": "x", "completion": "y"}))
    assert (one.prompt, one.answer, one.logprobs) == ([1, 2], [3, 4], [-0.5, 0.0])
    assert (one.temperature, one.group, two.id) == (0.7, "code", "1")
    assert (one.processed, two.processed) == (("presence_penalty",), ())


def test_openai_batch_files(tmp_path):
    chat = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0}
    chat["frequency_penalty"] = 1
    sent = {"custom_id": "r1", "method": "POST", "url": "/v1/chat/completions", "body": chat}
    content = [{"token": "y", "logprob": -0.1, "top_logprobs": [{"logprob": -0.1}]}]
    choice = {"message": {"content": "yes"}, "logprobs": {"content": content}}
    answer = {"custom_id": "r1", "response": {"body": {"choices": [choice]}}}
    (one,), reader = read(tmp_path, lines(sent, answer))
    assert (one.id, one.prompt, one.answer) == ("r1", "user: hi\nassistant: ", "yes")
    assert (one.temperature, one.logprobs) == (0.0, [-0.1])
    assert one.processed == ("frequency_penalty",)
    assert dict(reader.formats) == {"OpenAI batch output": 1}


def batch(custom_id, question="", answer=""):
    if question:
        return {"custom_id": custom_id, "body": {"prompt": question}}
    return {"custom_id": custom_id, "response": {"body": {"choices": [{"text": answer}]}}}


ASKED_X = [batch("a", "q"), batch("a", answer="x")]


@pytest.mark.parametrize(
    ("order", "pairs", "left_out"),
    [
        (ASKED_X, [("q", "x")], 0),
        ([batch("a", answer="x"), batch("a", "q")], [("q", "x")], 0),
        ([*ASKED_X, ASKED_X[1]], [("q", "x")] * 2, 0),
        ([*ASKED_X, batch("a", "r"), batch("a", answer="y")], [("q", "x"), ("r", "y")], 0),
        ([batch("a", "q"), batch("a", "r"), batch("a", answer="x")], [], 1),
        ([batch("a", answer="x"), batch("a", "q"), batch("a", answer="y"), batch("a", "r")], [], 2),
        ([batch("a", answer="x")], [(None, "x")], 0),
    ],
)
def test_answers_of_a_batch_find_their_requests(tmp_path, order, pairs, left_out):
    answers, reader = read(tmp_path, lines(*order))
    assert [(answer.prompt, answer.answer) for answer in answers] == pairs
    assert reader.left_out.total() == left_out
    assert not reader.unanswered


def test_conversations_and_benchmarks(tmp_path):
    talk = [{"from": ("human", "gpt")[n % 2], "value": "abcd"[n]} for n in range(4)]
    found, _ = read(tmp_path, json.dumps([{"id": "t", "conversations": talk}]))
    assert [(r.id, r.answer) for r in found] == [("t/1", "b"), ("t/3", "d")]
    bench = {"generated_texts": ["x", "y"], "input_lens": [1, 1]}
    found, _ = read(tmp_path, json.dumps(bench), prompts={"0": "p0", "1": "p1"})
    assert [(r.prompt, r.answer) for r in found] == [("p0", "x"), ("p1", "y")]


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
    monkeypatch.setattr(files, "LINE_BYTES", 1 << 10)
    good = {"prompt": "x", "completion": "y"}
    found, reader = read(tmp_path, lines(good, {"prompt": "x" * 5000, "completion": "y"}, good))
    assert len(found) == 2
    assert sum(reader.left_out.values()) == 1


def test_values_of_a_list_are_counted_one_by_one(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "CHUNK", 1 << 8)
    monkeypatch.setattr(files, "MAX_VALUES", 1 << 7)
    rows = [{"token_ids": [n] * 20} for n in range(100)]
    found, _ = read(tmp_path, json.dumps(rows))
    assert [request.answer for request in found] == [row["token_ids"] for row in rows]
    with pytest.raises(DataError):
        read(tmp_path, json.dumps([*rows, {"token_ids": [7] * 200}]))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(MissingError):
        list(RequestReader([tmp_path / "none"]))
    with pytest.raises(DataError):
        list(RequestReader([tmp_path]))
    cut_off = gzip.compress(lines(SHAPES["question, answer"]).encode())[:-6]
    for text in (cut_off, "[\n{]", '[{"prompt": "x", "completion": "y"}', "[\n" + "[" * 100_000):
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
    tokens = LogTokenizer(Letters(), 128)
    assert tokens.of(Request(id="a", prompt="ab", answer="cd")) == ([97, 98], [99, 100])
    assert tokens.of(Request(id="a", prompt="ab", answer=[99, 100])) == ([97, 98], [99, 100])
    assert LogTokenizer().of(Request(id="a", prompt="ab", answer=[99, 100])) == ([], [99, 100])
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
        LogTokenizer().of(Request(id="a", prompt="x", answer="yes"))


def test_standard_input(monkeypatch):
    text = lines({"prompt": "x", "completion": "y"})
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))
    assert len(list(RequestReader([Path("-")]))) == 1
