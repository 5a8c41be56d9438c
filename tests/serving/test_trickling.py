"""A server that sends bytes, and no progress, ends at the timeout, in one line."""

import asyncio

import pytest

from spsbench.errors import SpsError
from spsbench.serving.engines import Ask, Kind, Server, connect
from spsbench.serving.http import Client, Limits

OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices": [{"text": "a", "token_ids": [1]}]}\n\n'
EMPTY = b'data: {"choices": [{"text": ""}]}\n\n'
ROLE = b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\n\n'
KEPT = b'{"choices": [{"text": "a", "finish_reason": "stop"}], "usage": {"completion_tokens": 1}}'
LONG = b"HTTP/1.1 200 OK\r\ncontent-length: 9999999\r\n\r\n"


def chunked(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


FOR_EVER = {
    "no status": (b"", b"", 9),
    "status by bytes": (b"HTTP/1.1 200 OK", b" ", 0.01),
    "headers without end": (b"HTTP/1.1 200 OK\r\n", b"x-a: b\r\n", 0.01),
    "one header without end": (b"HTTP/1.1 200 OK\r\nx-a: ", b"b", 0.01),
    "status 100 for ever": (b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.01),
    "silence after the headers": (OK, b"", 9),
    "blanks": (OK, b" ", 0.01),
    "lines": (OK, b"\n", 0.01),
    "line ends of CR": (OK, b"\r", 0.01),
    "NUL": (OK, b"\0", 0.01),
    "comments": (OK, b": keep-alive\n\n", 0.01),
    "a comment without end": (OK + b": ", b"a", 0.01),
    "a comment with a token": (OK, b": " + EVENT[6:], 0.01),
    "pings": (OK, b"event: ping\ndata: {}\n\n", 0.01),
    "ids": (OK, b"id: 1\n\n", 0.01),
    "retries": (OK, b"retry: 1\n\n", 0.01),
    "empty data": (OK, b"data:\n\n", 0.01),
    "empty events": (OK, b"data: {}\n\n", 0.01),
    "events of no text": (OK, EMPTY, 0.01),
    "roles": (OK, ROLE, 0.01),
    "no ids": (OK, b'data: {"choices": [{"text": "", "token_ids": []}]}\n\n', 0.01),
    "null": (OK, b"data: null\n\n", 0.01),
    "an event by bytes": (OK + b'data: {"choices": [{"text": "', b"a", 0.01),
    "an event then bytes": (OK + EVENT + b"data: ", b"{", 0.01),
    "an event then comments": (OK + EVENT, b": x\n\n", 0.01),
    "an event then blanks": (OK + EVENT, b"\n", 0.01),
    "tokens for ever": (OK, EVENT, 0.001),
    "tokens at once for ever": (OK, EVENT * 1000, 0.0),
    "usage for ever": (OK, b'data: {"choices": [], "usage": {"completion_tokens": 1}}\n\n', 0.01),
    "bytes of a length": (LONG, b"{", 0.01),
    "blanks of a length": (LONG, b" ", 0.01),
    "an answer, then blanks": (LONG + KEPT, b" ", 0.01),
    "chunks of a byte": (CHUNKED, chunked(b"a"), 0.01),
    "chunks of a blank": (CHUNKED, chunked(b" "), 0.01),
    "chunks of a byte, fast": (CHUNKED, chunked(b"a") * 1000, 0.0),
    "chunk sizes by digits": (CHUNKED, b"0", 0.01),
    "chunk extensions": (CHUNKED + b"1;", b"a", 0.01),
    "trailers": (CHUNKED + b"0\r\n", b"x-a: b\r\n", 0.01),
    "an error page by bytes": (b"HTTP/1.1 500 No\r\n\r\n", b"a", 0.01),
    "a refusal by bytes": (b"HTTP/1.1 400 No\r\n\r\n", b"a", 0.01),
    "a redirect by bytes": (b"HTTP/1.1 302 No\r\nlocation: /v1/models\r\n\r\n", b"a", 0.01),
}


async def asked(script, how):
    head, piece, pause = script

    async def answer(reader, writer):
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(head)
            while not reader.at_eof():
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    limits = Limits(timeout=0.15, retries=1, pause=0.0)
    async with asyncio.timeout(60), Client(f"http://127.0.0.1:{port}", limits=limits) as client:
        try:
            if how == "models":
                return await connect(client)
            server = Server(client, Kind.VLLM, "m")
            return await server.answer(Ask("a", 3, stream=how == "stream"))
        finally:
            listening.close()


@pytest.mark.parametrize("how", ["models", "whole", "stream"])
def test_a_server_that_trickles_ends_in_one_line(how):
    async def all_of_them():
        return await asyncio.gather(
            *(asked(script, how) for script in FOR_EVER.values()), return_exceptions=True
        )

    for name, error in zip(FOR_EVER, asyncio.run(all_of_them()), strict=True):
        assert isinstance(error, SpsError), (name, error)
        assert str(error).isprintable(), name
