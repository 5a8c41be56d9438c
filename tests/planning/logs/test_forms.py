"""Forms of logs from the field: what counts as prompt and as answer, and what is left out."""

import bz2
import gzip
import json
import lzma
import os
import random
import shutil
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pyarrow
import pytest
from pyarrow import parquet

from spsbench.errors import DataError
from spsbench.methods.drafters.ngram import look_ups
from spsbench.models.folder import local_folder
from spsbench.planning.logs.entries import Request
from spsbench.planning.logs.plan_log import plan_log
from spsbench.planning.logs.requests import RequestReader
from spsbench.planning.logs.texts import NO_PREFILL, open_drafter
from spsbench.planning.logs.tokens import LogTokenizer, log_tokenizer
from spsbench.settings.execution import Access
from spsbench.spec import Spec

Q, A, T = "Say: the quick fox", "the quick fox sleeps", "first I think"
USER, REPLY = {"role": "user", "content": Q}, {"role": "assistant", "content": A}
CALL = {"name": "find", "arguments": '{"q": "a quick fox"}'}
TOOL = {"type": "function", "function": {"name": "find", "description": "Finds a word"}}
FORMS = json.loads(Path(__file__).with_name("forms.json").read_text())
WITH_PROMPT = FORMS["with_prompt"]
"""Lines whose prompt holds Q, and whose answer is A."""
ANSWERS, LEFT_OUT = FORMS["answers"], FORMS["left_out"]


class Letters:
    """A tokenizer of one id a letter."""

    def encode(self, text, add_special_tokens):
        assert not add_special_tokens
        return SimpleNamespace(ids=[ord(letter) for letter in text])


def read(tmp_path, line, **options):
    path = tmp_path / ("log.tsv" if isinstance(line, str) and "\t" in line else "log.csv")
    path = path if isinstance(line, str) and line[0] not in "[{" else tmp_path / "log"
    path.write_text(line if isinstance(line, str) else json.dumps(line))
    reader = RequestReader([path], **options)
    return list(reader), reader


@pytest.mark.parametrize("form", WITH_PROMPT)
def test_a_form_gives_its_prompt_and_its_answer(tmp_path, form):
    ((request,), reader) = read(tmp_path, WITH_PROMPT[form])
    prompt, answer = LogTokenizer(Letters()).of(request)
    assert Q in "".join(map(chr, prompt))
    assert answer == [ord(letter) for letter in A]
    assert (request.temperature == 0.5) == ("temperature" in str(WITH_PROMPT[form]))
    assert not reader.left_out
    assert not reader.unread


@pytest.mark.parametrize("form", ANSWERS)
def test_thoughts_and_calls_are_tokens_of_the_answer(tmp_path, form):
    response, parts = ANSWERS[form]
    ((request,), reader) = read(tmp_path, {"request": {"messages": [USER]}, "response": response})
    _, answer = LogTokenizer(Letters()).of(request)
    assert answer == [ord(letter) for part in parts for letter in part]
    assert not reader.unread


@pytest.mark.parametrize("kind", LEFT_OUT)
def test_what_is_no_whole_answer_is_left_out_and_counted(tmp_path, kind):
    requests, reader = read(tmp_path, LEFT_OUT[kind])
    assert not requests
    assert reader.left_out.total() == 1


def test_a_field_with_text_that_is_not_read_is_named(tmp_path):
    """Beside request and answer it is a note; inside them the request counts by the user's word."""
    beside = {
        "request": {"prompt": Q},
        "response": {"text": A},
        "notes": "Some words",
        "model": "m x",
    }
    _, reader = read(tmp_path, beside)
    assert dict(reader.unread) == {"notes": 1}
    assert not reader.left_out
    inside = {"request": {"prompt": Q, "suffix": "The end"}, "response": {"text": A}}
    requests, reader = read(tmp_path, inside)
    assert not requests
    assert "request.suffix" in str(reader.left_out)
    requests, reader = read(tmp_path, inside, unread_counts=True)
    assert len(requests) == 1
    assert dict(reader.unread) == {"request.suffix": 1}


