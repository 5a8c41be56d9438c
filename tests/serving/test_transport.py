"""What comes from a server is bounded in size and time, tried again, and free of the API key."""

import asyncio
import base64
import json
import threading
import time
from contextlib import nullcontext, suppress
from itertools import repeat
from urllib.parse import quote

import pytest

from spsbench.errors import DataError, Exit, SpsError, UnavailableError, UsageError
from spsbench.serving import http as client_side
from spsbench.serving.address import BASELINE_KEY, KEY, check_address, is_local
from spsbench.serving.answers import AttemptError
from spsbench.serving.engines import Ask, Kind, Server, detect_engine
from spsbench.serving.http import MAX_ERROR_PAGE, Client, HttpLimits, RefusedError
from tests.oracles.servers import FAST, answer_in, asked, asked_at, sends
from tests.oracles.stub import Stub, serving

SECRET = "sk-Secret+42/of-mine"


def answer_of(url, limits, count=1, **ask):
    """The answers of a server that is not asked what it is, and the failed attempts."""

    async def run():
        async with Client(url, limits=limits) as client:
            server = Server(client, Kind.OPENAI, "table")
            asks = [server.answer(Ask("a", **{"tokens": 4, **ask})) for _ in range(count)]
            return await asyncio.gather(*asks), client.failures

    return asyncio.run(run())


# Keys.


@pytest.mark.parametrize("inside", ["\n", "\x1b[31m", "é", "\u2028", "\x7f"])
@pytest.mark.parametrize("variable", [KEY, BASELINE_KEY])
def test_a_key_that_no_header_carries_is_refused_by_its_variable(monkeypatch, inside, variable):
    monkeypatch.setenv(variable, f"sk-Sec{inside}ret")
    with pytest.raises(DataError) as caught:
        Client("http://localhost", variable)
    assert "Sec" not in str(caught.value)
    assert caught.value.code == Exit.DATA


