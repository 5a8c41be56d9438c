"""One check of a running server: distribution, greedy texts, modes, acceptance, speed.

`examine` runs in this order: the engine and its capabilities, greedy texts, the modes that are
asked for, sampled texts until a bias is found or the requested sensitivity is reached, timed
blocks. Each answer is appended to a file on arrival, and the check resumes from that file after an
interruption. `recomputed` makes the same results of the file alone.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spsbench.audit.statistical.finding import AuditVerdict
from spsbench.errors import SpsError, UnavailableError
from spsbench.extensions.check import greedy as g
from spsbench.extensions.check.journal import REFUSED, Journal
from spsbench.extensions.check.json_answers import JsonResult, json_answers
from spsbench.extensions.check.laws import LawResult
from spsbench.extensions.check.modes import Modes, numbered
from spsbench.extensions.check.plan import Plan
from spsbench.extensions.check.sampled import Sampled
from spsbench.extensions.check.speed import Level, Ratios
from spsbench.extensions.check.texts import BASE, CONNECTING, OWN, CheckProgress, Texts
from spsbench.extensions.check.timing import Timing
from spsbench.extensions.check.weights import Weights
from spsbench.messages import ignore
from spsbench.serving.acceptance import Acceptance, between, counters, of_answers
from spsbench.serving.engines import Answer, Kind
from spsbench.serving.http import RefusedError

log = logging.getLogger(__name__)


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
    modes: dict[str, g.ServerGreedy] = field(default_factory=dict)  # by part: mixed, stop, cache
    refused: list[str] = field(default_factory=list)  # modes whose requests the server refuses
    answers: int = 0  # of the server, in which drafts may be counted
    remarks: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def verdict(self) -> AuditVerdict:
        """Return BIAS if any part found a bias, HELD if all parts that audit the text held."""
        law = self.law.verdict if self.law else None
        greedy = self.greedy.verdict if self.greedy else None
        modes = [mode.verdict for mode in self.modes.values()]
        if AuditVerdict.BIAS in (law, greedy, *modes):
            return AuditVerdict.BIAS
        untold = self.refused or any(verdict is not AuditVerdict.HELD for verdict in modes)
        if untold or (law is None and "law" in self.plan.parts):
            return AuditVerdict.UNKNOWN
        deciding = greedy if law is None else law
        if deciding is None and modes:
            return AuditVerdict.HELD
        if deciding is None:
            return AuditVerdict.NOT_AUDITED
        return AuditVerdict.HELD if deciding is AuditVerdict.HELD else AuditVerdict.UNKNOWN


@dataclass
class Check:
    """A check in progress."""

    texts: Texts
    draft: Weights | None = None

    async def run(self) -> Checked:
        """Run all requested parts."""
        began = time.monotonic()
        texts, plan, parts = self.texts, self.texts.plan, self.texts.plan.parts
        async with AsyncExitStack() as stack:
            await texts.connect(stack)
            audited, base = texts.servers[OWN], texts.servers.get(BASE)
            for name in texts.servers:
                self._describe(name)
            checked = Checked(
                url=audited.client.address, engine=audited.name, model=audited.model, plan=plan
            )
            checked.baseline = f"{base.name}, {base.model}" if base else None
            before = counters(await texts.page("/metrics"))
            first = plan.compares or texts.weights
            greedy = await texts.greedy(OWN) if first else []
            if texts.weights and greedy:
                apart = texts.weights.check_same(self._prompts(greedy), greedy)
                log.info(f"weights are the server's: {apart:.2g} nats apart on the median")
            if "greedy" in parts:
                checked.greedy = await self._greedy(greedy)
            stop = await self._modes(checked, greedy)
            if "law" in parts:
                checked.law = await Sampled(texts, self.draft, stop).law()
            after = counters(await texts.page("/metrics"))
            timed: list[Answer] = []
            if "speed" in parts:
                timing = Timing(
                    plan,
                    texts.journal,
                    texts.servers,
                    prompt=texts.prompt,
                    remark=texts.remark,
                    progress=texts.report,
                    answers=timed,
                )
                checked.levels, checked.ratios = await timing.run()
                if not texts.answers:  # no other texts: those that were timed tell of their drafts
                    after = counters(await texts.page("/metrics"))
            checked.answers = len(texts.answers or timed)
            checked.acceptance = of_answers(texts.answers or timed) or between(before, after)
            for name, server in texts.servers.items():
                for reason, count in server.client.failures.items():
                    texts.remark(f"{name}: {count} attempts failed ({reason}), tried again")
        checked.remarks, checked.seconds = texts.remarks, time.monotonic() - began
        return checked

    async def _modes(self, checked: Checked, greedy: Sequence[Answer]) -> str:
        """Run the modes that are asked for; return a string to stop sampled texts, or none."""
        modes, stop = Modes(self.texts), ""
        for part in self.texts.plan.modes:
            try:
                self._check_not_refused(part)
                if part == "json":
                    checked.json, compared = await json_answers(self.texts)
                    checked.modes |= {} if compared is None else {part: compared}
                elif part == "mixed":
                    checked.modes[part] = await modes.mixed(greedy)
                elif part == "stop":
                    checked.modes[part], stop = await modes.stop(greedy)
                else:
                    checked.modes[part] = await modes.cache()
            except* RefusedError as group:
                reason = str(error := first_of(group))
                if isinstance(error, RefusedError) and error.status:
                    reason = f"HTTP {error.status}: {error.reason}"
                    self.texts.journal.keep(f"{REFUSED}{part}", reason)
                checked.refused.append(part)
                self.texts.remark(f"{part}: refused ({reason})")
        if "stop" in checked.modes and not stop:
            self.texts.remark(
                "stop: the tokens of a stop string are not listed, so sampled texts have none"
            )
        return stop

    def _check_not_refused(self, part: str) -> None:
        """Raise the refusal that kept answers have in place of a mode's texts."""
        journal, key = self.texts.journal, f"{REFUSED}{part}"
        if journal.closed and key in journal:
            raise RefusedError(journal.read(key, str), 0, "")

    def _prompts(self, texts: Sequence[Answer]) -> list[list[int]]:
        """Return the ids of the prompts of greedy texts."""
        return [self.texts.prompt_ids(self.texts.prompt(i), text) for i, text in enumerate(texts)]

    def _describe(self, name: str) -> None:
        server = self.texts.servers[name]
        log.info(f"{name}: {server.name[:80]}, {server.model[:80]} ({server.client.address})")
        if not server.extras:
            self.texts.remark(
                f"{name}: refuses options beyond OpenAI's: cuts of its own would look like a bias"
            )
        if server.kind is Kind.OPENAI and server.extras:
            self.texts.remark(
                f"{name}: the engine is not known, so cuts of its own (top-k, top-p, penalties) "
                "are not turned off and would look like a bias"
            )

    async def _greedy(self, greedy: Sequence[Answer]) -> g.ServerGreedy:
        texts, weights = self.texts, self.texts.weights
        names = numbered(greedy)
        repeated = True
        if BASE in texts.servers:
            reference = "the baseline"
            others = await texts.greedy(BASE)
            again = await texts.greedy(BASE, "greedy again")
            repeated = all(a.text == b.text for a, b in zip(others, again, strict=True))
            comparisons = g.against_baseline(names, others, greedy)
            planted = g.third_is_a_bug(others[0].stated, others[0].keys)
        elif weights is not None:
            reference = "the weights"
            prompts = self._prompts(greedy)
            comparisons = g.against_weights(names, weights, prompts, greedy)
            ids = weights.tokens(greedy[0]) or []
            rows = g.rows_of(weights, prompts[0], ids) if ids else []
            planted = g.third_is_a_bug(rows, [f"#{i}" for i in ids])
        else:
            reference = "what the server itself states"
            comparisons = [
                g.against_itself(name, text) for name, text in zip(names, greedy, strict=True)
            ]
            planted = g.third_is_a_bug(greedy[0].stated, greedy[0].keys)
        return g.ServerGreedy(reference, comparisons, planted, repeated)


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
    return _kept(Journal(keep, plan, resume=resume), plan, weights, draft, watch)