@pytest.mark.parametrize("echo", [None, True])
def test_an_answer_that_begins_with_its_prompt_is_what_follows_it(tmp_path, echo):
    line = {"request": {"prompt": Q, "echo": echo}, "response": {"choices": [{"text": Q + A}]}}
    ((request,), _) = read(tmp_path, line)
    assert (request.prompt, request.answer, request.is_echo) == (Q, A, True)
    begun = {"messages": [USER, {"role": "assistant", "content": A[:17]}], "response": A}
    ((request,), _) = read(tmp_path, begun)
    assert (request.prompt.endswith(A[:17]), request.answer) == (True, A[17:])


def test_a_generation_counts_once_in_its_trace(tmp_path):
    span = {"traceId": "t", "input": Q, "output": A}
    requests, reader = read(tmp_path, [span, {**span, "name": "proxy"}, {**span, "traceId": "u"}])
    assert len(requests) == 2
    assert reader.left_out.total() == 1


def test_requests_of_a_batch_without_answers_are_counted(tmp_path):
    sent = {"custom_id": "a", "method": "POST", "body": {"messages": [USER]}}
    requests, reader = read(tmp_path, sent)
    assert not requests
    assert reader.unanswered == 1


def test_a_document_of_messages_is_one_conversation(tmp_path):
    for text in (json.dumps([USER, REPLY]), json.dumps([USER, REPLY], indent=1)):
        ((request,), _) = read(tmp_path, text)
        assert request.answer == A


class Model(Letters):
    """A tokenizer that was saved with truncation and padding."""

    def no_truncation(self):
        self.cuts = False

    def no_padding(self):
        self.pads = False


def test_a_tokenizer_neither_cuts_nor_pads():
    tokenizer = Model()
    LogTokenizer.of_backend(tokenizer, 128)
    assert (tokenizer.cuts, tokenizer.pads) == (False, False)


TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}{% for m in messages %}"
    "<{{ m.role }}>{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}"
    "{{ c.function.arguments | tojson }}</call>{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def test_chats_are_read_and_answers_written_as_the_template_has_them(tmp_path):
    shutil.copytree(local_folder("nano"), tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(TEMPLATE)
    tokens = log_tokenizer(str(tmp_path / "model"), Access())
    line = {
        "request": {"messages": [USER], "tools": [TOOL]},
        "response": {**REPLY, "reasoning": T, "tool_calls": [{"function": CALL}]},
    }
    ((request,), _) = read(tmp_path, line)
    prompt, answer = tokens.of(request)
    backend = tokens.tokenizer
    chat = tokens.template.apply_chat_template(
        [USER], tools=[TOOL], add_generation_prompt=True, tokenize=False
    )
    assert prompt == backend.encode(chat, add_special_tokens=False).ids
    written = f'<think>{T}</think>{A}<call>find{{"q": "a quick fox"}}</call>'
    assert answer == backend.encode(written, add_special_tokens=False).ids


@pytest.mark.parametrize(("stated", "warned"), [(None, 0), (20, 0), (22, 0), (7, 1), (900, 1)])
def test_counts_of_the_log_are_compared_with_the_tokenizers(tmp_path, stated, warned):
    line = {"prompt": Q, "response": {"text": A, "usage": {"completion_tokens": stated}}}
    ((request,), _) = read(tmp_path, line)
    tokens = LogTokenizer(Letters())
    tokens.of(request)
    assert bool(tokens.answers.warning("tokens")) is bool(warned)
    ids = Request(id="a", prompt=Q, answer=[5] * (stated or 20), text=A)
    tokens.of(ids)
    assert bool(tokens.texts.warning("ids")) is bool(warned)


def test_warnings_stand_before_the_tables(tmp_path, sps):
    path = tmp_path / "log"
    rows = [
        {"prompt_token_ids": [n], "token_ids": [1, 2, 3] * 9, "usage": {"completion_tokens": 9}}
        for n in range(9)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    ran = sps("plan", "--log", str(path), "-k", "4", "--drafter", "ngram")
    first, second, *_ = ran.out.splitlines()
    assert "243" in first
    assert "9 of 9" in second
    values = json.loads(sps("plan", "--log", str(path), "--drafter", "ngram", "--json").out)
    assert len(values["warnings"]) == 2


def packed_by_zstd(content):
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, packed_by_zstd])
def test_packed_logs_are_read_and_damaged_ones_refused(tmp_path, pack):
    path = tmp_path / "log"
    path.write_bytes(pack(json.dumps({"prompt": Q, "response": A}).encode()))
    assert len(list(RequestReader([path]))) == 1
    path.write_bytes(pack(json.dumps({"prompt": Q, "response": A}).encode())[:-9])
    with pytest.raises(DataError):
        list(RequestReader([path]))


