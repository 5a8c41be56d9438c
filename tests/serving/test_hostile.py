"""Whatever a server sends ends in a result or in one line: in the readers, and in the command."""

import asyncio
from collections import Counter
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest

from spsbench.errors import DataError, SpsError
from spsbench.loop.decoder import RefusedPromptError
from spsbench.methods.decoders.openai import OpenAiDecoder
from spsbench.serving.acceptance import between, contradiction, counters, of_answers, spans
from spsbench.serving.body import Body
from spsbench.serving.engines import Ask, Kind, Server, connect
from spsbench.serving.http import Client, Limits
from spsbench.settings.records import Record, RoundRecord
from spsbench.store.log import encode
from tests.oracles import hostile

MOST = 2  # tokens that are asked for
ONCE = Limits(timeout=60, retries=0)


class Answering(Client):
    """A client whose server answers with given bytes, without a connection."""

    def __init__(self, contents: dict[str, bytes], content: bytes = b"") -> None:
        super().__init__("http://server", limits=ONCE)
        self.contents, self.content = contents, content

    async def _exchange(self, method: str, path: str, body: Body, payload: Any = None) -> None:
        content = self.content if method == "POST" else self.contents.get(path)
        body.status = 404 if content is None else 200
        body.take(0.1, content or b"")
        body.close(0.2)


async def answer_to(kind: str, content: bytes) -> Any:
    schema = Kind.SGLANG if kind.startswith("generate") else Kind.VLLM
    server = Server(Answering({}, content), schema, "m", top=1)
    streamed, chat = kind.endswith("stream"), kind.startswith("chat")
    return await server.answer(Ask("a", MOST, top=1, stream=streamed, chat=chat))


def recorded(answer: Any) -> Record:
    """The record of an answer, as the decoder makes it."""
    cell = SimpleNamespace(k=None)
    decoder = OpenAiDecoder(cell, None, Client("http://server"), "m")  # type: ignore[arg-type]
    decoder._check(answer, MOST)
    prefill, passes = spans(answer, decoder._acceptance(answer), plain=False)
    rounds = list(decoder._rounds(answer, passes))
    made = [
        RoundRecord(
            r.drafted, r.tested, r.accepted, r.emitted, None, r.seconds, 0.0, 0.0, passes=r.passes
        )
        for r in rounds
    ]
    return Record(
        prompt_tokens=answer.prompt_tokens or 0,
        tokens=[token for r in rounds for token in r.tokens],
        text=answer.text,
        finish=rounds[-1].finish or "length",
        prefill_seconds=prefill,
        rounds=made,
    )


def check_line(error: SpsError, place: str, name: str) -> None:
    line = str(error)
    assert len(line) < 1000, (place, name, line)
    assert "\n" not in line, (place, name, line)
    assert "server" in line, (place, name, line)  # its address


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 7])
def test_every_answer_ends_in_a_record_or_in_one_line(every: int) -> None:
    outcomes: Counter[str] = Counter()

    async def run() -> None:
        for kind, name, content in islice(hostile.answers(), 0, None, every):
            try:
                answer = await answer_to(kind, content)
                of_answers([answer])
                record = recorded(answer)
                assert len(record.rounds) <= MOST + 3, (kind, name)
                if not record.problem:
                    encode(0, record.to_json())
                outcomes["record"] += 1
            except SpsError as error:
                check_line(error, kind, name)
                outcomes[type(error).__name__] += 1
            except Exception as error:
                raise AssertionError(f"{kind}, {name}") from error

    asyncio.run(run())
    assert sum(outcomes.values()) > 400
    assert min(outcomes[name] for name in ("record", "DataError", "RefusedPromptError")) > 10


def test_every_page_ends_in_a_server_or_in_one_line() -> None:
    whole = hostile.written(hostile.ANSWERS["completions"])
    written = {path: hostile.written(value) for path, value in hostile.PAGES.items()}

    async def run() -> None:
        for path, name, content in hostile.pages():
            client = Answering(written | {path: content}, whole)
            try:
                server = await connect(client)
                assert len(server.version) < 100
                found = counters(await client.get("/metrics"))
                told = between({}, found)
                assert told is None or contradiction(told, MOST) or told.rounds <= MOST
            except SpsError as error:
                check_line(error, path, name)
            except Exception as error:
                raise AssertionError(f"{path}, {name}") from error

    asyncio.run(run())


@pytest.mark.parametrize(
    "changed",
    [
        {"num_draft_tokens": -6},
        {"num_accepted_draft_tokens": 600},
        {"num_accepted_draft_tokens": 5, "num_draft_tokens": 3},
        {"num_spec_steps": 10**9, "num_draft_tokens": 10**9},
        {"num_draft_tokens": 10**9},
        {"per_step_accepted": [10**9]},
        {"acceptance_histogram": {"999999999": 1}, "per_step_accepted": None},
        {"acceptance_histogram": [1] * 60_000, "per_step_accepted": None},
    ],
)
def test_counts_that_cannot_be_true_fail_one_generation(changed: Any) -> None:
    answer = hostile.ANSWERS["completions"]
    said = answer["metrics"]["speculative_decoding"] | changed
    content = hostile.written(answer | {"metrics": {"speculative_decoding": said}})
    with pytest.raises(RefusedPromptError):
        recorded(asyncio.run(answer_to("completions", content)))


@pytest.mark.parametrize("name", sorted(hostile.SPECULATIVE))
def test_a_count_that_another_version_leaves_out_is_not_available(name: str) -> None:
    answer = hostile.ANSWERS["completions"]
    said = {key: value for key, value in hostile.SPECULATIVE.items() if key != name}
    content = hostile.written(answer | {"metrics": {"speculative_decoding": said}})
    record = recorded(asyncio.run(answer_to("completions", content)))
    assert not record.problem


@pytest.mark.parametrize("token", [-1, 2**31, 2**70])
@pytest.mark.parametrize("kind", ["completions", "generate"])
def test_ids_that_no_vocabulary_has_fail_one_generation(token: int, kind: str) -> None:
    name = {"completions": ("choices", 0, "token_ids", 0), "generate": ("output_ids", 0)}[kind]
    content = hostile.written(hostile.replaced(hostile.ANSWERS[kind], name, token))
    with pytest.raises(DataError):
        asyncio.run(answer_to(kind, content))
