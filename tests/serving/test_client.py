"""The client: retries, halves of events, keys, and what engines say."""

import asyncio
import json
import threading
import time
from contextlib import suppress

import pytest

from spsbench.errors import DataError, UnavailableError
from spsbench.serving.acceptance import between, counters, of_answer, of_answers, reached
from spsbench.serving.address import checked
from spsbench.serving.answers import AttemptError
from spsbench.serving.engines import Answer, Ask, Kind, Server
from spsbench.serving.http import Client, Limits, RefusedError
from spsbench.serving.wire import Counts, read
from tests.oracles.servers import FAST, answer_in, answer_of, asked, asked_at
from tests.oracles.stub import Engine, Stub, serving


@pytest.mark.parametrize("schema", ["vllm", "sglang", "openai"])
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_read_whole_and_in_chunks(schema, stream):
    server, found = asked(Stub(Engine(), schema), Ask("a b", 12, 1.0, top=5, stream=stream))
    assert server.kind == schema
    assert server.gives_ids is server.rescores is (schema != "openai")
    assert found.tokens == found.count == 12
    assert len(found.keys) == len(found.own) == len(found.stated) == 12
    assert found.prompt_tokens == 2
    assert all(len(row) >= 5 and row == sorted(row, key=lambda e: -e[1]) for row in found.stated)
    assert (found.counts == Counts()) is (schema == "openai")
    assert len(found.stamps) == 1 or stream
    if schema == "sglang" or (schema == "vllm" and not stream):
        assert found.prompt_ids == Stub().ids("a b")  # without them no text can be scored anew
    again = Answer.from_json(json.loads(json.dumps(found.to_json())))
    assert again == found


def test_addresses_are_brought_into_one_form():
    forms = ("localhost:8000", "http://localhost:8000/", "http://localhost:8000/v1/")
    assert {checked(form) for form in forms} == {"http://localhost:8000"}


def ends(content, again=0.0):
    """A trouble that sends `content`, once or until the client leaves, and ends the connection."""

    def trouble(number, http):
        http.send_response(200)
        http.send_header("connection", "close")
        http.end_headers()
        http.close_connection = True
        with suppress(OSError):  # the client has gone
            http.wfile.write(content)
            while again:
                http.wfile.write(content)
                http.wfile.flush()
                time.sleep(again)
        return True

    return trouble


@pytest.mark.parametrize(("status", "doubted"), [(307, True), (400, False), (404, True)])
def test_the_url_is_doubted_only_where_the_server_may_not_know_it(status, doubted):
    with pytest.raises(RefusedError) as caught:
        asked(Stub(trouble=lambda number, http: http.send({"error": "too many"}, status) or True))
    assert ("`model`" in str(caught.value)) == doubted
    assert "too many" in str(caught.value)


EVENT = b'data: {"choices": [{"text": "a"}]}\n\n'


def in_the_stream(number, http):
    http.stream([{"error": {"message": "out of blocks"}}])
    return True


@pytest.mark.parametrize(
    "trouble", [ends(EVENT + b'data: {"cho'), ends(EVENT), ends(EVENT, 0.01), in_the_stream]
)
def test_a_stream_that_breaks_is_tried_again(trouble):
    async def run(url):
        async with Client(url, limits=Limits(whole=0.3, retries=1, pause=0.01)) as client:
            server = Server(client, Kind.OPENAI, "table")
            await server.answer(Ask("a", 4, stream=True))

    with serving(stub := Stub(trouble=trouble)) as url, pytest.raises(UnavailableError):
        asyncio.run(run(url))
    assert len(stub.asked) == 2


def test_a_stream_is_read_for_longer_than_the_timeout_while_bytes_come():
    limits = Limits(timeout=0.5, retries=20, pause=0.01)

    async def run(url):
        async with Client(url, limits=limits) as client:
            server = Server(client, Kind.OPENAI, "table")
            return await server.answer(Ask("a", 8, stream=True))

    with serving(Stub(schema="openai", pause=0.1)) as url:
        answer = asyncio.run(run(url))
    assert answer.count == 8
    assert answer.seconds > limits.timeout


def silent_until_left(number, http):
    http.rfile.read(1)  # returns when the client closes the connection
    http.close_connection = True
    return True


def test_silence_is_named_and_its_connection_closed_before_the_next_attempt():
    slot = threading.Lock()  # a server of one slot, which only a closed connection frees
    limits = Limits(timeout=0.5, retries=100, pause=0.01)

    def hang_once(number, http):
        with slot:
            return number == 1 and silent_until_left(number, http)

    with serving(Stub(schema="openai", trouble=hang_once)) as url:

        async def run():
            async with Client(url, limits=limits) as client:
                server = Server(client, Kind.OPENAI, "table")
                return await server.answer(Ask("a", 4)), client.failures

        answer, failures = asyncio.run(run())
    assert answer.count == 4
    assert set(failures) == {"timed out after 0.5 s without progress"}


