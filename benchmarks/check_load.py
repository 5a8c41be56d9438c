"""What the client of `sps check` adds to the times of a server that replays prepared bytes.

    python benchmarks/check_load.py [--json FILE]

A server in a process of its own streams prepared events on loopback. Requests of the package's
client alternate with those of two plain loops: over sockets, and over httpx2 alone. Printed are,
for each, the paired median of what the client adds to the time to the first token of a single
request (wanted: 1 ms at most), and, for 200 requests at a concurrency of 32, how many were lost
(none) and the ratio of the paired median times (within 5 %).
"""

import argparse
import asyncio
import json
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx2

from spsbench.serving.engines import Ask, Kind, Server
from spsbench.serving.http import Client

EVENTS, PAUSE = 32, 0.02  # tokens of an answer, and seconds between two
EVENT = json.dumps({"choices": [{"text": " word", "finish_reason": None}]})
PIECES = [f"data: {EVENT}\n\n".encode()] * EVENTS + [b"data: [DONE]\n\n"]
HEAD = (
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
    f"content-length: {sum(map(len, PIECES))}\r\n\r\n"
).encode()
SINGLES, REQUESTS, TOGETHER, ROUNDS = 40, 200, 32, 3


def serve(pipe: Connection, pause: float) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = next(
                    int(line.split(b":")[1])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length")
                )
                await reader.readexactly(size)
                writer.write(HEAD)
                for piece in PIECES:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(pause)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=256)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


class Plain:
    """Kept connections to the server, read by nothing but asyncio."""

    def __init__(self, port: int, body: bytes) -> None:
        self.port, self.free = port, []
        self.request = (
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json"
            b"\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
        )

    async def ask(self) -> tuple[float, float]:
        """Seconds to the first event, and to the last byte."""
        began = time.perf_counter()
        if self.free:
            reader, writer = self.free.pop()
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(self.request)
        await reader.readuntil(b"\r\n\r\n")
        await reader.readuntil(b"\n\n")
        first = time.perf_counter() - began
        await reader.readexactly(sum(map(len, PIECES[1:])))
        self.free.append((reader, writer))
        return first, time.perf_counter() - began


async def together(ask: Any, count: int, at_once: int) -> list[tuple[float, float] | None]:
    gate = asyncio.Semaphore(at_once)

    async def one() -> tuple[float, float] | None:
        async with gate:
            return await ask()

    return await asyncio.gather(*(one() for _ in range(count)))


async def measure(port: int) -> dict[str, Any]:
    async with Client(f"http://127.0.0.1:{port}") as client:
        server = Server(client, Kind.OPENAI, "replay")
        ask = Ask("a prompt", EVENTS, 0.0, stream=True)
        plain = Plain(port, json.dumps(server.request(ask)[1]).encode())

        async def ours() -> tuple[float, float] | None:
            answer = await server.answer(ask)
            whole = len(answer.stamps) == EVENTS and answer.attempts == 1
            return (answer.stamps[0], answer.seconds) if whole else None

        async def bare() -> tuple[float, float]:
            path, body = server.request(ask)
            began, first = time.perf_counter(), 0.0
            async with http.stream("POST", client.address + path, json=body) as answer:
                async for _ in answer.aiter_raw():
                    first = first or time.perf_counter() - began
            return first, time.perf_counter() - began

        http = httpx2.AsyncClient(trust_env=False, timeout=60, limits=httpx2.Limits())
        ways = {"client": ours, "sockets": plain.ask, "httpx2": bare}
        async with http:
            return await compare(ways)


async def compare(ways: dict[str, Any]) -> dict[str, Any]:
    for way in ways.values():
        await way()
    first: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(SINGLES):
        for name in turned(ways, number):
            first[name].append(1000 * (await ways[name]())[0])
    lost, ratios = 0, {name: [] for name in ways if name != "client"}
    for number in range(ROUNDS):
        medians = {}
        for name in turned(ways, number):
            found = await together(ways[name], REQUESTS, TOGETHER)
            lost += sum(each is None for each in found)
            medians[name] = statistics.median(each[1] for each in found if each is not None)
        for name in ratios:
            ratios[name].append(medians["client"] / medians[name])
    added = {
        name: statistics.median(a - b for a, b in zip(first["client"], first[name], strict=True))
        for name in ratios
    }
    return {
        "added_ttft_ms": added,
        "lost": lost,
        "requests": REQUESTS * ROUNDS,
        "concurrency": TOGETHER,
        "time_ratio": {name: statistics.median(each) for name, each in ratios.items()},
        "time_ratios": ratios,
    }


def turned(ways: dict[str, Any], number: int) -> list[str]:
    """The names, each first in turn."""
    names = list(ways)
    return names[number % len(names) :] + names[: number % len(names)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--pause", type=float, default=PAUSE)
    given = parser.parse_args()
    here, there = multiprocessing.Pipe()
    process = multiprocessing.Process(target=serve, args=(there, given.pause), daemon=True)
    process.start()
    found = asyncio.run(measure(here.recv()))
    process.terminate()
    print(json.dumps(found, indent=2))
    if given.json:
        given.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
