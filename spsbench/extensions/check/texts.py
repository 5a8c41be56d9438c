"""Texts of the servers of a check: asked a few at a time, each kept on arrival, or read again."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from spsbench.extensions.check.journal import Journal
from spsbench.extensions.check.options import CheckOptions
from spsbench.extensions.check.weights import Weights
from spsbench.messages import ignore
from spsbench.serving.address import BASELINE_KEY, KEY
from spsbench.serving.engines import Answer, Ask, Kind, Server, connect, probe_streams
from spsbench.serving.http import Client, Limits

GREEDY = 8  # prompts at temperature 0
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

    @property
    def counted(self) -> str:
        """Return the part and how much of it is done."""
        return f"{self.part} {self.done}/{self.total}" if self.servers else self.part

    def __str__(self) -> str:
        lines = [self.counted, self.note]
        for server in self.servers.values():
            for reason, count in server.client.failures.items():
                lines.append(f"{count} attempts failed ({reason}), tried again")
        return ", ".join(filter(None, lines))


@dataclass
class Texts:
    """Requests of a check, their answers, and remarks about them."""

    plan: CheckOptions
    journal: Journal
    weights: Weights | None = None
    watch: Callable[[CheckProgress], None] = ignore
    servers: dict[str, Server] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)  # answers of the server

    def __post_init__(self) -> None:
        self.progress = CheckProgress(self.servers)

    def remark(self, line: str) -> None:
        """Add a remark, once."""
        if line not in self.remarks:
            self.remarks.append(line)

    def report(self, part: str, done: int, total: int) -> None:
        """Show how much of a part is done."""
        self.progress.part, self.progress.done, self.progress.total = part, done, total
        self.watch(self.progress)

    async def connect(self, stack: AsyncExitStack) -> None:
        """Connect to the servers, or take what was kept of them where none is asked."""
        plan, limits = self.plan, Limits(self.plan.timeout, retries=self.plan.retries)
        self.watch(self.progress)
        for name, url, key, model in (
            (OWN, plan.url, KEY, plan.model),
            (BASE, plan.baseline, BASELINE_KEY, plan.baseline_model),
        ):
            if url is None:
                continue
            kept, client = f"connected/{name}", Client(url, key, limits)
            if not self.journal.asks:
                self.servers[name] = self.journal.read(kept, partial(server_of, client))
                continue
            server = await connect(await stack.enter_async_context(client), model)
            self.servers[name] = server
            await probe_streams(server)
            self.journal.note(kept, {key: getattr(server, key) for key in SERVER_FIELDS})

    async def page(self, path: str) -> Any:
        """Return a page of the server; None if there is none, or no server is asked."""
        return await self.servers[OWN].client.get(path) if self.journal.asks else None

    def prompt(self, index: int) -> str:
        """Return a prompt, in rotation."""
        return self.plan.texts[index % len(self.plan.texts)]

    def ask(self, name: str, index: int, temperature: float, text: str | None = None) -> Ask:
        """Return the request for a text of prompt `index`, or of `text`, with its own seed."""
        plan, server = self.plan, self.servers[name]
        prompt: str | tuple[int, ...] = self.prompt(index) if text is None else text
        if self.weights is not None and server.takes_ids and not plan.chat:
            prompt = tuple(self.weights.encode(str(prompt)))
        seed, length = plan.seed + index, plan.max_new_tokens
        return Ask(prompt, length, temperature, seed, server.top, chat=plan.chat)

    def prompt_ids(self, text: str, answer: Answer) -> list[int]:
        """Return the ids of an answer's prompt, for the weights."""
        if self.weights is None:
            raise LookupError("no weights to score with")
        ids, remark = self.weights.prompt(text, answer, chat=self.plan.chat)
        if remark:
            self.remark(remark)
        return ids

    async def asked(self, name: str, asks: Sequence[tuple[str, Ask]]) -> list[Answer]:
        """Return the answers in order, by (key, request), kept or asked for in that order."""
        part, server = f"{asks[0][0].partition('/')[0]} texts of the {name}", self.servers[name]
        done = 0

        async def one(key: str, ask: Ask) -> Answer:
            nonlocal done
            # Streamed, where a stream has all: tokens are progress (`Limits.timeout`).
            request = partial(server.answer, replace(ask, stream=server.streams))
            key, write = f"{name}/{key}", Answer.to_json
            answer = await self.journal.get(key, Answer.from_json, request, write)
            if line := miscount(answer, ask.tokens):
                self.remark(f"{name}: {line}")
            if name == OWN:
                self.answers.append(answer)
            done += 1
            self.report(part, done, len(asks))
            return answer

        self.report(part, 0, len(asks))
        return await self.wait_for([partial(one, *keyed) for keyed in asks])

    async def greedy(self, name: str, kind: str = "greedy") -> list[Answer]:
        """Return the greedy texts of the first prompts."""
        numbers = range(min(GREEDY, len(self.plan.texts)))
        return await self.asked(name, [(f"{kind}/{i}", self.ask(name, i, 0.0)) for i in numbers])

    async def wait_for(
        self, jobs: Sequence[Callable[[], Awaitable[Any]]], together: int | None = None
    ) -> list[Any]:
        """Wait for all jobs, a few at a time; the first error cancels the others."""
        gate = asyncio.Semaphore(together or self.plan.batch)

        async def one(job: Callable[[], Awaitable[Any]]) -> Any:
            async with gate:
                return await job()

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(job)) for job in jobs]
        return [task.result() for task in tasks]


def server_of(client: Client, values: Mapping[str, Any]) -> Server:
    """Return the server of kept answers, which is never asked."""
    return Server(client, **{name: read(values[name]) for name, read in SERVER_FIELDS.items()})


def miscount(answer: Answer, most_tokens: float) -> str:
    """Return why the number of tokens cannot be what the engine counts; empty if it can."""
    count, pieces = answer.count, len(answer.stamps)
    if count is not None and (type(count) is not int or count < 0):
        return f"counts {str(count)[:40]} tokens"
    if answer.ids is not None and count not in (None, len(answer.ids)):
        return f"counts {count} tokens and lists {len(answer.ids)} ids"
    if answer.tokens > most_tokens:
        return f"{answer.tokens} tokens where {most_tokens} were asked for"
    if count is not None and count < pieces - 1:  # the last piece may be text that was held back
        return f"counts {count} tokens in {pieces} pieces of text"
    return ""
