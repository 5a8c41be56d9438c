"""Texts of the servers of a check: asked a few at a time, each kept on arrival, or read again."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

from spsbench.errors import DataError, UnavailableError
from spsbench.extensions.check.journal import Journal
from spsbench.extensions.check.options import CheckOptions
from spsbench.extensions.check.speed import miscount
from spsbench.extensions.check.weights import Weights
from spsbench.messages import ignore
from spsbench.serving.api_key import BASELINE_KEY, KEY
from spsbench.serving.body import Body
from spsbench.serving.engines import Answer, Ask, Kind, Server, connect, probe_streams
from spsbench.serving.http import Client

GREEDY = 8  # prompts at temperature 0
GLANCE = 0.25  # seconds between two looks at answers that come
SERVER_FIELDS: Mapping[str, Callable[[Any], Any]] = {  # what `connect` finds, and how it is read
    "kind": Kind,
    "model": str,
    "version": str,
    "top": int,
    **dict.fromkeys(("extras", "takes_ids", "rescores", "gives_ids", "ids_alone"), bool),
}
OWN, BASE = "server", "baseline"
CONNECTING = "connecting"


@dataclass
class CheckProgress:
    """The part of a check that runs, and how much of it is done."""

    servers: Mapping[str, Server]
    part: str = CONNECTING
    done: int = 0
    total: int = 1
    note: str = ""  # what is known so far
    came: int = 0  # tokens of whole answers in this part
    coming: list[Body] = field(default_factory=list)  # streams that have not ended

    @property
    def counted(self) -> str:
        """Return the part and how much of it is done."""
        return f"{self.part} {self.done}/{self.total}" if self.servers else self.part

    @property
    def tokens(self) -> int:
        """Return the tokens of this part that have arrived."""
        return self.came + sum(stream.tokens for stream in self.coming)

    def __str__(self) -> str:
        arrived = f"{self.tokens:,} tokens have come" if self.coming else ""
        lines = [self.counted, arrived, self.note]
        for server in self.servers.values():
            for reason, count in server.client.failures.items():
                lines.append(f"{count} attempts failed ({reason}), tried again")
        return ", ".join(filter(None, lines))


@dataclass
class Texts:
    """Requests of a check, their answers, and what is to be said of them."""

    plan: CheckOptions
    journal: Journal
    weights: Weights | None = None
    watch: Callable[[CheckProgress], None] = ignore
    servers: dict[str, Server] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)  # answers of the server

    def __post_init__(self) -> None:
        self.progress = CheckProgress(self.servers)
        self._watched = 0.0

    def remark(self, line: str) -> None:
        """Add a remark, once."""
        if line not in self.remarks:
            self.remarks.append(line)

    def report(self, part: str, done: int, total: int) -> None:
        """Show how much of a part is done."""
        progress = self.progress
        if part != progress.part:
            progress.came = 0
        progress.part, progress.done, progress.total = part, done, total
        self.watch(progress)

    async def connect(self, stack: AsyncExitStack) -> None:
        """Connect to the servers, or take what was kept of them where none is asked."""
        plan = self.plan
        self.watch(self.progress)
        for name, url, key, model in (
            (OWN, plan.url, KEY, plan.model),
            (BASE, plan.baseline, BASELINE_KEY, plan.baseline_model),
        ):
            if url is None:
                continue
            kept = f"connected/{name}"
            if not self.journal.asks:
                absent = partial(server_of, AbsentClient(url))
                self.servers[name] = self.journal.read(kept, absent)
                continue
            client = await stack.enter_async_context(Client(url, key, plan.limits))
            server = self.servers[name] = await connect(client, model)
            await probe_streams(server)
            self.journal.note(kept, {key: getattr(server, key) for key in SERVER_FIELDS})

    async def page(self, path: str) -> Any:
        """Return a page of the server; None if there is none."""
        return await self.servers[OWN].client.get(path)

    def prompt(self, index: int) -> str:
        """Return a prompt, in rotation."""
        return self.plan.texts[index % len(self.plan.texts)]

    def ask(self, name: str, index: int, temperature: float, text: str | None = None) -> Ask:
        """Return the request for a text of prompt `index`, or of `text`, with its own seed."""
        plan, server = self.plan, self.servers[name]
        prompt: str | tuple[int, ...] = self.prompt(index) if text is None else text
        if self.weights is not None and server.takes_ids and not plan.chat:
            prompt = tuple(self.weights.encode(str(prompt)))
        return Ask(
            prompt,
            plan.max_new_tokens,
            temperature,
            plan.seed + index,
            top=server.top,
            chat=plan.chat,
        )

    def prompt_ids(self, text: str, answer: Answer) -> list[int]:
        """Return the ids of an answer's prompt, for the weights."""
        if self.weights is None:
            raise LookupError("no weights to score with")
        ids, remark = self.weights.prompt(text, answer, chat=self.plan.chat)
        if remark:
            self.remark(remark)
        return ids

    async def answer(self, name: str, key: str, ask: Ask) -> Answer:
        """Return the kept answer, or that of the server, which is then kept."""
        key = f"{name}/{key}"
        if key in self.journal:
            answer = self.journal.read(key, Answer.from_json)
        else:
            answer = await self._arriving(name, ask)
            self.journal.keep(key, answer.to_json())
        if line := miscount(answer, ask.tokens):
            self.remark(f"{name}: {line}")
        if name == OWN:
            self.answers.append(answer)
        return answer

    async def _arriving(self, name: str, ask: Ask) -> Answer:
        """Return the server's answer, whose events are counted as they come."""
        server, bodies = self.servers[name], list[Body]()
        if not server.streams:
            return await server.answer(ask)

        def arriving(body: Body) -> None:
            body.watch = self._watch_now_and_then
            self.progress.coming = [b for b in self.progress.coming if b not in bodies] + [body]
            bodies.append(body)

        try:
            answer = await server.answer(replace(ask, stream=True), arriving)
        except UnavailableError as error:
            count = bodies[-1].tokens if bodies else 0
            error.args = (f"{error}. The last attempt broke off after {count} tokens",)
            raise
        finally:
            self.progress.coming = [b for b in self.progress.coming if b not in bodies]
        self.progress.came += answer.tokens
        return answer

    def _watch_now_and_then(self) -> None:
        now = time.monotonic()
        if now - self._watched > GLANCE:
            self._watched = now
            self.watch(self.progress)

    async def asked(self, name: str, asks: Sequence[tuple[str, Ask]]) -> list[Answer]:
        """Return the answers in order, by (key, request); requests start in that order."""
        gate = asyncio.Semaphore(self.plan.batch)
        part = f"{asks[0][0].partition('/')[0]} texts of the {name}"
        count = 0

        async def one(key: str, ask: Ask) -> Answer:
            nonlocal count
            async with gate:
                answer = await self.answer(name, key, ask)
            count += 1
            self.report(part, count, len(asks))
            return answer

        self.report(part, 0, len(asks))
        return await gathered([one(key, ask) for key, ask in asks])

    async def greedy(self, name: str, kind: str = "greedy") -> list[Answer]:
        """Return the greedy texts of the first prompts."""
        count = min(GREEDY, len(self.plan.texts))
        return await self.asked(
            name, [(f"{kind}/{i}", self.ask(name, i, 0.0)) for i in range(count)]
        )

    async def wait_for(self, jobs: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
        """Wait for all jobs, a few at a time."""
        gate = asyncio.Semaphore(self.plan.batch)

        async def one(job: Callable[[], Awaitable[Any]]) -> Any:
            async with gate:
                return await job()

        return await gathered([one(job) for job in jobs])


class AbsentClient(Client):
    """The client of a server of which only kept answers are read."""

    async def get(self, path: str) -> None:
        """Return None: no page was kept."""

    async def post(self, path: str, *_: Any, **__: Any) -> NoReturn:
        """Refuse to ask.

        Raises:
            DataError: always.
        """
        raise DataError(
            f"an answer that was not kept ({self.address}{path}): expected a file of a whole "
            "check. Name the server by its URL to go on"
        )


def server_of(client: Client, values: Mapping[str, Any]) -> Server:
    """Return the server of kept answers, which is never asked.

    Raises:
        TypeError, ValueError, KeyError: other values.
    """
    return Server(client, **{name: read(values[name]) for name, read in SERVER_FIELDS.items()})


async def gathered(jobs: Sequence[Any]) -> list[Any]:
    """Wait for all jobs; the first error cancels the others."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(job) for job in jobs]
    return [task.result() for task in tasks]
