"""Whatever a server sends ends in a text or in one line: client, page, answer and decoder."""

import asyncio
import json
from collections import Counter
from itertools import islice
from typing import Any

import msgspec
import pytest

import spsbench
from spsbench.errors import SpsError
from spsbench.serving.acceptance import contradiction, counters, of_answers, page_delta
from spsbench.serving.engines import Ask, Kind, Server, detect_engine
from spsbench.serving.http import Client, HttpLimits
from spsbench.store.log import encode_record
from tests.oracles import hostile
from tests.oracles.servers import sends
from tests.oracles.stub import Stub, serving

MOST = 2  # tokens that are asked for
ONCE = HttpLimits(timeout=60, retries=0)
EVERY = pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 23])


def check_line(error: SpsError, *place: str) -> None:
    line = str(error)
    assert len(line) < 1000, (place, line)
    assert "\n" not in line, (place, line)
    assert "127.0.0.1" in line, (place, line)


async def whole(url: str, schema: str, chat: bool) -> None:
    async with Client(url, limits=ONCE) as client:
        server = Server(client, Kind(schema), "table", top=1)
        answer = await server.answer(Ask("a", MOST, chat=chat))
        of_answers([answer])
        json.dumps(msgspec.to_builtins(answer))


@EVERY
@pytest.mark.parametrize(("schema", "decoder"), [("vllm", "openai"), ("sglang", "sglang")])
def test_every_answer_ends_in_a_text_or_in_one_line(schema: str, decoder: str, every: int) -> None:
    outcomes: Counter[str] = Counter()
    with serving(stub := Stub(schema=schema)) as url:
        options = f"url={url},retries=0,logprobs=true"
        pair = spsbench.load(decoder=f"{decoder}:{options}", max_new_tokens=MOST)
        pair.generate("a")
        for name, change, content in islice(hostile.answers(), 0, None, every):
            if name.startswith("generate") is not (schema == "sglang"):
                continue
            stub.trouble, chat = sends(content), name.startswith("chat")
            try:
                if name.endswith("stream"):
                    prompt: Any = [{"role": "user", "content": "a"}] if chat else "a"
                    record = pair.generate(prompt).record
                    assert len(record.rounds) <= MOST + 3, (name, change)
                    if not record.problem:
                        encode_record(0, record.to_json())
                else:
                    asyncio.run(whole(url, schema, chat))
                outcomes["text"] += 1
            except SpsError as error:
                check_line(error, name, change)
                outcomes[type(error).__name__] += 1
            except Exception as error:
                raise AssertionError(f"{name}, {change}") from error
    assert min(outcomes[name] for name in ("text", "DataError", "RefusedPromptError")) > 4


@EVERY
def test_every_page_ends_in_a_server_or_in_one_line(every: int) -> None:
    async def run(stub: Stub, url: str) -> None:
        async with Client(url, limits=ONCE) as client:
            for path, name, content in islice(hostile.pages(), 0, None, every):
                stub.pages[path] = sends(content)
                try:
                    server = await detect_engine(client)
                    assert len(server.version) < 100
                    counts = page_delta({}, counters(await client.get("/metrics")))
                    assert counts is None or contradiction(counts, MOST) or counts.rounds <= MOST
                except SpsError as error:
                    check_line(error, path, name)
                except Exception as error:
                    raise AssertionError(f"{path}, {name}") from error
                stub.pages = pages | {}

    pages = {path: sends(hostile.written(value)) for path, value in hostile.PAGES.items()}
    stub = Stub(pages=dict(pages))
    stub.trouble = sends(hostile.written(hostile.ANSWERS["completions"]))
    with serving(stub) as url:
        asyncio.run(run(stub, url))