@pytest.mark.parametrize(
    "content",
    [
        '{"prompt": "a"}'.encode("utf-16"),
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    ],
)
def test_other_encodings_and_pointers_are_refused_in_one_line(tmp_path, content):
    path = tmp_path / "log"
    path.write_bytes(content)
    with pytest.raises(DataError) as error:
        list(RequestReader([path]))
    assert str(error.value).isprintable()


def test_parquet_is_read(tmp_path):
    table = pyarrow.table({"prompt": [Q], "response": [A], "input_lens": [[3, 4]]})
    parquet.write_table(table, tmp_path / "log")
    ((request,), _) = [list(RequestReader([tmp_path / "log"])), None]
    assert (request.prompt, request.answer) == (Q, A)


def test_every_file_is_counted_and_a_late_pipe_is_waited_for(tmp_path):
    log, empty, pipe = (tmp_path / name for name in ("log", "empty", "pipe"))
    log.write_text(json.dumps({"prompt": Q, "response": A}) + "\n")
    empty.write_bytes(b"")
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(log.read_bytes()))
    reader = RequestReader([log, empty, pipe])
    requests = iter(reader)
    assert next(requests).answer == A
    writer.start()
    assert [request.answer for request in requests] == [A]
    writer.join()
    assert reader.left_out.total() == 1


def test_the_line_of_a_log_without_requests_is_short(tmp_path):
    path = tmp_path / "log"
    path.write_text("\n".join(json.dumps({f"{'x' * 300}{n}": n}) for n in range(99)))
    with pytest.raises(DataError) as error:
        plan_log(path, k="2")
    assert len(str(error.value)) < 1000


def test_a_file_that_unpacks_without_end_is_refused_in_one_line(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(gzip.compress(b" " * (65 << 20)))
    with pytest.raises(DataError) as error:
        list(RequestReader([path]))
    assert str(error.value).isprintable()


def steps(call, *arguments):
    """Lines of Python that a call runs."""
    count = 0

    def trace(frame, event, arg):
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call(*arguments)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("name", ["suffix", "suffix:shared=true", "copy", "ngram"])
def test_a_drafter_takes_as_many_steps_for_each_token_of_a_loop(name):
    def replay(tokens):
        drafter = open_drafter(Spec.parse(name))
        drafter.begin([7] * tokens, NO_PREFILL)
        look_ups(drafter.proposals, [7] * (2 * tokens), tokens, (4,))

    assert steps(replay, 600) < 2.3 * steps(replay, 300)


@pytest.mark.parametrize("name", ["suffix", "suffix:shared=true", "copy", "ngram"])
def test_a_conversation_takes_as_many_steps_for_each_answer(name):
    """But for those over its messages."""
    draw = random.Random(name)

    def replay(answers):
        drafter, text = open_drafter(Spec.parse(name)), []
        for _ in range(answers):
            prompt = [*text, *(draw.randrange(50) for _ in range(20))]
            text = [*prompt, *(draw.randrange(50) for _ in range(20))]
            drafter.begin(prompt, NO_PREFILL)
            look_ups(drafter.proposals, text, len(prompt), (4,))

    assert steps(replay, 40) < 2.3 * steps(replay, 20)


def test_a_chat_begins_with_the_ids_of_the_chat_before_it_and_its_answer(tmp_path):
    turns = [{"from": ("human", "gpt")[n % 2], "value": f"word {n}"} for n in range(6)]
    requests, _ = read(tmp_path, {"conversations": turns})
    tokens, before = log_tokenizer("nano", Access()), []
    for request in requests:
        prompt, answer = tokens.of(request)
        assert prompt[: len(before)] == before
        before = prompt + answer
