"""What comes from a server is bounded, uncompressed and free of the API key where it comes in."""

import asyncio
import base64
import json
import threading
from contextlib import contextmanager
from urllib.parse import quote

import pytest

from spsbench.errors import DataError, Exit, UnavailableError, UsageError
from spsbench.serving import body as bodies
from spsbench.serving import http as client_side
from spsbench.serving.address import BASELINE_KEY, KEY, checked, is_local
from spsbench.serving.answers import Reader
from spsbench.serving.engines import Ask
from spsbench.serving.http import Client, Limits, waiting
from tests.oracles.servers import FAST, answer_in, asked, asked_at
from tests.oracles.stub import Stub, serving

SECRET = "sk-Secret+42/of-mine"


def raw(http, content, status=200, **headers):
    """Answer with bytes as they are."""
    http.send_response(status)
    for name, value in headers.items():
        http.send_header(name.replace("_", "-"), value)
    http.send_header("content-length", str(len(content)))
    http.end_headers()
    http.wfile.write(content)


def page(content, status=200, **headers):
    return lambda http: raw(http, content, status, **headers)


# Keys.


@pytest.mark.parametrize("around", ["\n", "\r\n", "  ", "\t"])
def test_a_key_from_a_file_is_sent_without_what_is_around_it(monkeypatch, around):
    monkeypatch.setenv(KEY, f"{around}{SECRET}{around}")
    stub = Stub()
    asked(stub)
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
    "broken by a tab": f"{SECRET[:9]}\t{SECRET[9:]}",
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
        message = {"error": {"message": "-" * before + shown}}
        with pytest.raises(DataError) as caught:
            asked(Stub(pages={"/v1/models": page(json.dumps(message).encode(), 401)}))
        line = str(caught.value)
        assert "***" in line or before > 180
        parts = [shown[i : i + 5] for i in range(12, len(shown) - 5)]  # behind the name of a user
        assert not [part for part in parts if part in line]


def test_no_cookie_is_kept_and_no_redirect_followed():
    cookies, asked_for = [], []

    def moved(http):
        asked_for.append(http.path)
        raw(http, b"", 302, location="/elsewhere")

    def trouble(number, http):
        cookies.append(http.headers.get("cookie"))
        raw(http, b"busy", 503, set_cookie="a=b; Path=/")
        return True

    with pytest.raises(UnavailableError):
        asked(Stub(trouble=trouble))
    assert len(cookies) > 1
    assert set(cookies) == {None}
    asked(Stub(pages={"/version": moved, "/elsewhere": moved}))
    assert set(asked_for) == {"/version"}


@pytest.mark.parametrize("size", [client_side.MAX_ERROR_PAGE - 8, 3 * client_side.MAX_ERROR_PAGE])
def test_a_long_error_page_shows_no_half_of_a_key(monkeypatch, size):
    monkeypatch.setenv(KEY, SECRET)
    content = b" " * size + SECRET.encode() * 3
    with pytest.raises(DataError) as caught:
        asked(Stub(pages={"/v1/models": page(content, 403)}))
    assert "sk-Se" not in str(caught.value)


def echo(http, number, stream):
    """An answer with the key of its request everywhere, in a stream cut in the middle of it."""
    key = http.headers["authorization"].removeprefix("Bearer ")
    halves = [key[:5], key[5:]] if stream else [key]
    events = [{"choices": [{"text": half}], "version": key} for half in halves]
    events[-1]["choices"][0] |= {"finish_reason": "stop", "stop_reason": key}
    events[-1]["usage"] = {"prompt_tokens": 3, "completion_tokens": 2, key: 1}
    if stream:
        http.stream(events)
    else:
        http.send(events[-1])
    return True


@pytest.mark.parametrize("stream", [False, True])
def test_a_key_that_a_server_echoes_is_in_nothing_that_is_read(monkeypatch, stream):
    monkeypatch.setenv(KEY, SECRET)
    listing = {"data": [{"id": f"model-{SECRET}", "owned_by": "vllm"}]}
    pages = {
        "/v1/models": page(json.dumps(listing).encode()),
        "/version": page(json.dumps({"version": SECRET}).encode()),
    }
    stub = Stub(pages=pages, trouble=lambda number, http: echo(http, number, http.streaming))
    server, answer = asked(stub, Ask("a", 2, stream=stream))
    assert server.model == "model-***"
    assert SECRET not in repr((server, answer))
    assert answer.text == "***"


