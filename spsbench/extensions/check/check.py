"""One check of a running server: distribution, greedy texts, acceptance, speed.

`examine` runs in this order: the engine and its capabilities, greedy texts, texts at temperature 1
until a bias is found or the requested sensitivity is reached, timed blocks. Each answer is appended
to a file on arrival, and the check resumes from that file after an interruption.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from spsbench.audit.statistical.audit import AuditVerdict
from spsbench.errors import SpsError, UnavailableError
from spsbench.extensions.check import greedy as g
from spsbench.extensions.check.columns import Columns, SharedTexts, columns
from spsbench.extensions.check.cuts import Cut
from spsbench.extensions.check.json_answers import JsonResult, examine_json
from spsbench.extensions.check.laws import (
    Band,
    LawResult,
    Mode,
    ServerArm,
    band_between,
    grown,
    judged,
)
from spsbench.extensions.check.plan import Journal, Plan
from spsbench.extensions.check.speed import Level, Ratios, miscount
from spsbench.extensions.check.timing import Timing, gathered
from spsbench.extensions.check.weights import Weights
from spsbench.messages import ignore
from spsbench.serving.acceptance import Acceptance, between, counters, of_answers
from spsbench.serving.api_key import BASELINE_KEY, KEY
from spsbench.serving.engines import Answer, Ask, Kind, Server, Stated, connect
from spsbench.serving.http import Client

log = logging.getLogger(__name__)

BATCH = 16  # texts between two evaluations of the e-value
ROUNDING = 8  # texts of the baseline for the measurement of rounding
FIRSTS = 48  # or first tokens of the server
GREEDY = 8  # prompts at temperature 0
MORE = 1.15  # growth of the sample before the simulated claim is recomputed
OWN, BASE = "server", "baseline"
CONNECTING = "connecting"


@dataclass(kw_only=True)
class Checked:
    """Results of a check."""

    url: str
    engine: str
    model: str
    plan: Plan
    baseline: str | None = None  # engine and model of the baseline
    law: LawResult | None = None
    greedy: g.ServerGreedy | None = None
    acceptance: Acceptance | None = None
    levels: list[Level] = field(default_factory=list)
    ratios: list[Ratios] = field(default_factory=list)
    json: JsonResult | None = None
    remarks: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def verdict(self) -> AuditVerdict:
        """Return BIAS if any part found a bias, HELD if all parts that audit the text held."""
        law = self.law.verdict if self.law else None
        greedy = self.greedy.verdict if self.greedy else None
        if AuditVerdict.BIAS in (law, greedy) or (self.json is not None and self.json.bug):
            return AuditVerdict.BIAS
        if law is None and "law" in self.plan.parts:
            return AuditVerdict.UNKNOWN
        deciding = greedy if law is None else law
        if deciding is None and self.json is not None and self.json.chance is not None:
            return AuditVerdict.HELD
        if deciding is None:
            return AuditVerdict.NOT_AUDITED
        return AuditVerdict.HELD if deciding is AuditVerdict.HELD else AuditVerdict.UNKNOWN


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
class Check:
    """A check in progress."""

    plan: Plan
    journal: Journal
    weights: Weights | None
    draft: Weights | None = None
    servers: dict[str, Server] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)  # answers of the server
    watch: Callable[["CheckProgress"], None] = ignore

    def __post_init__(self) -> None:
        self.progress = CheckProgress(self.servers)
        self._cut = Cut()

    async def run(self) -> Checked:
        """Run all requested parts."""
        began = time.monotonic()
        plan, parts = self.plan, self.plan.parts
        self.watch(self.progress)
        async with AsyncExitStack() as stack:
            for name, url, key, model in (
                (OWN, plan.url, KEY, plan.model),
                (BASE, plan.baseline, BASELINE_KEY, plan.baseline_model),
            ):
                if url is not None:
                    client = await stack.enter_async_context(Client(url, key, plan.limits))
                    self.servers[name] = await connect(client, model)
                    self._describe(name)
            audited, base = self.servers[OWN], self.servers.get(BASE)
            if "law" in parts:
                self._mode()
            checked = Checked(
                url=audited.client.address, engine=audited.name, model=audited.model, plan=plan
            )
            checked.baseline = f"{base.name}, {base.model}" if base else None
            before = counters(await audited.client.get("/metrics"))
            texts = await self._greedy_texts(OWN) if "greedy" in parts or self.weights else []
            if self.weights and texts:
                prompts = [self._prompt_ids(self._prompt(i), text) for i, text in enumerate(texts)]
                apart = self.weights.check_same(prompts, texts)
                log.info(f"weights are the server's: {apart:.2g} nats apart on the median")
            if "greedy" in parts:
                checked.greedy = await self._greedy(texts)
            if "law" in parts:
                checked.law = await self._law()
            if "json" in parts:
                checked.json = await examine_json(
                    list(self.servers),
                    self._answer,
                    self._gathered,
                    seed=plan.seed,
                    top={name: server.top for name, server in self.servers.items()},
                    level=plan.level,
                    progress=self._report,
                )
            after = counters(await audited.client.get("/metrics"))
            timed: list[Answer] = []
            if "speed" in parts:
                timing = Timing(
                    plan,
                    self.journal,
                    self.servers,
                    prompt=self._prompt,
                    remark=self._remark,
                    progress=self._report,
                    answers=timed,
                )
                checked.levels, checked.ratios = await timing.run()
                if not self.answers:  # no other texts: those that were timed tell of their drafts
                    after = counters(await audited.client.get("/metrics"))
            checked.acceptance = of_answers(self.answers or timed) or between(before, after)
            for name, server in self.servers.items():
                for reason, count in server.client.failures.items():
                    self.remarks.append(f"{name}: {count} attempts failed ({reason}), tried again")
        checked.remarks, checked.seconds = self.remarks, time.monotonic() - began
        return checked

    def _describe(self, name: str) -> None:
        server = self.servers[name]
        log.info(f"{name}: {server.name[:80]}, {server.model[:80]} ({server.client.address})")
        if not server.extras:
            self.remarks.append(
                f"{name}: refuses options beyond OpenAI's: cuts of its own would look like a bias"
            )
        if server.kind is Kind.OPENAI and server.extras:
            self.remarks.append(
                f"{name}: the engine is not known, so cuts of its own (top-k, top-p, penalties) "
                "are not turned off and would look like a bias"
            )

    def _mode(self) -> Mode | None:
        """Return the strongest mode that the servers support."""
        server, base = self.servers[OWN], self.servers.get(BASE)
        if self.weights is not None and (
            server.gives_ids or server.top or server.kind is Kind.VLLM
        ):
            return Mode.WEIGHTS
        if base is not None and base.rescores and server.gives_ids and not self.plan.chat:
            return Mode.BASELINE
        return Mode.STATED if server.top else None

    async def _answer(self, name: str, key: str, ask: Ask) -> Answer:
        key = f"{name}/{key}"
        if key in self.journal:
            answer = self.journal.read(key, Answer.from_json)
        else:
            answer = await self.servers[name].answer(ask)
            self.journal.keep(key, answer.to_json())
        if line := miscount(answer, ask.tokens):
            self._remark(f"{name}: {line}")
        if name == OWN:
            self.answers.append(answer)
        return answer

    def _remark(self, line: str) -> None:
        if line not in self.remarks:
            self.remarks.append(line)

    def _prompt(self, index: int) -> str:
        return self.plan.prompts[index % len(self.plan.prompts)]

    def _ask(self, name: str, index: int, temperature: float, text: str | None = None) -> Ask:
        plan, server = self.plan, self.servers[name]
        prompt: str | tuple[int, ...] = self._prompt(index) if text is None else text
        if self.weights is not None and server.takes_ids and not plan.chat:
            prompt = tuple(self.weights.encode(str(prompt)))
        return Ask(
            prompt, plan.length, temperature, plan.seed + index, top=server.top, chat=plan.chat
        )

    async def _texts(
        self, name: str, kind: str, at: range, temperatures: Sequence[float]
    ) -> list[Answer]:
        """Request texts and return them in order."""
        asks = [self._ask(name, i, temperatures[i % len(temperatures)]) for i in at]
        if kind == "sampled":
            asks = [replace(ask, warp=self.plan.cut) for ask in asks]
        return await self._asked(
            name, [(f"{kind}/{i}", ask) for i, ask in zip(at, asks, strict=True)]
        )

    async def _asked(self, name: str, asks: Sequence[tuple[str, Ask]]) -> list[Answer]:
        gate = asyncio.Semaphore(self.plan.batch)
        count = 0

        async def one(key: str, ask: Ask) -> Answer:
            nonlocal count
            async with gate:
                answer = await self._answer(name, key, ask)
            count += 1
            self._report(f"{key.partition('/')[0]} texts of the {name}", count, len(asks))
            return answer

        self._report(f"{asks[0][0].partition('/')[0]} texts of the {name}", 0, len(asks))
        return await gathered([one(key, ask) for key, ask in asks])

    async def _gathered(self, jobs: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
        """Wait for all jobs, a few at a time."""
        gate = asyncio.Semaphore(self.plan.batch)

        async def one(job: Callable[[], Awaitable[Any]]) -> Any:
            async with gate:
                return await job()

        return await gathered([one(job) for job in jobs])

    def _report(self, part: str, done: int, total: int) -> None:
        progress = self.progress
        progress.part, progress.done, progress.total = part, done, total
        self.watch(progress)

    # Greedy texts, and the test that the weights are the server's.

    async def _greedy_texts(self, name: str, kind: str = "greedy") -> list[Answer]:
        count = min(GREEDY, len(self.plan.prompts))
        return await self._texts(name, kind, range(count), (0.0,))

    def _prompt_ids(self, text: str, answer: Answer) -> list[int]:
        if self.weights is None:
            raise LookupError("no weights to score with")
        ids, remark = self.weights.prompt(text, answer, chat=self.plan.chat)
        if remark:
            self._remark(remark)
        return ids

    async def _greedy(self, texts: Sequence[Answer]) -> g.ServerGreedy:
        names = [f"prompt {i + 1}" for i in range(len(texts))]
        repeated = True
        if BASE in self.servers:
            reference = "the baseline"
            others = await self._greedy_texts(BASE)
            again = await self._greedy_texts(BASE, "greedy again")
            repeated = all(a.text == b.text for a, b in zip(others, again, strict=True))
            comparisons = g.against_baseline(names, others, texts)
            planted = g.third_is_a_bug(others[0].stated, others[0].keys)
        elif self.weights is not None:
            reference = "the weights"
            prompts = [self._prompt_ids(self._prompt(i), text) for i, text in enumerate(texts)]
            comparisons = g.against_weights(names, self.weights, prompts, texts)
            ids = self.weights.tokens(texts[0]) or []
            rows = g.rows_of(self.weights, prompts[0], ids) if ids else []
            planted = g.third_is_a_bug(rows, [f"#{i}" for i in ids])
        else:
            reference = "what the server itself states"
            comparisons = [
                g.against_itself(name, text) for name, text in zip(names, texts, strict=True)
            ]
            planted = g.third_is_a_bug(texts[0].stated, texts[0].keys)
        return g.ServerGreedy(reference, comparisons, planted, repeated)

    # Sampled texts.

    async def _law(self) -> LawResult | None:
        mode = self._mode()
        if mode is None:
            ids = self.servers[OWN].gives_ids
            self.remarks.append(
                f"the server gives no logprobs{'' if ids else ' and no ids'}: the law of its text "
                "cannot be told. Start it with logprobs (llama-cpp-python: --logits_all true)"
                + (", or name the model with `weights`" if ids else "")
            )
            return None
        band = await self._rounding(mode)
        self._cut = self._cut_of(band)
        band = band.widened(self._cut.moved) if self._cut else band
        size = max(BATCH, self.plan.batch)
        scored: dict[str, list[Columns]] = {name: [] for name in self.servers}
        ends = dict.fromkeys(self.servers, 0)
        arms: dict[str, ServerArm] = {}
        shared = {name: SharedTexts() for name in self.servers}
        at, looked = 0, 0
        while True:
            for name in self.servers:
                if name == BASE and (at // size) % 2:  # the control has half as many texts
                    continue
                if name == BASE and not self.servers[BASE].top and mode is not Mode.WEIGHTS:
                    continue
                batch = range(at, at + size)
                sent = await self._texts(name, "sampled", batch, self.plan.sampled)
                audited = [i for i in batch if self.plan.audits(self._temperature(i))]
                texts = [sent[i - at] for i in audited]
                if mode is Mode.STATED:
                    top = self.servers[name].top
                    scored[name] += [
                        columns(text.stated, text.keys, top, text.own, shared[name])
                        for text in texts
                    ]
                else:
                    pairs = zip(audited, texts, strict=True)
                    scored[name] += await gathered([self._rescored(mode, name, *p) for p in pairs])
                for text in texts:
                    ends[name] += mode is not Mode.WEIGHTS and text.finish == "stop"
                arms[name] = grown(arms.get(name), name, scored[name], band, ends[name], self.plan)
            at += size
            arm, base = arms[OWN], arms.get(BASE)
            self.progress.note = f"{arm.tokens} tokens, e-value 10^{arm.peak / np.log(10):.1f}"
            log.info(self.progress.note)
            alarmed = arm.alarmed or (base is not None and base.alarmed)
            full = arm.tokens >= self.plan.most or arm.tokens < len(
                scored[OWN]
            )  # or hardly any new tokens
            full |= not any(text.mass.any() for text in scored[OWN][-size:])  # nothing to bet on
            if not (alarmed or full) and arm.tokens < MORE * looked:
                continue
            looked, claim = arm.tokens, arm.claim()
            if alarmed or full or (claim is not None and claim <= self.plan.bias):
                self.progress.note = ""
                for name, seen in shared.items():
                    self._remark_shared(name, seen)
                return judged(mode, arm, base, claim, self.plan.bias)

    def _remark_shared(self, name: str, shared: SharedTexts) -> None:
        if len(shared):
            count = f"{len(shared)} text{'s' * (len(shared) > 1)}"
            self._remark(
                f"{name}: {count} may belong to several tokens each ({shared.examples}): no bets "
                "are made on them. `weights`, or ids from the server, tell them apart"
            )

    async def _rescored(self, mode: Mode, name: str, index: int, text: Answer) -> Columns:
        """Return the columns of a text by the weights, or by the baseline."""
        if mode is Mode.WEIGHTS and self.weights is not None:
            prompt = self._prompt_ids(self._prompt(index), text)
            temperature = self._temperature(index)
            return self.weights.columns(prompt, text, temperature, self.draft, self._cut)
        base = self.servers[BASE]
        key = f"{BASE}/rescored/{name}/{index}"
        if key in self.journal:
            rows = self.journal.read(key, rows_of)
        else:
            rows = await base.rescore(text.prompt_ids or (), text.ids or ())
            self.journal.keep(key, rows)
        return columns(rows, [f"#{i}" for i in text.ids or ()], base.top)

    def _temperature(self, index: int) -> float:
        return self.plan.sampled[index % len(self.plan.sampled)]

    def _cut_of(self, band: Band) -> Cut:
        """Return the cut of sampled texts; engines on llama.cpp cut before the temperature."""
        first = self.servers[OWN].kind in (Kind.LLAMA_SERVER, Kind.LLAMA_CPP_PYTHON)
        return Cut(self.plan.top_k, self.plan.top_p, first, band.other)

    async def _rounding(self, mode: Mode) -> Band:
        """Measure the difference between two statements of the same distributions without a draft.

        The statements are on texts of the baseline, else on first tokens of the server, which have
        no draft.
        """
        name = BASE if BASE in self.servers else OWN
        if mode is Mode.STATED or not self.servers[name].top:
            return Band()
        if self.weights is None:
            return band_between([await self._restated(i) for i in range(ROUNDING)])
        if name == BASE:
            asks = [self._ask(BASE, i, 1.0) for i in range(ROUNDING)]
            prompts = [self._prompt(i) for i in range(ROUNDING)]
        else:
            prompts = [prompt for start in self.plan.prompts for prompt in beginnings(start)][
                :FIRSTS
            ]
            asks = [replace(self._ask(OWN, 0, 1.0, start), tokens=1) for start in prompts]
        answers = await self._asked(name, [(f"rounding/{i}", ask) for i, ask in enumerate(asks)])
        pairs = []
        for prompt, text in zip(prompts, answers, strict=True):
            scored = self.weights.columns(self._prompt_ids(prompt, text), text, 1.0)
            pairs.append((self.weights.restated(text.stated, len(scored)), scored))
        band = band_between(pairs)
        if name == OWN and band.tokens:
            self.remarks.append(
                f"rounding ({band.argmax:.2g} of the likeliest token's chance) is measured on "
                f"{band.tokens} first tokens of the server, for there is no `baseline`"
            )
        return band

    async def _restated(self, index: int) -> tuple[Columns, Columns]:
        """Return the distributions of a baseline text, as stated with the text and as rescored."""
        base = self.servers[BASE]
        text = await self._answer(BASE, f"rounding/{index}", self._ask(BASE, index, 1.0))
        keys = [f"#{i}" for i in text.ids or ()]
        rows = await base.rescore(text.prompt_ids or (), text.ids or ())
        return columns(text.stated, text.keys, base.top), columns(rows, keys, base.top)


def rows_of(values: Any) -> list[Stated]:
    """Read rescored rows."""
    return [[(str(key), float(logprob)) for key, logprob in row] for row in values]


def beginnings(prompt: str) -> list[str]:
    """Return a prompt and two shorter ones, cut between words."""
    words = prompt.split(" ")
    return [" ".join(words[: max(1, len(words) * part // 3)]) for part in (3, 2, 1)]


def examine(
    plan: Plan,
    weights: Weights | None = None,
    keep: Path | None = None,
    *,
    draft: Weights | None = None,
    resume: bool = False,
    watch: Callable[[CheckProgress], None] = ignore,
) -> Checked:
    """Check a server and return all results.

    Args:
        plan: parameters of the check.
        weights: the model that the server should run, to rescore its tokens.
        draft: the model that drafts there, to bet on the tokens that it prefers.
        keep: file for the answers; with `resume`, answers in the file are not requested again.
        watch: called with the progress.

    Raises:
        SpsError: no server, a wrong model, other weights, or a server that stopped.
    """
    journal = Journal(keep, plan, resume=resume)
    try:
        return _run(Check(plan, journal, weights, draft, watch=watch))
    except (SpsError, KeyboardInterrupt) as error:
        if keep is not None and len(journal):
            kept = f"{len(journal)} answers are kept: continue with `resume` {keep}"
            if isinstance(error, KeyboardInterrupt):
                log.warning(kept)
            error.args = (f"{error}. {kept}",)
        raise
    finally:
        journal.close()


def _run(check: Check) -> Checked:
    try:
        return asyncio.run(check.run())
    except* Exception as group:
        error = first_of(group)
        if isinstance(error, UnavailableError) and check.progress.part != CONNECTING:
            error.args = (f"{check.progress.counted}: {error}",)
        raise error from None


def first_of(group: BaseExceptionGroup[Any]) -> BaseException:
    """Return the first error of nested exception groups."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
