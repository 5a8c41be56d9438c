"""One check of a running server: distribution, greedy texts, modes, acceptance, speed.

`examine` runs in this order: the engine and its capabilities, greedy texts, the modes that are
asked for, sampled texts until a bias is found or the requested sensitivity is reached, timed
blocks. Each answer is appended to a file on arrival, and the check resumes from that file after an
interruption, or computes the results of the file alone.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from spsbench.audit.statistical.finding import AuditVerdict
from spsbench.errors import DataError, SpsError, UnavailableError
from spsbench.extensions.check import greedy as g
from spsbench.extensions.check.journal import REFUSED, Journal
from spsbench.extensions.check.laws import LawResult
from spsbench.extensions.check.library import load_weights
from spsbench.extensions.check.modes import Modes, numbered
from spsbench.extensions.check.options import OF_CHECK, CheckOptions
from spsbench.extensions.check.sampled import Sampled
from spsbench.extensions.check.speed import Level, Ratios
from spsbench.extensions.check.texts import BASE, CONNECTING, OWN, CheckProgress, Texts
from spsbench.extensions.check.timing import Timing
from spsbench.extensions.check.weights import Weights
from spsbench.messages import ignore
from spsbench.serving.acceptance import Acceptance, between, counters, of_answers
from spsbench.serving.address import checked as checked_address
from spsbench.serving.engines import Answer, Kind
from spsbench.serving.http import RefusedError
from spsbench.settings.options import convert_options

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Checked:
    """Results of a check."""

    url: str
    engine: str
    model: str
    plan: CheckOptions
    baseline: str | None = None  # engine and model of the baseline
    law: LawResult | None = None
    greedy: g.ServerGreedy | None = None
    acceptance: Acceptance | None = None
    levels: list[Level] = field(default_factory=list)
    ratios: list[Ratios] = field(default_factory=list)
    json: str | None = None  # the share of JSON in the answers under schemas
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
            first = {"greedy", "mixed", "stop"} & set(parts) or texts.weights
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
            timing = Timing(texts)
            if "speed" in parts:
                checked.levels, checked.ratios = await timing.run()
                if not texts.answers:  # no other texts: those that were timed tell of their drafts
                    after = counters(await texts.page("/metrics"))
            checked.answers = len(texts.answers or timing.answers)
            checked.acceptance = of_answers(texts.answers or timing.answers) or between(
                before, after
            )
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
                    checked.json, compared = await modes.json()
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
        if not journal.asks and key in journal:
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


def run_check(
    url: str | None,
    given: Mapping[str, Any],
    keep: Path | None = None,
    *,
    load: Callable[..., Weights] = load_weights,
    watch: Callable[[CheckProgress], None] = ignore,
) -> Checked:
    """Check a server, or compute the results of kept answers anew, and return all results.

    Args:
        url: of the server; None: no server is asked, and `resume` names a file of answers.
        given: options by name.
        keep: file for the answers where the options name none.
        load: loads weights by name.
        watch: called with the progress.

    Raises:
        SpsError: no server, a wrong model, other weights, an option or a file that cannot be used.
    """
    given = {name: value for name, value in given.items() if value is not None}
    if url is None:
        journal = Journal(Path(given["resume"]), resume=True, asks=False)
        plan = journal.options(given)
        load = partial(load, offline=True)
    else:
        plan = CheckOptions(url=checked_address(url), **convert_options(OF_CHECK, given))
        journal = Journal(plan.resume or plan.keep or keep, resume=plan.resume is not None)
    weights = load(plan.weights) if plan.weights else None
    draft = load(plan.draft) if plan.draft else None
    if weights and draft and draft.texts[: len(weights.texts)] != weights.texts[: len(draft.texts)]:
        raise DataError(
            f"a draft with other tokens than the weights ({draft.name}, {weights.name}): expected "
            "one vocabulary. Leave `draft` out"
        )
    return examine(plan, weights, journal, draft=draft, watch=watch)


def examine(
    plan: CheckOptions,
    weights: Weights | None = None,
    journal: Journal | None = None,
    *,
    draft: Weights | None = None,
    watch: Callable[[CheckProgress], None] = ignore,
) -> Checked:
    """Check a server and return all results.

    Args:
        plan: the options, with the server's address.
        weights: the model that the server should run, to rescore its tokens.
        journal: keeps the answers; those that it has are not requested again.
        draft: the model that drafts there, to bet on the tokens that it prefers.
        watch: called with the progress.

    Raises:
        SpsError: no server, a wrong model, other weights, or a server that stopped.
    """
    journal = Journal(None) if journal is None else journal
    journal.begin(plan)
    try:
        checked = _run(Check(Texts(plan, journal, weights, watch), draft))
        journal.pack()
        return checked
    except (SpsError, KeyboardInterrupt) as error:
        if journal.path is not None and len(journal) and journal.asks:
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
