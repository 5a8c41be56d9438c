"""Requests to stub servers."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import spsbench
from spsbench.serving.answers import AnswerReader
from spsbench.serving.engines import detect_engine
from spsbench.serving.http import Client, HttpLimits, ResponseBody
from tests.oracles.stub import serving

FAST = HttpLimits(timeout=60, retries=2, pause=0.01)


def asked(stub, ask=None, limits=FAST, **more):
    """The server of a stub, and its answer to `ask`."""

    with serving(stub) as url:
        return asked_at(url, ask, limits, **more)


def asked_at(url, ask=None, limits=FAST, **more):
    async def run():
        async with Client(url, limits=limits) as client:
            server = await detect_engine(client, **more)
            return server, await server.answer(ask) if ask is not None else None

    return asyncio.run(run())


def sends(value: Any, status: int = 200, **headers: str) -> Any:
    """What sends a value in place of a page or, as `trouble`, of every answer."""
    return lambda *to: to[-1].send(value, status, **headers) or True


def answer_of(events, reader=AnswerReader):
    """The answer of events, given with their times."""
    reads = reader(lambda value: value)
    for at, event in events:
        reads.add(at, json.dumps(event).encode())
    return reads.done()


def answer_in(content, size=1 << 16):
    """The answer of a stream that comes in pieces, and when it ended."""
    reads = AnswerReader(lambda value: value)
    body = ResponseBody(reads, streamed=True)
    for at in range(0, len(content), size):
        body.take(at + 1.0, content[at : at + size])
    body.close(len(content) + 1.0)
    return reads.done()


TOKENS = 16
QUICK = "timeout=60,retries=1"
PROMPTS = 4


@pytest.fixture
def bench(tmp_path: Path) -> Callable[..., Any]:
    """`bench("openai:url=...", out="run")`: four prompts, seven words each."""
    lines = [{"id": str(i), "prompt": f"one word and then w{i}"} for i in range(PROMPTS)]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))

    def run(decoder: str, **asked: Any) -> Any:
        given = {"max_new_tokens": TOKENS, "warmup": 0, "out": tmp_path / "run", **asked}
        return spsbench.bench(f"jsonl:path={tmp_path}/p.jsonl", decoder=decoder, **given)

    return run
