"""The distribution of sampled texts: batches of texts until `bets` finds or excludes a bias."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any

import msgspec
import numpy as np

from spsbench.audit.statistical.finding import AuditVerdict, AuditWithBaseline, Finding
from spsbench.extensions.check.bets import Band, Mode, SampledResult, ServerAudit, band_between
from spsbench.extensions.check.columns import Columns, TopLists, as_columns
from spsbench.extensions.check.modes import long_prompt
from spsbench.extensions.check.texts import BASE, MAY_DO_IT, OWN, CheckTexts, why_unexercised
from spsbench.extensions.check.weights import Cut, LocalModel
from spsbench.serving.acceptance import Acceptance
from spsbench.serving.engines import Answer, Kind, Stated

log = logging.getLogger(__name__)

BATCH = 16  # texts between two evaluations of the e-value
ROUNDING = 8  # texts of the baseline for the measurement of rounding
FIRSTS = 48  # or first tokens of the server
DOCUMENTED = (Kind.VLLM, Kind.SGLANG, Kind.LLAMA_SERVER)  # what their rows hold, but for chats
UNDECIDED = (
    "under penalties, biases or bans a server's distribution cannot be decided by what it states, "
    "which is that before them on some engines. Name the model with `weights`"
)


class Sampled:
    """Sampled texts of a check and their audit."""

    def __init__(self, texts: CheckTexts, draft: LocalModel | None = None) -> None:
        self.texts, self.plan, self.draft = texts, texts.plan, draft
        self.weights, self.servers = texts.weights, texts.servers
        self._long = "cache" in self.plan.parts
        self._lists = {
            name: TopLists(server.top, documented=server.kind in DOCUMENTED and not self.plan.chat)
            for name, server in self.servers.items()
        }
        self._answers: list[Answer] = []  # the server's answers, audited or left out
        self.part = "law"
        self.kind = "sampled long" if self._long else "sampled"
        if f"{OWN}/{self.kind} stopped/0" in texts.journal:  # texts that a stop string ended
            self.kind += " stopped"

    def mode(self) -> Mode | None:
        """Return the strongest mode that the servers support; None: no distribution is known.

        WEIGHTS needs weights, and vLLM or a server with ids or log-probabilities. BASELINE needs
        ids, a baseline that scores them, and no chats; STATED needs ids and log-probabilities.
        """
        server, base = self.servers[OWN], self.servers.get(BASE)
        if self.weights is not None and (
            server.gives_ids or server.top or server.kind is Kind.VLLM
        ):
            return Mode.WEIGHTS
        if base is not None and base.rescores and server.gives_ids and not self.plan.chat:
            return Mode.BASELINE
        return Mode.STATED if server.top and server.gives_ids else None

    async def audit(self) -> SampledResult | None:
        """Ask for texts in batches and audit them until a bias is found or excluded.

        It also ends with `max_tokens`, with kept answers where no server is asked, and where an
        audit is broken, nothing is bet on or most tokens are unstated. The baseline writes half as
        many texts. Batches update the progress. None, with a remark: no distribution is known.
        """
        mode = self.mode()
        if self.plan.processors.changed and mode is not Mode.WEIGHTS:
            self.texts.remark(UNDECIDED)
            return None
        if mode is None:
            self.texts.remark(
                "the server gives no logprobs, or no ids: its distribution cannot be decided. Name "
                "the model with `weights`, for which either is enough (llama-cpp-python: "
                "--logits_all true), or take an engine that gives both"
            )
            return None
        before = await self.texts.counters()
        band = await self._rounding(mode)
        first = self.servers[OWN].kind in (Kind.LLAMA_SERVER, Kind.LLAMA_CPP_PYTHON)
        cut = Cut(self.plan.top_k, self.plan.top_p, first, band.other)
        rounding = Band(band.argmax + cut.moved, band.other + cut.moved, band.tokens)
        audits = {
            name: self._server_audit(name, rounding, self._may_hide(name, mode))
            for name, server in self.servers.items()
            if server.top or mode is Mode.WEIGHTS
        }
        audit = self._paired(audits)
        size, batch = max(BATCH, self.plan.batch), range(0)
        while True:
            batch = range(batch.stop, batch.stop + size)
            for name, server in list(audits.items()):
                if name == BASE and (batch.start // size) % 2:  # half as many texts
                    continue
                texts = await self._sample(name, batch, mode)
                ended = mode is not Mode.WEIGHTS and any(t.finish == "stop" for _, t in texts)
                is_llama = self.servers[name].kind is Kind.LLAMA_SERVER
                # Begin anew: up to then the capital, taken as 0 from that token on, was a
                # nonnegative supermartingale, so both alarm with 2 `level` at most.
                if ended and not (is_llama or server.hides):
                    server = audits[name] = self._server_audit(name, rounding, hides=True)
                    audit = self._paired(audits)
                texts = self._balanced(server, texts, mode)
                scored = await self._scored(name, texts, mode, cut)
                if name == OWN:
                    bets = any(text.mass.any() for text in scored)
                for text in scored:
                    server.take_text(text)
                if ended and is_llama:
                    server.hides = False  # for the texts to come
            server = audits[OWN]
            note = f"{server.tokens} tokens, e-value 10^{server.peak / np.log(10):.1f}"
            self.texts.progress.note = note
            log.info(note)
            waits = mode is Mode.STATED and self._lists[OWN].waits
            full = server.tokens + server.unseen >= self.plan.max_tokens or not (bets or waits)
            full |= server.tokens < server.texts or server.unstated > server.tokens / 2
            broken = any(of_server.broken for of_server in audits.values())
            if full or broken or self._is_last(batch.stop, size) or audit.decided:
                self.texts.progress.note = ""
                drafts = await self.texts.drafts(self.part, before, self._answers)
                finding = self._doubted(audit.finding(), server, drafts)
                return SampledResult(mode, rounding, finding)

    def _balanced(
        self, audit: ServerAudit, texts: Sequence[tuple[int, Answer]], mode: Mode
    ) -> list[tuple[int, Answer]]:
        """Return the texts that balance; `audit` counts others, and is broken if none ever did.

        They have as many tokens as the server counts; STATED ones also lists that agree with them.
        """
        balanced = []
        for number, text in texts:
            reason = text.miscount(self.plan.max_new_tokens)
            if mode is Mode.STATED and not reason:
                reason = text.misstatement() or ("" if text.keys else "states no log-probabilities")
            if reason:
                audit.leave_out(reason, text.tokens)
            else:
                balanced.append((number, text))
        if not balanced and not audit.tokens:
            audit.broken.append(audit.unaudited)
        return balanced

    def _doubted(self, finding: Finding, audit: ServerAudit, drafts: Acceptance | None) -> Finding:
        """Return `finding` with what speaks against it in its line, and UNKNOWN where that decides.

        A BIAS is UNKNOWN if samplers that stay on may be its cause, unless plain texts share it.
        All else is UNKNOWN if `drafts` (None: unknown) tell of none that `audit` surely saw; HELD
        also if fewer were drafted than such a bias takes. Texts left out are told.
        """
        uncertain = ", ".join(self.servers[OWN].uncertain)
        line, verdict = finding.line, finding.verdict
        why = why_unexercised(drafts, audit.tokens, audit.unstated)
        if verdict is AuditVerdict.BIAS and uncertain and not finding.shared:
            verdict, line = AuditVerdict.UNKNOWN, f"{MAY_DO_IT.format(uncertain)}: {line}"
        elif verdict is not AuditVerdict.BIAS and why:
            line = f"{line}; {why}" if verdict is AuditVerdict.HELD else why
            verdict = AuditVerdict.UNKNOWN
        elif verdict is AuditVerdict.HELD and drafts:
            line = f"{line} in {audit.tokens:,} tokens; {drafts.accepted:,.0f} of them were drafted"
            if drafts.accepted + drafts.rounds < (finding.claim or 1) * audit.tokens:
                verdict = AuditVerdict.UNKNOWN
                line += ", too few for such a bias to be theirs"
        if audit.left_out and audit.tokens:
            line += f"; {audit.unaudited}"
        return replace(finding, verdict=verdict, line=line)

    def _server_audit(self, name: str, rounding: Band, hides: bool) -> ServerAudit:
        return ServerAudit(name, rounding, self.plan.level, draft=bool(self.draft), hides=hides)

    def _paired(self, audits: Mapping[str, ServerAudit]) -> AuditWithBaseline:
        return AuditWithBaseline(
            audits[OWN], audits.get(BASE), self.plan.bias, AuditVerdict.UNKNOWN
        )

    def _may_hide(self, name: str, mode: Mode) -> bool:
        """Return whether server `name` may hide tokens, such as those that end a text.

        False for weights, which score the end too, and for vLLM and SGLang that take `ignore_eos`,
        which emit it; else True. llama-server lists it, but may mask it until a text ends.
        """
        server = self.servers[name]
        emits_ends = server.kind in (Kind.VLLM, Kind.SGLANG) and "ignore_eos" not in server.refused
        return mode is not Mode.WEIGHTS and not emits_ends

    def _is_last(self, start: int, size: int) -> bool:
        """Return whether kept answers are all there is, and end before `size` from `start` on."""
        journal, batch = self.texts.journal, range(start, start + size)
        keys = [f"{name}/{self.kind}/{i}" for name in self.servers for i in batch]
        return not journal.asks and not all(key in journal for key in keys)

    def _prompt(self, index: int) -> str:
        return long_prompt(self.plan.texts, index) if self._long else self.texts.prompt(index)

    def _temperature(self, index: int) -> float:
        return self.plan.temperatures[index % len(self.plan.temperatures)]

    async def _sample(self, name: str, batch: range, mode: Mode) -> list[tuple[int, Answer]]:
        """Ask for a batch; return (number, text) at audited temperatures. OWN's join `_answers`."""
        ids_alone = mode is Mode.WEIGHTS and self.servers[name].ids_alone  # ids say all
        asks = []
        for i in batch:
            ask = self.texts.ask(name, i, self._temperature(i), self._prompt(i))
            ask = replace(self.texts.processed(ask), warp=self.plan.cut)
            asks.append((f"{self.kind}/{i}", replace(ask, top=0) if ids_alone else ask))
        answers = await self.texts.answers_to(name, asks)
        # A text that a stop string ended has no end of its own.
        texts = [replace(t, finish="length") if t.stopped_by else t for t in answers]
        self._answers += answers if name == OWN else []
        numbered = zip(batch, texts, strict=True)
        return [(i, text) for i, text in numbered if self.plan.audits(self._temperature(i))]

    async def _scored(
        self, name: str, texts: Sequence[tuple[int, Answer]], mode: Mode, cut: Cut
    ) -> list[Columns]:
        """Return each text's columns by mode: of weights under `cut`, the baseline, or `name`."""
        weights = self.weights
        if mode is Mode.STATED:
            lists = self._lists[name]
            return [
                lists.columns(text.stated, text.keys, text.own, self._prompt(i))
                for i, text in texts
            ]

        async def score(index: int, text: Answer) -> Any:
            if weights is None:
                return await self._rescored(f"rescored/{name}/{index}", text)
            by, prompt = weights.processors, self.texts.prompt_ids(self._prompt(index), text)
            draft = self.draft and self.draft.under(by)
            return weights.under(by).columns(prompt, text, self._temperature(index), draft, cut)

        rows = await self.texts.wait_for([partial(score, *text) for text in texts])
        by_id = [[f"#{i}" for i in text.ids or ()] for _, text in texts]
        return rows if weights else list(map(self._lists[BASE].columns, rows, by_id))

    async def _rescored(self, key: str, text: Answer) -> list[Stated]:
        """Return what the baseline states at a text's tokens: kept under `key`, or asked for."""
        base, ids = self.servers[BASE], text.ids or ()
        rescore = partial(base.rescore, text.prompt_ids or (), ids)
        read = partial(msgspec.convert, type=list[list[tuple[str, float]]])
        return await self.texts.journal.get(f"{BASE}/{key}", read, rescore)

    async def _rounding(self, mode: Mode) -> Band:
        """Return the band of two statements of the same distributions, where no draft takes part.

        They are on texts that the baseline writes for this, else on first tokens of the server,
        with a remark. STATED: half the last digit printed. If nothing is stated the band is 0.
        """
        name = BASE if BASE in self.servers else OWN
        if mode is Mode.STATED:
            return Band.of_printed(max(server.digit for server in self.servers.values()))
        if not self.servers[name].top:
            return Band()
        if name == BASE:
            prompts = [self.texts.prompt(i) for i in range(ROUNDING)]
            asks = [self.texts.ask(BASE, i, 1.0) for i in range(ROUNDING)]
        else:
            starts = chain.from_iterable(map(shorter_prompts, self.plan.texts))
            prompts = list(islice(starts, FIRSTS))
            asks = [replace(self.texts.ask(OWN, 0, 1.0, start), tokens=1) for start in prompts]
        keyed = [(f"rounding/{i}", ask) for i, ask in enumerate(asks)]
        answers = await self.texts.answers_to(name, keyed)
        pairs = []
        for i, (prompt, text) in enumerate(zip(prompts, answers, strict=True)):
            if self.weights is None:
                rows = await self._rescored(f"rescored/rounding/{i}", text)
                pairs.append((as_columns(text.stated, text.keys), as_columns(rows, text.keys)))
            else:
                scored = self.weights.columns(self.texts.prompt_ids(prompt, text), text, 1.0)
                pairs.append((self.weights.restated(text.stated, len(scored)), scored))
        band = band_between(pairs)
        if name == OWN and band.tokens:
            self.texts.remark(
                f"rounding ({band.argmax:.2g} of the likeliest token's chance) is measured on "
                f"{band.tokens} first tokens of the server, for there is no `baseline`"
            )
        return band


def shorter_prompts(prompt: str) -> list[str]:
    """Return a prompt and two shorter ones, cut between words."""
    words = prompt.split(" ")
    return [" ".join(words[: max(1, len(words) * part // 3)]) for part in (3, 2, 1)]