FORMS = {
    "as it is": SECRET,
    "in other letters": SECRET.upper(),
    "percent-encoded": quote(SECRET, safe=""),
    "every byte percent-encoded": "".join(f"%{byte:02X}" for byte in SECRET.encode()),
    "as a literal": repr(SECRET.encode()),
    "in hexadecimal": SECRET.encode().hex(),
    "escaped": "".join(f"\\u{byte:04x}" for byte in SECRET.encode()),
    "basic": base64.b64encode(f"user:{SECRET}".encode()).decode(),
    "broken by a line end": f"{SECRET[:9]}\n{SECRET[9:]}",
    "broken by a zero-width blank": f"{SECRET[:9]}\u200b{SECRET[9:]}",
    "in hexadecimal entities": "".join(f"&#x{byte:x};" for byte in SECRET.encode()),
    "bearer": base64.urlsafe_b64encode(f"Bearer {SECRET}".encode()).decode(),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_key_is_hidden_before_a_reason_is_cut(monkeypatch, form):
    monkeypatch.setenv(KEY, SECRET)
    shown = FORMS[form]
    for before in (100, *range(170, 200, 5)):  # a cut of 200 characters would leave a part of it
        page = sends({"error": {"message": "-" * before + shown}}, 401)
        with pytest.raises(DataError) as caught:
            asked(Stub(pages={"/v1/models": page}))
        line = str(caught.value)
        assert "***" in line or before > 180
        parts = [shown[i : i + 5] for i in range(12, len(shown) - 5)]  # behind the name of a user
        assert not [part for part in parts if part in line]


@pytest.mark.parametrize("size", [MAX_ERROR_PAGE - 8, 3 * MAX_ERROR_PAGE])
def test_a_long_error_page_shows_no_half_of_a_key(monkeypatch, size):
    monkeypatch.setenv(KEY, SECRET)
    with pytest.raises(DataError) as caught:
        asked(Stub(pages={"/v1/models": sends(" " * size + SECRET * 3, 403)}))
    assert "sk-Se" not in str(caught.value)


@pytest.mark.parametrize("stream", [False, True])
def test_a_key_that_a_server_echoes_is_in_nothing_that_is_read(monkeypatch, stream):
    monkeypatch.setenv(KEY, SECRET)

    def echo(number, http):
        events = [{"choices": [{"text": half}]} for half in (SECRET[:5], SECRET[5:])]
        events = events if http.streaming else [{"choices": [{"text": SECRET}]}]
        events[-1]["choices"][0] |= {"finish_reason": "stop", "stop_reason": SECRET}
        events[-1]["usage"] = {"prompt_tokens": 3, "completion_tokens": 2, SECRET: 1}
        return (http.stream(events) if http.streaming else http.send(events[0])) or True

    listing = {"data": [{"id": f"model-{SECRET}", "owned_by": "vllm"}]}
    pages = {"/v1/models": sends(listing), "/version": sends({"version": SECRET})}
    server, answer = asked(Stub(pages=pages, trouble=echo), Ask("a", 2, stream=stream))
    assert server.model == "model-***"
    assert SECRET not in repr((server, answer))
    assert answer.text == "***"


def test_a_key_that_the_tokens_of_an_answer_spell_is_refused(monkeypatch):
    monkeypatch.setenv(KEY, SECRET)
    tokens = [SECRET[i : i + 3] for i in range(0, len(SECRET), 3)]
    logprobs = {"tokens": tokens, "token_logprobs": [-1.0] * len(tokens)}
    with pytest.raises(DataError) as caught:
        asked(
            Stub(schema="openai", trouble=sends({"choices": [{"text": "a", "logprobs": logprobs}]}))
        )
    assert SECRET not in str(caught.value)


def test_a_short_key_stays_in_texts(monkeypatch):
    monkeypatch.setenv(KEY, "w1")
    assert "*" not in asked(Stub(), Ask("a b", 40))[1].text


def test_no_cookie_is_kept_and_no_redirect_followed():
    cookies, paths = [], []

    def moved(http):
        paths.append(http.path)
        http.send("", 302, location="/elsewhere")

    def busy(number, http):
        cookies.append(http.headers.get("cookie"))
        return http.send("busy", 503, set_cookie="a=b; Path=/") or True

    with pytest.raises(UnavailableError):
        asked(Stub(trouble=busy))
    assert cookies == [None] * 3
    asked(Stub(pages={"/version": moved, "/elsewhere": moved}))
    assert set(paths) == {"/version"}


# Sizes.


def opens(http, pieces, gone=None):
    """Send the pieces of an answer without a length, and leave when the client has."""
    http.send_response(200)
    http.send_header("connection", "close")
    http.end_headers()
    http.close_connection = True
    with suppress(OSError):  # the client has gone
        for piece in pieces:
            http.wfile.write(piece)
            http.wfile.flush()
    if gone is not None:
        gone.wait(60)
    return True


def endless(*to):
    return opens(to[-1], repeat(b"data: {}\n\n" * 10_000, 1000))


@pytest.mark.parametrize("where", [{"pages": {"/v1/models": endless}}, {"trouble": endless}])
def test_a_page_or_an_answer_without_end_is_given_up(where):
    with pytest.raises(UnavailableError):
        asked(Stub(**where))


def test_more_events_than_an_answer_has_are_given_up():
    with pytest.raises(AttemptError):
        answer_in(b"data: {}\n\n" * 100_000)


def test_more_values_than_memory_holds_are_given_up():
    with pytest.raises(DataError):
        asked(Stub(trouble=sends(b'{"choices": [' + b"[]," * 2**22 + b"[]]}")))


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "deflate, gzip"])
def test_an_answer_that_claims_to_be_compressed_is_refused_whatever_it_holds(encoding):
    packed = sends({"choices": []}, content_encoding=encoding)
    with pytest.raises(DataError):
        asked(Stub(pages={"/version": packed}, trouble=packed), Ask("a", 1))


def test_a_line_without_end_is_joined_once():
    """A join for each piece would copy 64 GiB here, which no limit of a test allows."""
    text = b'data: {"choices": [{"text": "' + b"x" * (16 << 20) + b'", "finish_reason": "stop"}]}\n'
    assert len(answer_in(text, 2048).text) == 16 << 20


# Ends of streams.

CHUNK = b'data: {"choices": [{"text": "a", "finish_reason": %s}]}\n\n'


@pytest.mark.parametrize(
    "content",
    [
        CHUNK % b"null" + b"data: [DONE]",
        CHUNK % b"null" + b"data:[DONE]\n",
        CHUNK % b"null" + b"\r\ndata: [DONE]\r\n\r\n",
        (CHUNK % b'"stop"').rstrip(),
        CHUNK % b'"stop"' + b'data: {"choices": [], "usage": {"completion_tokens": 1}}',
    ],
)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_last_event_needs_no_newline_and_no_done_after_a_reason_of_the_end(content, size):
    assert answer_in(content, size).text == "a"


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_done_inside_a_text_ends_nothing(size):
    text = "say\ndata: [DONE] \ndata: [DONE]"
    events = [{"choices": [{"text": text}]}, {"choices": [{"text": "!", "finish_reason": "stop"}]}]
    content = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    assert answer_in(content, size).text == text + "!"