def recomputed(
    journal: Journal, plan: Plan, weights: Weights | None = None, draft: Weights | None = None
) -> Checked:
    """Return the results of kept answers, without a server.

    Raises:
        DataError: an answer is missing.
    """
    return _kept(journal, plan, weights, draft, ignore)


def _kept(
    journal: Journal,
    plan: Plan,
    weights: Weights | None,
    draft: Weights | None,
    watch: Callable[[CheckProgress], None],
) -> Checked:
    try:
        checked = _run(Check(Texts(plan, journal, weights, watch), draft))
        journal.pack()
        return checked
    except (SpsError, KeyboardInterrupt) as error:
        if journal.path is not None and len(journal) and not journal.closed:
            kept = f"{len(journal)} answers are kept: continue with `resume` {journal.name}"
            if isinstance(error, KeyboardInterrupt):
                log.warning(kept)
            error.args = (f"{error}. {kept}",)
        raise
    finally:
        journal.close()


def _run(check: Check) -> Checked:
    progress = check.texts.progress
    try:
        return asyncio.run(check.run())
    except* Exception as group:
        error = first_of(group)
        if isinstance(error, UnavailableError) and progress.part != CONNECTING:
            error.args = (f"{progress.counted}: {error}",)
        raise error from None


def first_of(group: BaseExceptionGroup[Any]) -> BaseException:
    """Return the first error of nested exception groups."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
