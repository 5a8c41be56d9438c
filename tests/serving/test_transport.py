"""What comes from a server is bounded in size and time, tried again, and free of the API key."""

import asyncio
import base64
import json
import threading
import time
from contextlib import suppress
from itertools import repeat
from urllib.parse import quote

import pytest

from spsbench.errors import DataError, Exit, SpsError, UnavailableError, UsageError
from spsbench.serving import http as client_side
from spsbench.serving.address import BASELINE_KEY, KEY, checked, is_local
from spsbench.serving.answers import AttemptError
from spsbench.serving.engines import Ask, Kind, Server, connect
from spsbench.serving.http import MAX_ERROR_PAGE, Client, Limits, RefusedError
from tests.oracles.servers import FAST, answer_in, asked, asked_at
from tests.oracles.stub import Stub, serving

SECRET = "sk-Secret+42/of-mine"


def sends(value, status=200, **headers):
    """What sends a value in place of a page or, as `trouble`, of every answer."""
    return lambda *to: to[-1].send(value, status, **headers) or True


def answer_of(url, limits, count=1, **ask):
    """The answers of a server that is not asked what it is, and the failed attempts."""

    async def run():
        async with Client(url, limits=limits) as client:
            server = Server(client, Kind.OPENAI, "table")
            asks = [server.answer(Ask("a", **{"tokens": 4, **ask})) for _ in range(count)]
            return await asyncio.gather(*asks), client.failures

    return asyncio.run(run())


# Keys.


def test_a_key_from_a_file_is_sent_without_the_blanks_around_it(monkeypatch):
    monkeypatch.setenv(KEY, f"\r\n {SECRET}\t\n")
    asked(stub := Stub())
    assert set(stub.keys) == {f"Bearer {SECRET}"}


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
    "basic of another user": base64.b64encode(f"me:{SECRET}!".encode()).decode(),
    "broken by a line end": f"{SECRET[:9]}\n{SECRET[9:]}",
    "broken by NUL": f"{SECRET[:9]}\0{SECRET[9:]}",
    "broken by a zero-width blank": f"{SECRET[:9]}\u200b{SECRET[9:]}",
    "spaced": " ".join(SECRET),
    "in decimal entities": "".join(f"&#{byte};" for byte in SECRET.encode()),
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


@pytest.mark.parametrize("path", ["/v1/models", "/version", "/metrics", "answer"])
def test_a_page_or_an_answer_without_end_is_given_up(path):
    stub = Stub(pages={path: endless}, trouble=endless if path == "answer" else None)
    if path in ("/v1/models", "answer"):
        with pytest.raises(UnavailableError):
            asked(stub)
    else:
        assert asked(stub)[0].model == "table"


def test_more_events_than_an_answer_has_are_given_up():
    with pytest.raises(AttemptError):
        answer_in(b"data: {}\n\n" * 100_000)


def test_more_values_than_memory_holds_are_given_up():
    with pytest.raises(DataError):
        asked(Stub(trouble=sends(b'{"choices": [' + b"[]," * 2**22 + b"[]]}")))


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "deflate, gzip"])
@pytest.mark.parametrize("path", ["/v1/models", "answer"])
def test_an_answer_that_claims_to_be_compressed_is_refused_whatever_it_holds(encoding, path):
    packed = sends({"data": [{"id": "table"}], "choices": []}, content_encoding=encoding)
    trouble = packed if path == "answer" else None
    with pytest.raises(DataError):
        asked(Stub(pages={"/version": packed, path: packed}, trouble=trouble), Ask("a", 1))


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