def test_a_key_in_the_tokens_of_an_answer_is_refused(monkeypatch):
    monkeypatch.setenv(KEY, SECRET)
    tokens = [SECRET[i : i + 3] for i in range(0, len(SECRET), 3)]
    logprobs = {"tokens": tokens, "token_logprobs": [-1.0] * len(tokens)}

    def spell(number, http):
        http.send({"choices": [{"text": "a", "logprobs": logprobs}]})
        return True

    with pytest.raises(DataError) as caught:
        asked(Stub(schema="openai", trouble=spell))
    assert SECRET not in str(caught.value)


def test_a_short_key_stays_in_texts(monkeypatch):
    monkeypatch.setenv(KEY, "w1")
    stub = Stub()
    assert "*" not in asked(stub, Ask("a b", 40))[1].text
    assert stub.keys[0] == "Bearer w1"


# Sizes and times.


@contextmanager
def small(monkeypatch, **limits):
    for name, value in limits.items():
        for module in (bodies, client_side):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)
    yield


def endless(http, line=b"data: {}\n\n"):
    http.send_response(200)
    http.send_header("connection", "close")
    http.end_headers()
    http.close_connection = True
    try:
        while True:
            http.wfile.write(line * 1000)
    except OSError:
        pass


@pytest.mark.parametrize("path", ["/v1/models", "/version", "/metrics"])
def test_a_page_without_end_is_given_up_at_the_bound_of_answers(monkeypatch, path):
    with small(monkeypatch, LARGEST=100_000):
        stub = Stub(pages={path: endless})
        if path == "/v1/models":
            with pytest.raises(UnavailableError):
                asked(stub)
        else:
            assert asked(stub)[0].model == "table"


def test_an_answer_without_end_is_given_up_at_the_same_bound(monkeypatch):
    with small(monkeypatch, LARGEST=100_000), pytest.raises(UnavailableError):
        asked(Stub(trouble=lambda number, http: endless(http) or True))


def test_more_values_than_memory_holds_are_given_up():
    content = b'{"choices": [' + b"[]," * 2**22 + b"[]]}"
    with pytest.raises(DataError):
        asked(Stub(trouble=lambda number, http: raw(http, content) or True))


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "deflate, gzip"])
@pytest.mark.parametrize("kind", ["GET", "POST"])
def test_an_answer_that_claims_to_be_compressed_is_refused_whatever_it_holds(encoding, kind):
    listing = page(b'{"data": [{"id": "table"}]}', content_encoding=encoding)
    answer = page(b'{"choices": [{"text": "a"}]}', content_encoding=encoding)
    pages = {"/version": listing, **({"/v1/models": listing} if kind == "GET" else {})}
    trouble = (lambda number, http: answer(http) or True) if kind == "POST" else None
    with pytest.raises(DataError):
        asked(Stub(schema="openai", pages=pages, trouble=trouble), Ask("a", 1))


def test_a_page_that_never_comes_is_done_without(monkeypatch):
    with small(monkeypatch, LONGEST_PAGE=0.05):
        gone = threading.Event()
        stub = Stub(pages={"/version": lambda http: gone.wait(60)})
        try:
            assert asked(stub)[0].version == ""
        finally:
            gone.set()


def test_a_line_without_end_is_joined_once():
    """A join for each piece would copy 64 GiB here, which no limit of a test allows."""
    text = b'data: {"choices": [{"text": "' + b"x" * (16 << 20) + b'", "finish_reason": "stop"}]}\n'
    answer = answer_in(text, 2048)
    assert len(answer.text) == 16 << 20


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
def test_the_last_event_needs_no_newline(content, size):
    assert answer_in(content, size).text == "a"


@pytest.mark.parametrize("cuts", [(), (8,), (3, 11, 12)])
def test_a_stream_ends_at_done_though_the_connection_stays_open(cuts):
    gone = threading.Event()
    done = b"data: [DONE]\n\n"

    def hang(number, http):
        if not http.streaming:
            return False
        http.send_response(200)
        http.send_header("connection", "close")
        http.end_headers()
        http.wfile.write(CHUNK % b"null")
        for first, last in zip((0, *cuts), (*cuts, len(done)), strict=True):
            http.wfile.write(done[first:last])
            http.wfile.flush()
        gone.wait(60)
        http.close_connection = True
        return True

    try:
        answer = asked(Stub(schema="openai", trouble=hang), Ask("a", 1, stream=True))[1]
    finally:
        gone.set()
    assert (answer.text, answer.attempts) == ("a", 1)


def test_the_end_of_a_stream_is_a_line_of_its_own():
    text = b'data: {"choices": [{"text": "data: [DONE] \\ndata: [DONE]"}]}\n'
    for size in (1, 5, 1000):
        body = bodies.Body(Reader(lambda value: value), streamed=True)
        ends = []
        for piece in (
            *(text[i : i + size] for i in range(0, len(text), size)),
            b"data: [DO",
            b"NE]",
        ):
            body.take(1.0, piece)
            ends.append(body.end)
        assert (set(ends[:-1]), ends[-1]) == ({0.0}, 1.0)