EVENT = b'data: {"choices": [{"text": "a", "token_ids": [1]}]}\n\n'


@pytest.mark.parametrize(
    "end",
    [
        [b"data: [DONE]"],
        [b"data: [D", b"ONE]"],
        [b"data: [DONE]\n\n", *[EVENT * 1000] * 4000],  # more than an answer may have
    ],
    ids=["open", "in pieces", "more events"],
)
def test_a_stream_ends_at_done_though_the_connection_goes_on(end):
    gone = threading.Event()
    trouble = lambda number, http: opens(http, [CHUNK % b"null", *end], gone)  # noqa: E731
    with serving(Stub(trouble=trouble)) as url:
        try:
            ((answer,), failures) = answer_of(url, FAST, stream=True)
        finally:
            gone.set()
    assert (answer.text, not failures) == ("a", True)


def test_a_stream_that_takes_too_long_as_a_whole_is_given_up():
    def slowly(number, http):
        return opens(http, (time.sleep(0.01) or EVENT for _ in range(100)))

    with serving(Stub(trouble=slowly)) as url, pytest.raises(UnavailableError):
        answer_of(url, HttpLimits(whole=0.3, retries=0), stream=True)


# Attempts.


def test_a_stream_is_read_for_longer_than_the_timeout_while_tokens_come():
    limits = HttpLimits(timeout=0.5, retries=0)
    with serving(Stub(schema="openai", pause=0.1)) as url:
        ((answer,), _) = answer_of(url, limits, stream=True, tokens=8)
    assert answer.count == 8
    assert answer.seconds > limits.timeout


def test_requests_that_timed_out_are_closed_and_tried_again_one_at_a_time():
    together, running, alone = 4, threading.Lock(), list[bool]()
    first = threading.Barrier(together)

    def hang_first(number, http):
        if number <= together:
            first.wait(60)
            http.rfile.read(1)  # returns when the client closes the connection
            http.close_connection = True
            return True
        alone.append(running.acquire(blocking=False))
        time.sleep(0.02)
        return alone[-1] and running.release()

    limits = HttpLimits(timeout=2.5, retries=20, pause=0.01)
    with serving(Stub(schema="openai", trouble=hang_first)) as url:
        answers, failures = answer_of(url, limits, together)
    assert len(answers) == together
    assert all(alone)
    assert set(failures) == {"timed out after 2.5 s without progress"}


@pytest.mark.parametrize(("status", "doubted"), [(307, True), (400, False), (404, True)])
def test_the_url_is_doubted_only_where_the_server_may_not_know_it(status, doubted):
    with pytest.raises(RefusedError) as caught:
        asked(Stub(trouble=sends({"error": "too many"}, status)))
    assert ("`model`" in str(caught.value)) == doubted
    assert "too many" in str(caught.value)


# Servers that send bytes, and no progress.

OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
KEPT = b'{"choices": [{"text": "a", "finish_reason": "stop"}], "usage": {"completion_tokens": 1}}'
LONG = b"HTTP/1.1 200 OK\r\ncontent-length: 9999999\r\n\r\n"
FOR_EVER = {  # what comes once, what comes again and again, seconds between
    "no status": (b"", b"", 9),
    "silence after the headers": (OK, b"", 9),
    "a comment with a token": (OK, b": " + EVENT[6:], 0.01),
    "roles": (OK, b'data: {"choices": [{"delta": {"role": "a", "content": ""}}]}\n\n', 0.01),
    "an event then bytes": (OK + EVENT + b"data: ", b"{", 0.01),
    "tokens for ever": (OK, EVENT, 0.001),
    "tokens at once for ever": (OK, EVENT * 1000, 0.0),
    "bytes of a length": (LONG, b"{", 0.01),
    "an answer, then blanks": (LONG + KEPT, b" ", 0.01),
    "chunks of a byte": (CHUNKED, b"1\r\na\r\n", 0.01),
    "an error page by bytes": (b"HTTP/1.1 500 No\r\n\r\n", b"a", 0.01),
}


async def trickled(script, how):
    head, piece, pause = script

    async def answer(reader, writer):
        with suppress(ConnectionError, asyncio.CancelledError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(head)
            while not reader.at_eof():
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause)
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    limits = HttpLimits(timeout=0.15, retries=1, pause=0.0)
    async with asyncio.timeout(60), listening, Client(f"127.0.0.1:{port}", limits=limits) as client:
        if how == "models":
            return await detect_engine(client)
        return await Server(client, Kind.VLLM, "m").answer(Ask("a", 3, stream=how == "stream"))


