"""Lines of logs as people have them, and hostile ones."""

import gzip
import json
from contextlib import suppress

import pytest

from spsbench.errors import SpsError
from spsbench.planning.logs.plan_log import plan_log
from spsbench.planning.logs.requests import LogReader

Q, A = "Say: the quick fox", "the quick fox sleeps"
USER, REPLY = {"role": "user", "content": Q}, {"role": "assistant", "content": A}
MESSAGES = [{"role": "system", "content": "Be brief"}, USER]
PARTS = [{"type": "text", "text": A[:5]}, {"type": "text", "text": A[5:]}]
CHAT = {"id": "c1", "choices": [{"index": 0, "message": REPLY, "finish_reason": "stop"}]}
TEXT = {"object": "text_completion", "choices": [{"text": A}]}
OUTPUT = [
    {"type": "reasoning", "summary": []},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": A}]},
]
RESPONSES = {"object": "response", "output": OUTPUT}
SHAPES = {
    "prompt, completion": {"prompt": Q, "completion": A},
    "prompt, text": {"prompt": Q, "text": A},
    "prompt, choices": {"prompt": Q, "choices": [{"text": A}]},
    "prompt as messages": {"prompt": MESSAGES, "response": A},
    "prompt as parts": {"prompt": [{"type": "text", "text": Q}], "response": PARTS},
    "question, answer": {"question": Q, "answer": A},
    "input, output": {"input": Q, "output": A},
    "Alpaca": {"instruction": "Obey", "input": Q, "output": A},
    "Alpaca without input": {"instruction": Q, "input": "", "output": A},
    "messages, response": {"messages": MESSAGES, "response": A},
    "messages, message": {"messages": MESSAGES, "response": REPLY},
    "messages, choices": {"messages": MESSAGES, "choices": CHAT["choices"]},
    "parts": {"messages": [{"role": "user", "content": [{"text": Q}]}], "response": PARTS},
    "conversation": {"messages": [*MESSAGES, REPLY]},
    "conversation and its answer": {"messages": [*MESSAGES, REPLY], "response": A},
    "gateway, chat": {"request": {"messages": MESSAGES, "temperature": 0}, "response": CHAT},
    "gateway, completions": {"request": {"prompt": Q}, "response": TEXT},
    "gateway, bodies": {"request": {"body": {"prompt": Q}}, "response": {"body": TEXT}},
    "LiteLLM": {"id": "1", "messages": MESSAGES, "response": CHAT, "model_parameters": {}},
    "LiteLLM, JSON": {"messages": json.dumps(MESSAGES), "response": json.dumps(CHAT)},
    "Langfuse": {"input": {"messages": MESSAGES}, "output": REPLY, "type": "GENERATION"},
    "Langfuse, JSON": {"input": json.dumps(MESSAGES), "output": json.dumps(REPLY)},
    "Responses": {"request": {"input": Q, "instructions": "Obey"}, "response": RESPONSES},
    "Responses, items": {"input": [USER], "output": OUTPUT},
    "batch on one line": {"custom_id": "a", "body": {"prompt": Q}, "response": {"body": TEXT}},
    "custom_id": {"custom_id": "a", "prompt": Q, "response": A},
    "vLLM's own output": {"prompt": Q, "outputs": [{"index": 0, "text": A}]},
    "ShareGPT": {"conversations": [{"from": "human", "value": Q}, {"from": "gpt", "value": A}]},
    "conversations of roles": {"conversations": [USER, REPLY]},
    "answer that is JSON of its own": {"prompt": Q, "response": json.dumps({"text": A})},
}
FILES = {
    "lines": lambda rows: "".join(json.dumps(row) + "\n" for row in rows),
    "list": json.dumps,
    "indented, blank lines before": lambda rows: "\n \n" + json.dumps(rows, indent=1),
    "mark": lambda rows: "\ufeff" + json.dumps(rows),
    "lines with a mark": lambda rows: "\ufeff" + "".join(json.dumps(r) + "\r\n" for r in rows),
    "data": lambda rows: json.dumps({"object": "list", "data": rows}, indent=2),
    "objects": lambda rows: "\n".join(json.dumps(row, indent=2) for row in rows),
}


def read(tmp_path, content):
    path = tmp_path / "log"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    reader = LogReader([path])
    return list(reader), reader


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
    for line in (
        {"prompt": [5, 6], "token_ids": [7, 8]},
        {"request": {"prompt": [5, 6]}, "response": {"choices": [{"token_ids": [7, 8]}]}},
        {"prompt": Q, "choices": [{"text": A, "prompt_token_ids": [5, 6], "token_ids": [7, 8]}]},
        {
            "messages": MESSAGES,
            "response": {**CHAT, "prompt_token_ids": [5, 6]},
            "token_ids": [7, 8],
        },
    ):
        ((request,), _) = read(tmp_path, json.dumps(line))
        assert (request.prompt, request.answer) == ([5, 6], [7, 8])


def test_every_choice_is_an_answer(tmp_path):
    for value in ([A, A + "!"], {"choices": [{"text": A}, {"message": {"content": A + "!"}}]}):
        requests, _ = read(tmp_path, json.dumps({"id": "r", "prompt": Q, "response": value}))
        assert [(r.id, r.answer) for r in requests] == [("r", A), ("r/1", A + "!")]


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