def test_done_inside_a_text_ends_nothing():
    text = "say\ndata: [DONE] and go on"
    first = json.dumps({"choices": [{"text": text}]}).encode()
    last = json.dumps({"choices": [{"text": "!", "finish_reason": "stop"}]}).encode()

    def speak(number, http):
        if not http.streaming:
            return False
        http.stream([first.decode(), last.decode()])
        return True

    assert asked(Stub(trouble=speak), Ask("a", 2, stream=True))[1].text == text + "!"


# Pages, proxies, certificates, addresses.


@pytest.mark.parametrize("status", [302, 401, 403, 404, 429, 500, 502, 503])
def test_pages_that_a_server_need_not_have_may_be_refused(status):
    refused = page(b'{"error": "not here"}', status)
    paths = ("/version", "/server_info", "/get_server_info", "/props", "/metrics")
    server, answer = asked(Stub(pages=dict.fromkeys(paths, refused)), Ask("a b", 4))
    assert (server.kind, server.version, answer.tokens) == ("vllm", "", 4)


def test_a_page_whose_connection_always_breaks_is_done_without():
    def broken(http):
        http.close_connection = True

    stub = Stub(pages=dict.fromkeys(("/version", "/props"), broken))
    assert asked(stub)[0].kind == "vllm"


@pytest.mark.parametrize(
    ("value", "longest"),
    [("5", 5), ("0.5", 0.5), ("-3", 0), ("nan", 0), ("1e999", 0), ("soon", 0), ("", 0)],
)
def test_the_seconds_to_wait_are_a_finite_number_from_0(value, longest):
    assert waiting({"retry-after": value}) == longest
    assert waiting({}) == 0


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.9.8.7", True),
        ("0.0.0.0", True),  # as vLLM prints its own address
        ("::1", True),
        ("::", True),
        ("gpu.localhost", True),
        ("10.0.0.1", False),
        ("localhost.example.org", False),
        ("example.org", False),
    ],
)
def test_this_machine_is_known_by_its_addresses(host, local):
    assert is_local(host) is local


@pytest.mark.parametrize("proxy", ["zzz://x", "http://127.0.0.1:9"])
def test_this_machine_is_asked_without_a_proxy(monkeypatch, proxy):
    monkeypatch.setenv("HTTP_PROXY", proxy)
    with serving(Stub()) as url:
        assert asked_at(url.replace("127.0.0.1", "0.0.0.0"))[0].model == "table"


def opened(url):
    async def run():
        async with Client(url, limits=FAST):
            pass

    asyncio.run(run())


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "ALL_PROXY"])
def test_a_proxy_that_cannot_be_used_is_named(monkeypatch, variable):
    monkeypatch.setenv(variable, f"zzz://me:{SECRET}@x")
    with pytest.raises(DataError) as caught:
        opened("http://example.org")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("content", [None, b""])
def test_certificates_that_are_missing_are_named(monkeypatch, tmp_path, content):
    path = tmp_path / "certificates.pem"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    client_side.certificates.cache_clear()
    with pytest.raises(DataError):
        opened("https://127.0.0.1:9")


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://me:secret@host",
            "http://host/v1?key=secret",
            "ftp://host",
            "http://",
            "http://h:x",
        ),
        "http://[::1",
        "\x1b[31m",
        "http://h/\x1b",
        "http://h\x00",
        "http://a b",
        "http://h:99999999",
        "http://h:-1",
        "http://h\ud800",
        "http://\u202eh",
        "http://[1::2::3]",
        "",
        "http://" + "a" * 100_000 + ":x",
    ],
)
def test_what_is_no_address_is_refused_in_one_short_line(url):
    with pytest.raises(UsageError) as caught:
        checked(url)
    assert "secret" not in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_a_host_that_no_resolver_takes_is_no_server():
    with pytest.raises(UnavailableError):
        asked_at(f"http://{'a' * 70}.example")


@pytest.mark.parametrize("limits", [{"timeout": float("inf")}, {"timeout": float("nan")}])
def test_limits_are_finite(limits):
    with pytest.raises(UsageError):
        Limits(**limits)
    with pytest.raises(UsageError):
        Limits(retries=10**9)


def test_names_in_a_line_are_few_and_short():
    listing = {"data": [{"id": f"model-{i}" + "x" * 400} for i in range(2000)]}
    stub = Stub(pages={"/v1/models": page(json.dumps(listing).encode())})
    for more in ({}, {"model": "y" * 10_000}):
        with pytest.raises(DataError) as caught:
            asked(stub, **more)
        assert len(str(caught.value)) < 1500