@pytest.mark.parametrize("how", ["models", "whole", "stream"])
def test_a_server_that_trickles_ends_in_one_line(how):
    async def all_of_them():
        scripts = (trickled(script, how) for script in FOR_EVER.values())
        return await asyncio.gather(*scripts, return_exceptions=True)

    for name, error in zip(FOR_EVER, asyncio.run(all_of_them()), strict=True):
        assert isinstance(error, SpsError), (name, error)
        assert str(error).isprintable(), name


# Pages, proxies, certificates, addresses.


@pytest.mark.parametrize("status", [302, 401, 403, 404, 429, 500, 502, 503, None])
def test_pages_that_a_server_need_not_have_may_be_refused_or_never_come(status):
    broken = []

    def breaks(http):
        broken.append(http.path)
        http.close_connection = True

    refused = breaks if status is None else sends({"error": "not here"}, status)
    paths = ("/version", "/server_info", "/get_server_info", "/props", "/metrics")
    server, answer = asked(Stub(pages=dict.fromkeys(paths, refused)), Ask("a b", 4))
    assert (server.kind, server.version, answer.tokens) == ("vllm", "", 4)
    assert len(broken) == (status is None) * 3 * 4  # pages that a server may have are tried again
    with suppress(DataError, UnavailableError):
        asked(Stub(pages={"/v1/models": breaks}))
    assert broken.count("/v1/models") == 1  # so that a wrong address is named at once


@pytest.mark.parametrize(
    ("status", "model", "error"),
    [(500, "table", None), (500, None, DataError), (503, "table", UnavailableError)],
)
def test_a_list_of_models_that_fails_is_done_without_where_the_model_is_named(status, model, error):
    stub = Stub(schema="openai", pages={"/v1/models": sends({"error": "loading"}, status)})
    with pytest.raises(error) if error else nullcontext():
        assert asked(stub, model=model)[0].model == "table"


def test_names_in_a_line_are_few_and_short():
    listing = {"data": [{"id": f"model-{i}" + "x" * 400} for i in range(2000)]}
    for model in (None, "y" * 10_000):
        with pytest.raises(DataError) as caught:
            asked(Stub(pages={"/v1/models": sends(listing)}), model=model)
        assert len(str(caught.value)) < 1500


THIS_MACHINE = ("localhost", "127.0.0.1", "127.9.8.7", "0.0.0.0", "::1", "::", "gpu.localhost")


def test_this_machine_is_known_by_its_addresses_and_asked_without_a_proxy(monkeypatch):
    assert all(map(is_local, THIS_MACHINE))
    assert not any(map(is_local, ("10.0.0.1", "localhost.example.org", "example.org")))
    for proxy in ("zzz://x", "http://127.0.0.1:9"):
        monkeypatch.setenv("HTTP_PROXY", proxy)
        with serving(Stub()) as url:
            assert asked_at(url.replace("127.0.0.1", "0.0.0.0"))[0].model == "table"


@pytest.mark.parametrize(
    ("url", "variable", "value"),
    [
        ("http://example.org", "HTTP_PROXY", f"zzz://me:{SECRET}@x"),
        ("http://example.org", "ALL_PROXY", f"zzz://me:{SECRET}@x"),
        ("https://127.0.0.1:9", "SSL_CERT_FILE", "/nowhere.pem"),
        ("https://127.0.0.1:9", "SSL_CERT_FILE", "/dev/null"),
    ],
)
def test_a_proxy_or_certificates_that_cannot_be_used_are_named(monkeypatch, url, variable, value):
    monkeypatch.setenv(variable, value)
    client_side.certificates.cache_clear()
    with pytest.raises(DataError) as caught:
        answer_of(url, FAST)
    assert variable in str(caught.value)
    assert SECRET not in str(caught.value)


BAD = "http://me:secret@host http://host/v1?key=secret ftp://host http:// http://h:x http://[::1"
BAD += " \x1b[31m http://h/\x1b http://h\x00 http://h:99999999 http://h:-1 http://h\ud800"
BAD += " http://\u202eh http://[1::2::3]"


@pytest.mark.parametrize("url", [*BAD.split(" "), "http://a b", "", f"http://{'a' * 100_000}:x"])
def test_what_is_no_address_is_refused_in_one_short_line(url):
    with pytest.raises(UsageError) as caught:
        check_address(url)
    assert "secret" not in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_addresses_are_brought_into_one_form():
    forms = ("localhost:8000", "http://localhost:8000/", "http://localhost:8000/v1/")
    assert {check_address(form) for form in forms} == {"http://localhost:8000"}
