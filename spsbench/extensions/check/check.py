"""One check of a running server: distribution, greedy texts, modes, acceptance, speed."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from spsbench.audit.statistical.finding import AuditVerdict
from spsbench.errors import DataError, SpsError, UnavailableError
from spsbench.extensions.check.adversary import Adversary
from spsbench.extensions.check.bets import SampledResult
from spsbench.extensions.check.greedy import (
    ServerGreedy,
    check_same_model,
    compare_best,
    compare_served,
    expect_by_weights,
    rounding_between,
)
from spsbench.extensions.check.journal import Journal
from spsbench.extensions.check.modes import check_modes
from spsbench.extensions.check.options import CheckOptions, read_check_options
from spsbench.extensions.check.sampled import UNDECIDED, Sampled
from spsbench.extensions.check.speed import LoadFigures, Ratios, time_servers
from spsbench.extensions.check.texts import (
    BASE,
    CONNECTING,
    MAY_DO_IT,
    OWN,
    CheckProgress,
    CheckTexts,
    why_unexercised,
)
from spsbench.extensions.check.weights import LocalModel, load_weights
from spsbench.hardware.signals import cancelling
from spsbench.messages import ignore
from spsbench.serving.acceptance import Acceptance
from spsbench.serving.address import check_address
from spsbench.serving.engines import GREEDY_SAFE, Answer, Kind
from spsbench.settings.options import parse
from spsbench.settings.processors import Processors

log = logging.getLogger(__name__)
OWN_CUTS = "cuts of its own (top-k, top-p, penalties) may be on and would look like a bias"


@dataclass(kw_only=True)
class Checked:
    """Results of a check."""

    url: str
    engine: str
    model: str
    plan: CheckOptions
    baseline: str | None = None  # engine and model of the baseline
    law: SampledResult | None = None
    greedy: ServerGreedy | None = None
    acceptance: Acceptance | None = None
    speed: list[LoadFigures] = field(default_factory=list)
    against_baseline: list[Ratios] = field(default_factory=list)
    modes: dict[str, ServerGreedy] = field(default_factory=dict)  # by part
    scenarios: dict[str, ServerGreedy | SampledResult] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)  # modes whose requests the server refuses
    answers: int = 0  # those in which the server may count drafts
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def verdict(self) -> AuditVerdict:
        """Return BIAS if any part found one, else HELD if all counted parts held, else UNKNOWN.

        The scenarios count alone where there are some; else all modes, and of sampled and greedy
        texts the first that there is. Refused modes, and sampled texts that could not be audited,
        rule out HELD. NOT_AUDITED: no part was on texts.
        """
        if self.scenarios:
            reached = {result.verdict for result in self.scenarios.values()}
            decided = AuditVerdict.HELD if reached == {AuditVerdict.HELD} else AuditVerdict.UNKNOWN
            return AuditVerdict.BIAS if AuditVerdict.BIAS in reached else decided
        of_modes = [mode.verdict for mode in self.modes.values()]
        of_texts = [part.verdict for part in (self.law, self.greedy) if part is not None]
        verdicts = [*of_modes, *of_texts]
        if AuditVerdict.BIAS in verdicts:
            return AuditVerdict.BIAS
        untold = self.refused or ("law" in self.plan.parts and self.law is None)
        if not untold and not verdicts:
            return AuditVerdict.NOT_AUDITED
        all_held = not untold and {*of_modes, *of_texts[:1]} == {AuditVerdict.HELD}
        return AuditVerdict.HELD if all_held else AuditVerdict.UNKNOWN


async def check_texts(texts: CheckTexts, draft: LocalModel | None = None) -> Checked:
    """Connect to the servers, run the requested parts in order, and return their results.

    Answers are kept in the journal on arrival, and remarks become notes. An adversary's scenarios
    replace all other parts. Of servers without greedy texts `law` alone is audited, and other parts
    are `refused`. `draft`, the server's, adds a bet on sampled texts. Errors may come in groups.
    """
    began = time.monotonic()
    plan, parts = texts.plan, set(texts.plan.parts)
    async with AsyncExitStack() as stack:
        await texts.connect(stack)
        audited, base = texts.servers[OWN], texts.servers.get(BASE)
        for name, server in texts.servers.items():
            log.info(f"{name}: {server.name[:80]}, {server.model[:80]} ({server.client.address})")
            if server.kind is Kind.OPENAI:
                texts.remark(f"{name}: the engine is not known, so {OWN_CUTS}")
            if server.refused:
                may = f", and may have {', '.join(server.uncertain)} on" if server.uncertain else ""
                texts.remark(f"{name}: it refuses {', '.join(server.refused)}{may}")
        checked = Checked(
            url=audited.client.address, engine=audited.name, model=audited.model, plan=plan
        )
        checked.baseline = f"{base.name}, {base.model}" if base else None
        before = await texts.counters()
        if reason := audited.no_greedy or (base and base.no_greedy):
            parts, checked.refused = parts & {"law"}, sorted(parts - {"law"})
            texts.remark(f"no greedy texts, so only sampled ones are audited: {reason}")
        if plan.adversary:
            checked.scenarios, parts = await Adversary(texts).run(draft), set()
        scores = texts.weights and not checked.refused and parts != {"logprobs"}
        needs_greedy = {"greedy", "mixed"} & parts or scores
        greedy = await texts.greedy(OWN) if needs_greedy else []
        scored = score_greedy(texts, greedy)
        if "greedy" in parts:
            if plan.processors.changed:
                checked.greedy = await compare_processed(texts, scored)
            else:
                checked.greedy = await compare_greedy(texts, greedy, scored)
        checked.modes, refused = await check_modes(texts, greedy, parts)
        checked.refused += refused
        answers = list(texts.answers)
        drafts = await texts.drafts("greedy", before, answers)
        if "law" in parts:
            checked.law = await Sampled(texts, draft).audit()
        for result in filter(None, (checked.greedy, *checked.modes.values())):
            result.doubts = doubts_of(checked, texts, answers, drafts)
        answers = list(texts.answers)
        checked.acceptance = await texts.drafts("all", before, answers)
        if "speed" in parts:
            checked.speed, checked.against_baseline = await time_servers(texts)
            if not answers:  # no other texts: those that were timed tell of their drafts
                answers = texts.answers
                checked.acceptance = await texts.drafts("speed", before, answers)
        checked.answers = len(answers)
        for name, server in texts.servers.items():
            for reason, count in server.client.failures.items():
                texts.remark(f"{name}: {count} attempts failed ({reason}), tried again")
    checked.notes, checked.seconds = texts.remarks, time.monotonic() - began
    return checked


def doubts_of(
    checked: Checked, texts: CheckTexts, answers: Sequence[Answer], drafts: Acceptance | None
) -> dict[AuditVerdict, str]:
    """Return verdict -> why it does not stand, for the verdicts on greedy texts that are in doubt.

    HELD is in doubt if by `drafts` (None: unknown) it is unknown that a token of `answers` (all of
    greedy texts and modes) was drafted, or nothing may be stated of all that were. BIAS is in doubt
    if samplers that the server does not switch off may change greedy text, or if its texts are
    compared with what it states, and `checked` left out sampled texts that did not balance.
    """
    doubts = {}
    by_itself = BASE not in texts.servers and texts.weights is None
    rows = [row for text in answers for row in text.stated] if by_itself else []
    tokens = sum(text.tokens for text in answers)
    if why := why_unexercised(drafts, tokens, sum(not row for row in rows)):
        doubts[AuditVerdict.HELD] = why
    if uncertain := {*texts.servers[OWN].uncertain} - GREEDY_SAFE:
        doubts[AuditVerdict.BIAS] = MAY_DO_IT.format(", ".join(sorted(uncertain)))
    if by_itself and checked.law and (left_out := checked.law.left_out):
        doubts[AuditVerdict.BIAS] = f"of sampled texts it {left_out.most_common(1)[0][0]}"
    return doubts


def score_greedy(texts: CheckTexts, greedy: Sequence[Answer]) -> list[tuple[Answer | None, Answer]]:
    """Return for each greedy text what the weights expect of it, and the text by ids.

    What is expected is None of a text without tokens. Without weights or texts the list is empty,
    else the median distance of logarithms is logged. DataError: another model's weights.
    """
    if texts.weights is None or not greedy:
        return []
    prompts = [texts.prompt_ids(texts.prompt(i), text) for i, text in enumerate(greedy)]
    pairs = zip(prompts, greedy, strict=True)
    scored = [expect_by_weights(texts.weights, *pair) for pair in pairs]
    apart = check_same_model(texts.weights, scored)
    log.info(f"weights are the server's: {apart:.2g} nats apart on the median")
    return scored


async def compare_greedy(
    texts: CheckTexts, greedy: Sequence[Answer], scored: Sequence[tuple[Answer | None, Answer]]
) -> ServerGreedy:
    """Compare greedy texts with the baseline's, asked twice, else as `scored`, else as stated.

    `scored` is what `score_greedy` returned; whether the baseline repeats its texts is a control.
    """
    if BASE in texts.servers:
        bases = await texts.greedy(BASE)
        again = await texts.greedy(BASE, "greedy again")
        result = compare_best(greedy, bases)
        result.repeated = [text.text for text in bases] == [text.text for text in again]
        return result
    if scored:
        bases_by_weights, by_id = zip(*scored, strict=True)
        return compare_served("the weights", bases_by_weights, by_id)
    return compare_best(greedy, None)


async def compare_processed(
    texts: CheckTexts, plain: Sequence[tuple[Answer | None, Answer]]
) -> ServerGreedy | None:
    """Ask for greedy texts under the processors, compare them with the weights, and remark a cause.

    A cause is the lack of all processors, or a repetition penalty of another scope, under which the
    weights would give these texts. `plain` is what `score_greedy` returned of texts without
    processors, which tell the rounding. Without weights the result is None, with a remark: what a
    server states is the distribution before processors on some engines.
    """
    weights = texts.weights
    if weights is None or weights.processors is None:
        texts.remark(UNDECIDED)
        return None
    by, answers = weights.processors, await texts.greedy(OWN, "greedy processed", processed=True)
    tolerance = rounding_between([(base, text) for base, text in plain if base])
    tolerance *= max(by.repetition, 1 / by.repetition)
    prompts = [texts.prompt_ids(texts.prompt(i), text) for i, text in enumerate(answers)]

    def compared(processors: Processors | None) -> ServerGreedy:
        under = weights.under(processors)
        scored = [expect_by_weights(under, *pair) for pair in zip(prompts, answers, strict=True)]
        bases, by_id = zip(*scored, strict=True)
        return compare_served("the weights", bases, by_id, tolerance=tolerance)

    result = compared(by)
    others: dict[str, Processors | None] = {"without any of them": None}
    if by.repetition != 1:
        scope = "prompt and answer" if by.of_answer else "the answer alone"
        others[f"with a repetition penalty of {scope}"] = replace(by, of_answer=not by.of_answer)
    for words, other in others.items() if result.verdict is AuditVerdict.BIAS else ():
        if compared(other).verdict is AuditVerdict.HELD:
            texts.remark(f"{OWN}: under penalties its greedy texts are those {words}")
    return result


def run_check(
    url: str | None,
    options: Mapping[str, Any],
    keep: Path | None = None,
    *,
    load: Callable[..., LocalModel] = load_weights,
    watch: Callable[[CheckProgress], None] = ignore,
) -> Checked:
    """Check the server at `url`, or compute the results of kept answers anew; return all results.

    Args:
        url: None: no server is asked, and the option `resume` names a file of answers.
        options: values of `CheckOptions` by name; None counts as not given.
        keep: file for the answers where the options name none; None: they are not kept.
        load: loads weights by name. `watch` receives the progress whenever it changes.

    SpsError: invalid options or kept answers, failed servers. DataError: unlike vocabularies.
    """
    options = {name: value for name, value in options.items() if value is not None}
    if url is None:
        journal = Journal(Path(options["resume"]), resume=True, asks=False)
        plan = read_check_options(journal.path, journal.plan, options)
        load = partial(load, offline=True)
    else:
        (plan,) = parse(options, CheckOptions)
        plan = replace(plan, url=check_address(url))
        journal = Journal(plan.resume or plan.keep or keep, resume=plan.resume is not None)
    by_name = plan.processors.changed | ({"adapter": plan.adapter} if plan.adapter else {})
    weights = load(plan.weights, **by_name) if plan.weights else None
    draft = load(plan.draft) if plan.draft else None
    if weights and draft and draft.texts[: len(weights.texts)] != weights.texts[: len(draft.texts)]:
        raise DataError(
            f"a draft with other tokens than the weights ({draft.name}, {weights.name}): expected "
            "one vocabulary. Leave `draft` out"
        )
    return examine_server(plan, weights, journal, draft=draft, watch=watch)


def examine_server(
    plan: CheckOptions,
    weights: LocalModel | None = None,
    journal: Journal | None = None,
    *,
    draft: LocalModel | None = None,
    watch: Callable[[CheckProgress], None] = ignore,
) -> Checked:
    """Check a server and return all results; the journal's answers are not requested again.

    The journal (None: nothing is kept) is begun with `plan`, and closed in any case. The first
    error of a check is raised; it says in which part a server became unavailable, and how many
    answers are kept. An interrupt, which cancels all requests, logs that as well.
    """
    journal = Journal(None) if journal is None else journal
    journal.begin(plan)
    texts = CheckTexts(plan, journal, weights, watch)
    try:
        try:
            with cancelling():
                return asyncio.run(check_texts(texts, draft))
        except* Exception as group:
            error: BaseException = group
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            if isinstance(error, UnavailableError) and texts.progress.part != CONNECTING:
                error.args = (f"{texts.progress.counted}: {error}",)
            raise error from None
    except (SpsError, KeyboardInterrupt) as error:
        if journal.path is not None and len(journal) and journal.asks:
            kept = f"{len(journal)} answers are kept: continue with `resume` {journal.path}"
            if isinstance(error, KeyboardInterrupt):
                log.warning(kept)
            error.args = (f"{error}. {kept}",)
        raise
    finally:
        journal.close()