@pytest.mark.parametrize("cuts", [(), (8,), (3, 11, 12)])
def test_a_stream_ends_at_done_though_the_connection_stays_open(cuts):
    gone, done = threading.Event(), b"data: [DONE]"
    pieces = [done[i:j] for i, j in zip((0, *cuts), (*cuts, None), strict=True)]
    trouble = lambda number, http: opens(http, [CHUNK % b"null", *pieces], gone)  # noqa: E731
    with serving(Stub(trouble=trouble)) as url:
        try:
            ((answer,), failures) = answer_of(url, FAST, stream=True)
        finally:
            gone.set()
    assert (answer.text, not failures) == ("a", True)


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_done_inside_a_text_ends_nothing(size):
    text = "say\ndata: [DONE] \ndata: [DONE]"
    events = [{"choices": [{"text": text}]}, {"choices": [{"text": "!", "finish_reason": "stop"}]}]
    content = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    assert answer_in(content, size).text == text + "!"


EVENT = b'data: {"choices": [{"text": "a", "token_ids": [1]}]}\n\n'


def slowly(piece):
    for _ in range(100):
        yield piece
        time.sleep(0.01)


@pytest.mark.parametrize(
    "trouble",
    [
        lambda number, http: opens(http, [EVENT + b'data: {"cho']),
        lambda number, http: opens(http, [EVENT]),
        lambda number, http: opens(http, slowly(EVENT)),
        lambda number, http: http.stream([{"error": {"message": "out of blocks"}}]) or True,
    ],
    ids=["half an event", "no end", "too slow", "an error"],
)
def test_a_stream_that_breaks_is_tried_again(trouble):
    limits = Limits(whole=0.3, retries=1, pause=0.01)
    with serving(stub := Stub(trouble=trouble)) as url, pytest.raises(UnavailableError):
        answer_of(url, limits, stream=True)
    assert len(stub.asked) == 2
    with pytest.raises(AttemptError):
        answer_in(EVENT)


# Attempts.


def test_a_stream_is_read_for_longer_than_the_timeout_while_tokens_come():
    limits = Limits(timeout=0.5, retries=0)
    with serving(Stub(schema="openai", pause=0.1)) as url:
        ((answer,), _) = answer_of(url, limits, stream=True, tokens=8)
    assert answer.count == 8
    assert answer.seconds > limits.timeout


def test_requests_that_timed_out_are_closed_and_tried_again_one_at_a_time():
    together, most, running = 4, 0, list[int]()
    first = threading.Barrier(together)

    def hang_first(number, http):
        nonlocal most
        if number <= together:
            first.wait(60)
            http.rfile.read(1)  # returns when the client closes the connection
            http.close_connection = True
            return True
        running.append(number)
        most = max(most, len(running))
        time.sleep(0.02)
        running.remove(number)
        return False

    limits = Limits(timeout=2.5, retries=20, pause=0.01)
    with serving(Stub(schema="openai", trouble=hang_first)) as url:
        answers, failures = answer_of(url, limits, together)
    assert len(answers) == together
    assert most == 1
    assert set(failures) == {"timed out after 2.5 s without progress"}


