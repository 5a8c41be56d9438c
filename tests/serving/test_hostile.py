"""Whatever a server sends ends in a text or in one line: client, page, answer and decoder."""

import asyncio
import json
from collections import Counter
from itertools import islice
from typing import Any

import pytest

import spsbench
from spsbench.errors import SpsError
from spsbench.loop.decoder import RefusedPromptError
from spsbench.serving.acceptance import between, contradiction, counters, of_answers
from spsbench.serving.engines import Ask, Kind, Server, connect
from spsbench.serving.http import Client, Limits
from spsbench.store.log import encode
from tests.oracles import hostile
from tests.oracles.stub import Stub, serving

MOST = 2  # tokens that are asked for
ONCE = Limits(timeout=60, retries=0)
EVERY = pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 7])


def sends(content: bytes) -> Any:
    return lambda *to: to[-1].send(content) or True


def check_line(error: SpsError, *place: str) -> None:
    line = str(error)
    assert len(line) < 1000, (place, line)
    assert "\n" not in line, (place, line)
    assert "127.0.0.1" in line, (place, line)


def texts(stub: Any, url: str, every: int) -> Counter[str]:
    """What hostile answers end in for the client, and hostile streams for the decoder."""
    outcomes: Counter[str] = Counter()
    kind, decoder = Kind(stub.schema), "sglang" if stub.schema == "sglang" else "openai"
    pair = spsbench.load(
        decoder=f"{decoder}:url={url},retries=0,logprobs=true", max_new_tokens=MOST
    )
    pair.generate("a")

    async def whole(chat: bool) -> None:
        async with Client(url, limits=ONCE) as client:
            answer = await Server(client, kind, "table", top=1).answer(Ask("a", MOST, chat=chat))
            of_answers([answer])
            json.dumps(answer.to_json())

    for name, change, content in islice(hostile.answers(), 0, None, every):
        if name.startswith("generate") is not (stub.schema == "sglang"):
            continue
        stub.trouble, chat = sends(content), name.startswith("chat")
        try:
            if name.endswith("stream"):
                prompt: Any = [{"role": "user", "content": "a"}] if chat else "a"
                record = pair.generate(prompt).record
                assert len(record.rounds) <= MOST + 3, (name, change)
                if not record.problem:
                    encode(0, record.to_json())
            else:
                asyncio.run(whole(chat))
            outcomes["text"] += 1
        except SpsError as error:
            check_line(error, name, change)
            outcomes[type(error).__name__] += 1
        except Exception as error:
            raise AssertionError(f"{name}, {change}") from error
    return outcomes


@EVERY
@pytest.mark.parametrize("schema", ["vllm", "sglang"])
def test_every_answer_ends_in_a_text_or_in_one_line(schema: str, every: int) -> None:
    with serving(stub := Stub(schema=schema)) as url:
        outcomes = texts(stub, url, every)
    assert min(outcomes[name] for name in ("text", "DataError", "RefusedPromptError")) > 10


@EVERY
def test_every_page_ends_in_a_server_or_in_one_line(every: int) -> None:
    async def run(stub: Stub, url: str) -> None:
        async with Client(url, limits=ONCE) as client:
            for path, name, content in islice(hostile.pages(), 0, None, every):
                stub.pages[path] = sends(content)
                try:
                    server = await connect(client)
                    assert len(server.version) < 100
                    counts = between({}, counters(await client.get("/metrics")))
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


@pytest.mark.parametrize(
    "changed",
    [
        {"num_draft_tokens": -6},
        {"num_accepted_draft_tokens": 600},
        {"num_accepted_draft_tokens": 5, "num_draft_tokens": 3},
        {"num_spec_steps": 10**9, "num_draft_tokens": 10**9},
        {"per_step_accepted": [10**9]},
        {"acceptance_histogram": {"999999999": 1}, "per_step_accepted": None},
        {"acceptance_histogram": [1] * 60_000, "per_step_accepted": None},
        {"token_ids": [-1]},
        {"token_ids": [2**31]},
        *({name: None} for name in hostile.SPECULATIVE),  # another version leaves it out
    ],
    ids=lambda changed: str(changed)[:40],
)
def test_numbers_that_cannot_be_true_fail_one_generation_and_missing_none(
    changed: Any,
) -> None:
    *events, last = hostile.STREAMS["completions stream"]
    choice = {"text": " b", "token_ids": changed.get("token_ids", [2]), "finish_reason": "stop"}
    counts = {"speculative_decoding": hostile.SPECULATIVE | changed}
    events = [events[0], {"choices": [choice]}, last | {"metrics": counts}]
    content = b"".join(map(hostile.event, map(hostile.written, events)))
    with serving(stub := Stub()) as url:
        pair = spsbench.load(decoder=f"openai:url={url},retries=0", max_new_tokens=MOST)
        pair.generate("a")
        stub.trouble = sends(content)
        if None in changed.values() and len(changed) == 1:
            assert pair.generate("a").record.problem == ""
        else:
            with pytest.raises(RefusedPromptError):
                pair.generate("a")