def test_requests_that_timed_out_are_tried_again_one_at_a_time():
    together, most, count = 4, 0, 0
    first = threading.Barrier(together)

    def hang_first(number, http):
        nonlocal most, count
        if number <= together:
            first.wait(60)
            return silent_until_left(number, http)
        with stub.lock:
            count += 1
            most = max(most, count)
        time.sleep(0.02)
        with stub.lock:
            count -= 1
        return False

    async def run(url):
        async with Client(url, limits=Limits(timeout=2.5, retries=20, pause=0.01)) as client:
            server = Server(client, Kind.OPENAI, "table")
            asks = [server.answer(Ask("a", 4, seed=i)) for i in range(together)]
            return await asyncio.gather(*asks)

    with serving(stub := Stub(schema="openai", trouble=hang_first)) as url:
        answers = asyncio.run(run(url))
    assert len(answers) == together
    assert most == 1


def test_a_stream_that_gives_the_reason_of_its_end_is_whole_without_done():
    chunk = b'data: {"choices": [{"text": "a", "finish_reason": "length"}]}'
    assert answer_in(chunk + b"\n\n").text == "a"
    with pytest.raises(AttemptError):
        answer_in(chunk.replace(b'"length"', b"null") + b"\n\n")


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_lasting_trouble_is_named_in_the_servers_words(status):
    def busy(number, http):
        http.send({"error": {"message": "out of blocks"}}, status)
        return True

    with pytest.raises(UnavailableError):
        asked(Stub(trouble=busy))


def test_an_engine_that_fails_at_logprobs_is_asked_without_them():
    def fails(number, http):
        if not stub.asked[number - 1].get("logprobs"):
            return False
        http.send({"error": {"message": "logprobs"}}, 500)
        return True

    stub = Stub(trouble=fails)
    assert asked(stub)[0].top == 0


def test_a_page_is_asked_for_again_where_the_connection_breaks():
    """The first page is not, so that a wrong address is named at once."""
    stub = Stub(breaks=["/metrics"])

    async def run(url):
        async with Client(url, limits=FAST) as client:
            return await client.get("/metrics"), client.failures

    with serving(stub) as url:
        page, failures = asyncio.run(run(url))
        assert "HELP" in page
        assert sum(failures.values()) == 1
        stub.breaks.append("/v1/models")
        with pytest.raises(UnavailableError):
            asked_at(url)


def test_a_list_of_models_that_fails_is_done_without_where_the_model_is_named():
    assert asked(Stub(schema="openai", listing=500), model="table")[0].model == "table"
    with pytest.raises(DataError):
        asked(Stub(schema="openai", listing=500))
    with pytest.raises(UnavailableError):
        asked(Stub(listing=503))


def test_counters_of_both_prefixes_are_read():
    page = (
        'vllm:spec_decode_num_drafts_total{engine="0"} 10.0\n'
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 6\n'
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 3\n'
        'vllm:spec_decode_num_accepted_tokens_total{engine="0"} 9\n'
        'vllm:spec_decode_num_draft_tokens_total{engine="0"} 20\n'
    )
    for text in (page, page.replace("vllm:", "llamacpp:").replace("_total{", "{")):
        found = between({}, counters(text))
        assert (found.rounds, found.drafted, found.accepted) == (10, 20, 9)
        assert found.kept == (6, 3)
        rates = {words: rate for words, rate, _ in found.rows() if words.startswith("position")}
        assert list(rates.values()) == [0.6, 0.3, 0.6, 0.5]
    assert between({"num_drafts": 50.0}, counters(page)) is None  # it was restarted
    assert counters(None) == {}


def test_acceptance_of_one_answer_in_each_engines_words():
    def answer(**counts):
        return Answer("", [], [], [], None, count=7, counts=read(counts, Counts))

    vllm = of_answer(answer(vllm={
        "num_spec_steps": 4, "num_accepted_draft_tokens": 3, "num_draft_tokens": 8,
        "per_step_accepted": [2, 0, 1, 0],
    }))  # fmt: skip
    sglang = of_answer(answer(sglang={
        "spec_verify_ct": 4, "spec_accept_token_num": 3, "spec_draft_token_num": 8,
        "spec_accept_histogram": [2, 1, 1],
    }))  # fmt: skip
    llama = of_answer(answer(llama={"draft_n": 8, "draft_n_accepted": 3, "predicted_n": 7}))
    for found in (vllm, sglang, llama):
        assert (found.rounds, found.drafted, found.accepted) == (4, 8, 3)
    assert (vllm.emitted, sglang.emitted, llama.emitted) == (None, 7, 7)
    assert vllm.kept == sglang.kept == (2, 1)
    assert of_answer(answer()) is None
    assert of_answers([]) is None
    assert reached({"0": 1, "2": 3}) == (3, 3)


def test_counts_of_tokens_come_from_the_engine_first():
    events = [(0.1, {"choices": [{"text": "a b"}]}), (0.2, {"choices": [{"text": " c"}]})]
    assert answer_of(events).tokens == 2  # chunks, for want of better
    usage = {"choices": [], "usage": {"completion_tokens": 5, "prompt_tokens": 1}}
    assert answer_of([*events, (0.2, usage)]).tokens == 5