@pytest.mark.parametrize(
    ("status", "wait"), [(429, "0.01"), (500, "nan"), (503, "soon"), (503, "-3")]
)
def test_a_lasting_trouble_is_named_in_the_servers_words(status, wait):
    words = {"error": {"message": "out of blocks"}}
    with pytest.raises(UnavailableError) as caught:
        asked(stub := Stub(trouble=sends(words, status, retry_after=wait)))
    assert "out of blocks" in str(caught.value)
    assert len(stub.asked) == 3


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
    "status by bytes": (b"HTTP/1.1 200 OK", b" ", 0.01),
    "headers without end": (b"HTTP/1.1 200 OK\r\n", b"x-a: b\r\n", 0.01),
    "status 100 for ever": (b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.01),
    "silence after the headers": (OK, b"", 9),
    "NUL": (OK, b"\0", 0.01),
    "comments": (OK, b": keep-alive\n\n", 0.01),
    "a comment with a token": (OK, b": " + EVENT[6:], 0.01),
    "pings": (OK, b"event: ping\ndata: {}\n\n", 0.01),
    "empty data": (OK, b"data:\n\n", 0.01),
    "events of no text": (OK, b'data: {"choices": [{"text": ""}]}\n\n', 0.01),
    "roles": (OK, b'data: {"choices": [{"delta": {"role": "a", "content": ""}}]}\n\n', 0.01),
    "null": (OK, b"data: null\n\n", 0.01),
    "an event by bytes": (OK + b'data: {"choices": [{"text": "', b"a", 0.01),
    "an event then bytes": (OK + EVENT + b"data: ", b"{", 0.01),
    "tokens for ever": (OK, EVENT, 0.001),
    "tokens at once for ever": (OK, EVENT * 1000, 0.0),
    "usage for ever": (OK, b'data: {"usage": {"completion_tokens": 1}}\n\n', 0.01),
    "bytes of a length": (LONG, b"{", 0.01),
    "blanks of a length": (LONG, b" ", 0.01),
    "an answer, then blanks": (LONG + KEPT, b" ", 0.01),
    "chunks of a byte": (CHUNKED, b"1\r\na\r\n", 0.01),
    "chunk sizes by digits": (CHUNKED, b"0", 0.01),
    "trailers": (CHUNKED + b"0\r\n", b"x-a: b\r\n", 0.01),
    "an error page by bytes": (b"HTTP/1.1 500 No\r\n\r\n", b"a", 0.01),
    "a refusal by bytes": (b"HTTP/1.1 400 No\r\n\r\n", b"a", 0.01),
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
    limits = Limits(timeout=0.15, retries=1, pause=0.0)
    async with asyncio.timeout(60), listening, Client(f"127.0.0.1:{port}", limits=limits) as client:
        if how == "models":
            return await connect(client)
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


def breaks(http):
    http.close_connection = True


@pytest.mark.parametrize("status", [302, 401, 403, 404, 429, 500, 502, 503, None])
def test_pages_that_a_server_need_not_have_may_be_refused_or_never_come(status):
    refused = breaks if status is None else sends({"error": "not here"}, status)
    paths = ("/version", "/server_info", "/get_server_info", "/props", "/metrics")
    server, answer = asked(Stub(pages=dict.fromkeys(paths, refused)), Ask("a b", 4))
    assert (server.kind, server.version, answer.tokens) == ("vllm", "", 4)


def test_a_page_is_asked_for_again_where_the_connection_breaks_but_the_first():
    stub = Stub()

    def breaks_once(http):
        breaks(http)
        stub.pages = {}

    async def page(url):
        async with Client(url, limits=FAST) as client:
            return await client.get("/metrics"), client.failures

    stub.pages = {"/metrics": breaks_once}
    with serving(stub) as url:
        text, failures = asyncio.run(page(url))
        assert "HELP" in text
        assert sum(failures.values()) == 1
        stub.pages = {"/v1/models": breaks_once}
        with pytest.raises(UnavailableError):
            asked_at(url)


@pytest.mark.parametrize(
    ("status", "model", "error"),
    [(500, "table", None), (500, None, DataError), (503, "table", UnavailableError)],
)
def test_a_list_of_models_that_fails_is_done_without_where_the_model_is_named(status, model, error):
    stub = Stub(schema="openai", pages={"/v1/models": sends({"error": "loading"}, status)})
    if error is None:
        assert asked(stub, model=model)[0].model == "table"
    else:
        with pytest.raises(error):
            asked(stub, model=model)


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
        checked(url)
    assert "secret" not in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_addresses_are_brought_into_one_form_and_limits_are_finite():
    forms = ("localhost:8000", "http://localhost:8000/", "http://localhost:8000/v1/")
    assert {checked(form) for form in forms} == {"http://localhost:8000"}
    with pytest.raises(UnavailableError):
        asked_at(f"http://{'a' * 70}.example")  # a host that no resolver takes
    for limits in ({"timeout": float("inf")}, {"timeout": float("nan")}, {"retries": 10**9}):
        with pytest.raises(UsageError):
            Limits(**limits)
