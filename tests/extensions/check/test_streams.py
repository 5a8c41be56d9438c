"""Answers that are counted while they come, and what is left of one that breaks off."""

import json
import time

import pytest

from spsbench.errors import UnavailableError
from spsbench.extensions.check.check import examine
from spsbench.extensions.check.journal import Journal
from spsbench.serving.http import Limits
from tests.extensions.check.stubs import Plan
from tests.oracles.stub import Engine, Stub, serving

PARTS = {"parts": ("greedy",), "length": 16, "concurrency": (1,)}


@pytest.mark.parametrize(("schema", "streams"), [("vllm", True), ("sglang", False)])
def test_texts_are_streamed_where_a_stream_has_all_of_an_answer(schema, streams):
    stub = Stub(Engine(), schema)
    with serving(stub) as url:
        examine(Plan(url, **PARTS))
    streamed = [bool(b.get("stream")) for b in stub.asked if b.get("max_tokens", 16) == 16]
    assert any(streamed) is streams


def test_a_stream_with_fewer_fields_is_not_used():
    stub = Stub(Engine(), ids_in_streams=False)
    with serving(stub) as url:
        examine(Plan(url, **PARTS))
    assert sum(bool(body.get("stream")) for body in stub.asked) == 1  # the probe alone


def test_a_slow_server_shows_the_tokens_that_have_come():
    shown = []
    with serving(Stub(Engine(k=0), pause=0.1)) as url:
        examine(
            Plan(url, **{**PARTS, "length": 8}), watch=lambda progress: shown.append(str(progress))
        )
    counts = [int(line.split(", ")[1].split()[0]) for line in shown if "tokens have come" in line]
    assert counts == sorted(counts)
    assert any(count % 8 for count in counts)  # of answers that have not ended


def breaks_off(after):
    """End the connection of each later answer within its stream."""

    def trouble(number, http):
        if number <= after or not http.streaming:
            return number > after
        http.send_response(200)
        http.send_header("content-type", "text/event-stream")
        http.end_headers()
        for _ in range(3):
            event = {"choices": [{"text": " w1", "token_ids": [1], "index": 0}]}
            http.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            http.wfile.flush()
            time.sleep(0.01)
        http.close_connection = True
        return True

    return trouble


def test_the_tokens_of_an_answer_that_breaks_off_are_counted_in_the_error(tmp_path):
    path, limits = tmp_path / "kept.jsonl", Limits(timeout=60, retries=1, pause=0.01)
    stub = Stub(Engine(), trouble=breaks_off(12))
    with serving(stub) as url:
        plan = Plan(url, **PARTS, limits=limits)
        with pytest.raises(UnavailableError) as error:
            examine(plan, None, Journal(path))
        assert "answers are kept: continue with `resume`" in str(error.value)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert "broke off after 3 tokens" in str(error.value)
        whole = [line for line in lines if line.get("key", "").startswith("server/greedy/")]
        stub.trouble, asked = None, len(stub.asked)
        found = examine(plan, None, Journal(path, resume=True))
    texts = [body for body in stub.asked[asked:] if body["max_tokens"] == 16]
    assert len(texts) == 8 - len(whole) < 8
    assert len(found.greedy.compared) == 8
