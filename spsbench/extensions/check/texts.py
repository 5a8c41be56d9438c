"""Texts of the servers of a check: asked a few at a time, each kept on arrival, or read again."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, get_type_hints

import msgspec

from spsbench.extensions.check.journal import COUNTED, Journal
from spsbench.extensions.check.options import CheckOptions
from spsbench.extensions.check.weights import LocalModel
from spsbench.messages import ignore
from spsbench.serving.acceptance import Acceptance, contradiction, counters, of_answers, page_delta
from spsbench.serving.address import BASELINE_KEY, KEY
from spsbench.serving.engines import Answer, Ask, Server, detect_engine, probe_streams
from spsbench.serving.http import Client, HttpLimits
from spsbench.serving.wire import read_json
from spsbench.untrusted import cut

GREEDY = 8  # prompts at temperature 0
OF_CONNECTION = ("client", "streams")  # fields of a server that end with the check
KEPT = {name: kind for name, kind in get_type_hints(Server).items() if name not in OF_CONNECTION}
"""What is kept of a server, by name, with its type."""
OWN, BASE = "server", "baseline"
MAY_DO_IT = "its own {}, which it does not let be switched off, may do it"
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
class CheckTexts:
    """Requests of a check, their answers, and remarks about them."""

    plan: CheckOptions
    journal: Journal
    weights: LocalModel | None = None
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

    def remark_length(self, name: str, answer: Answer, asked: int, effect: str = "") -> None:
        """Remark tokens of an answer that cannot be as many (with the `effect`), or end early."""
        if line := answer.miscount(asked):
            self.remark(f"{name}: {line}{effect}")
        elif answer.is_cut_short(asked):
            why = f"(finish_reason {cut(answer.finish)}), as by a context of its own"
            self.remark(f"{name}: texts end before the {asked} tokens asked for {why}")

    def report(self, part: str, done: int, total: int) -> None:
        """Set the progress to `done` of `total` of a part, and hand it to `watch`."""
        self.progress.part, self.progress.done, self.progress.total = part, done, total
        self.watch(self.progress)

    async def connect(self, stack: AsyncExitStack) -> None:
        """Detect the servers by clients that `stack` closes; if none is asked, take kept ones.

        They are put into `servers` by name, and noted in the journal with what they can. SpsError:
        one is out of reach or cannot be used, or was not kept.
        """
        plan, limits = self.plan, HttpLimits(self.plan.timeout, retries=self.plan.retries)
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
            client = await stack.enter_async_context(client)
            server = await detect_engine(client, model, chat=plan.chat)
            self.servers[name] = server
            await probe_streams(server, chat=plan.chat)
            self.journal.note(kept, {name: getattr(server, name) for name in KEPT})

    async def metrics(self) -> Any:
        """Return the server's /metrics page; None if it has none, or no server is asked."""
        return await self.servers[OWN].client.get("/metrics") if self.journal.asks else None

    async def counters(self) -> dict[str, float]:
        """Return what the server has counted of drafts so far; empty if it does not tell."""
        return counters(await self.metrics())

    async def drafts(
        self, part: str, before: Mapping[str, float], answers: Sequence[Answer]
    ) -> Acceptance | None:
        """Return what the engine tells of the drafts in answers of the server; None: nothing.

        The answers' own counts come first, then counters since `before`, read before `answers` were
        asked for. These are kept under `part`, for when no server is asked, and are not used if
        they cannot be of these answers alone (remarked), or earlier starts had the answers.
        """
        counts = of_answers(answers)
        if counts is not None or not answers:
            return counts
        key = f"{COUNTED}{part}"
        if self.journal.asks:
            after = await self.counters()
            if after:
                self.journal.keep(key, {"before": before, "after": after})
        read = partial(msgspec.convert, type=dict[str, dict[str, float]])
        pages = self.journal.read(key, read) if key in self.journal else {}
        counts = page_delta(pages.get("before", {}), pages.get("after", {}))
        if counts is None or (self.journal.resumed and not counts.rounds):
            return None  # answers of an earlier start are not among these counts
        if wrong := contradiction(counts, sum(a.tokens for a in answers), len(answers)):
            self.remark(f"counters at /metrics are of other requests too ({wrong}): not used")
            return None
        total = pages["after"].get("num_draft_tokens", pages["after"].get("num_drafts", 0.0))
        return replace(counts, source=f"{counts.source}; {total:,.0f} drafted in all")

    def prompt(self, index: int) -> str:
        """Return a prompt, in rotation."""
        return self.plan.texts[index % len(self.plan.texts)]

    def new_prompt(self, number: int) -> str:
        """Return a prompt that no other number has: the plan's, in rotation, after `number` + 1.

        With speed alone the first round has none, as no answer to another part can be drafted from.
        """
        texts = self.plan.texts
        is_new = set(self.plan.parts) == {"speed"} and number < len(texts)
        return texts[number] if is_new else f"({number + 1}) {texts[number % len(texts)]}"

    def ask(self, name: str, index: int, temperature: float, text: str | None = None) -> Ask:
        """Return a request of `text`, None: of prompt `index`, in rotation, with seed plus `index`.

        Its prompt is ids by the weights; text in a chat, without weights, and where server `name`
        takes no ids.
        """
        plan, server = self.plan, self.servers[name]
        prompt: str | tuple[int, ...] = self.prompt(index) if text is None else text
        if self.weights is not None and server.takes_ids and not plan.chat:
            prompt = tuple(self.weights.encode(str(prompt)))
        seed, length = plan.seed + index, plan.max_new_tokens
        return Ask(prompt, length, temperature, seed, server.top, chat=plan.chat)

    def processed(self, ask: Ask) -> Ask:
        """Return a request with the processors of the check, biases by the ids of the weights."""
        by = self.weights.processors if self.weights else None
        biases = {"logit_bias": by.biases} if by and by.biases else {}
        return replace(ask, processors=self.plan.processors.changed | biases)

    def prompt_ids(self, text: str, answer: Answer) -> list[int]:
        """Return an answer's prompt ids by weights; remark unlike ones. LookupError: no weights."""
        if self.weights is None:
            raise LookupError("no weights to score with")
        ids, remark = self.weights.prompt(text, answer, chat=self.plan.chat)
        if remark:
            self.remark(remark)
        return ids

    async def answers_to(self, name: str, asks: Sequence[tuple[str, Ask]]) -> list[Answer]:
        """Return an answer to each of 1 or more (key, request), in order: kept ones, or new.

        New ones are streamed where streams have all, and kept under `name/key`. Answers of OWN join
        `answers`, wrong lengths are remarked, and the progress is reported after each.
        """
        part, server = f"{asks[0][0].partition('/')[0]} texts of the {name}", self.servers[name]
        done = 0

        async def one(key: str, ask: Ask) -> Answer:
            """Return the answer to `ask`, kept or requested; note OWN's, lengths and progress."""
            nonlocal done
            # Streamed, where a stream has all: tokens are progress (`Limits.timeout`).
            request = partial(server.answer, replace(ask, stream=server.streams))
            key, read = f"{name}/{key}", partial(read_json, schema=Answer)
            answer: Answer = await self.journal.get(key, read, request, msgspec.to_builtins)
            self.remark_length(name, answer, ask.tokens)
            if name == OWN:
                self.answers.append(answer)
            done += 1
            self.report(part, done, len(asks))
            return answer

        self.report(part, 0, len(asks))
        return await self.wait_for([partial(one, *keyed) for keyed in asks])

    async def greedy(
        self, name: str, kind: str = "greedy", *, processed: bool = False
    ) -> list[Answer]:
        """Return greedy texts of the first `GREEDY` prompts; `processed`: under the processors."""
        asks = [self.ask(name, i, 0.0) for i in range(min(GREEDY, len(self.plan.texts)))]
        asks = list(map(self.processed, asks)) if processed else asks
        return await self.answers_to(name, [(f"{kind}/{i}", ask) for i, ask in enumerate(asks)])

    async def wait_for(
        self, jobs: Sequence[Callable[[], Awaitable[Any]]], together: int | None = None
    ) -> list[Any]:
        """Return results in order, `together` (or `batch`) at once; errors, in a group, end all."""
        gate = asyncio.Semaphore(together or self.plan.batch)

        async def one(job: Callable[[], Awaitable[Any]]) -> Any:
            async with gate:
                return await job()

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(job)) for job in jobs]
        return [task.result() for task in tasks]


def why_unexercised(drafts: Acceptance | None, tokens: int, unstated: int = 0) -> str:
    """Return why no audited token is known to have been drafted; empty if one is.

    `drafts` counts the drafts in the texts (None: unknown, no reason if `tokens` is 0), `tokens`
    the audited tokens, `unstated` those of which nothing is stated but that they were emitted.
    """
    if drafts and not drafts.speculated:
        return f"none of the {tokens:,} audited tokens was drafted ({drafts.source})"
    if unstated and unstated >= (drafts.accepted if drafts else 0):
        return (
            f"of {unstated:,} of {tokens:,} tokens nothing is stated but that they were emitted, "
            "which may be all that were drafted"
        )
    if drafts is None and tokens:
        return f"the engine does not tell how many of the {tokens:,} audited tokens were drafted"
    return ""


def server_of(client: Client, values: Mapping[str, Any]) -> Server:
    """Return the server of kept answers, which is never asked; older files lack some values."""
    kept = {n: msgspec.convert(values[n], kind) for n, kind in KEPT.items() if n in values}
    return Server(client, **kept)
