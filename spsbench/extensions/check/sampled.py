"""The law of sampled texts: batches of texts until a bias is found or excluded.

`laws` judges. The distributions come from the weights, the baseline or the server (`Mode`); what
rounding may explain is measured first, on texts in which no draft takes part.
"""

import logging
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from spsbench.audit.statistical.finding import Audit, AuditVerdict
from spsbench.extensions.check.columns import Columns, columns
from spsbench.extensions.check.cuts import Cut
from spsbench.extensions.check.laws import (
    Band,
    LawResult,
    Mode,
    ServerArm,
    band_between,
    law_result,
)
from spsbench.extensions.check.modes import Modes, unended
from spsbench.extensions.check.texts import BASE, OWN, Texts
from spsbench.extensions.check.weights import Weights
from spsbench.serving.engines import Answer, Kind, Stated

log = logging.getLogger(__name__)

BATCH = 16  # texts between two evaluations of the e-value
ROUNDING = 8  # texts of the baseline for the measurement of rounding
FIRSTS = 48  # or first tokens of the server
INCOMPLETE = "it lists fewer tokens than it counts (none that leaves a character incomplete)"
MORE = 1.15  # growth of the sample before the simulated claim is recomputed


class Sampled:
    """Sampled texts of a check and their audit."""

    def __init__(self, texts: Texts, draft: Weights | None = None, stop: str = "") -> None:
        self.texts, self.plan, self.draft, self.stop = texts, texts.plan, draft, stop
        self.weights, self.servers = texts.weights, texts.servers
        self.modes = Modes(texts)
        self._cut = Cut()
        long, stopped = "cache" in self.plan.parts, " stopped" if stop else ""
        self.kind = f"sampled{' long' if long else ''}{stopped}"
        self._long = long

    def mode(self) -> Mode | None:
        """Return the strongest mode that the servers support."""
        server, base = self.servers[OWN], self.servers.get(BASE)
        if self.weights is not None and (
            server.gives_ids or server.top or server.kind is Kind.VLLM
        ):
            return Mode.WEIGHTS
        if base is not None and base.rescores and server.gives_ids and not self.plan.chat:
            return Mode.BASELINE
        return Mode.STATED if server.top and server.gives_ids else None

    async def law(self) -> LawResult | None:
        """Audit sampled texts; None if their law cannot be told."""
        mode = self.mode()
        if mode is None:
            server = self.servers[OWN]
            lacking = [] if server.top else ["no logprobs"]
            lacking += [] if server.gives_ids else ["no ids"]
            self.texts.remark(
                f"the server gives {' and '.join(lacking)}: its distribution cannot be told. Name "
                "the model with `weights`, for which logprobs or ids are needed (llama-cpp-python: "
                "--logits_all true), or take an engine that gives both"
            )
            return None
        band = await self._rounding(mode)
        self._cut = self._cut_of(band)
        band = band.widened(self._cut.moved) if self._cut else band
        size = max(BATCH, self.plan.batch)
        scored: dict[str, list[Columns]] = {name: [] for name in self.servers}
        hiding: set[str] = set()  # servers with a token that they do not list
        arms: dict[str, ServerArm] = {}
        at, looked = 0, 0
        while True:
            for name in self.servers:
                scorable = self.servers[name].top or mode is Mode.WEIGHTS
                if name == BASE and ((at // size) % 2 or not scorable):  # half as many texts
                    continue
                batch = range(at, at + size)
                sent = await self._asked(name, batch, mode)
                audited = [i for i in batch if self.plan.audits(self._temperature(i))]
                texts = [self._unended(sent[i - at]) for i in audited]
                if mode is Mode.STATED:
                    top = self.servers[name].top
                    batch_columns = [columns(text.stated, text.keys, top) for text in texts]
                else:
                    pairs = zip(audited, texts, strict=True)
                    jobs = [partial(self._rescored, mode, name, *pair) for pair in pairs]
                    batch_columns = await self.texts.wait_for(jobs)
                is_llama = self.servers[name].kind is Kind.LLAMA_SERVER
                for row, text in zip(batch_columns, texts, strict=True):
                    lacks = is_llama and text.count not in (None, len(text.ids or ()))
                    scored[name].append(replace(row, flaw=INCOMPLETE) if lacks else row)
                ended = any(text.finish == "stop" for text in texts)
                if ended and not (is_llama or mode is Mode.WEIGHTS):
                    hiding.add(name)  # vLLM or SGLang, in spite of `ignore_eos`
                if name not in arms or (name in hiding and not arms[name].visible.hides):
                    hides, draft = name in hiding or self._may_hide(name, mode), self.plan.draft
                    arms[name] = ServerArm(
                        name, band, self.plan.level, draft=bool(draft), hides=hides
                    )
                for columns_of_text in scored[name][arms[name].texts :]:
                    arms[name].take_text(columns_of_text)
                if ended and name not in hiding:
                    arms[name].visible.hides = False  # for the texts to come
            at += size
            arm, base = arms[OWN], arms.get(BASE)
            self.texts.progress.note = (
                f"{arm.tokens} tokens, e-value 10^{arm.peak / np.log(10):.1f}"
            )
            log.info(self.texts.progress.note)
            audit = Audit(arm, base, self.plan.bias, AuditVerdict.UNKNOWN)
            full = arm.tokens >= self.plan.max_tokens
            full |= arm.tokens < len(scored[OWN])  # hardly any new tokens
            full |= not any(text.mass.any() for text in scored[OWN][-size:])  # nothing to bet on
            full |= any(of_server.broken for of_server in arms.values())
            full |= self._is_last(range(at, at + size))
            if not (audit.alarmed or full) and arm.tokens < MORE * looked:
                continue
            looked = arm.tokens
            if full or audit.decided:
                self.texts.progress.note = ""
                return law_result(mode, audit, arm.rounding)

    def _may_hide(self, name: str, mode: Mode) -> bool:
        """Return whether a server may hide tokens, such as those that end a text.

        Weights score the end too. vLLM and SGLang emit it where `ignore_eos` is taken. llama-server
        lists it, but may mask it until a text ends; then no token is taken to be masked. If vLLM or
        SGLang end a text all the same, the test begins anew: up to then the capital, taken as 0
        from that token on, was a nonnegative supermartingale, so both alarm with 2 `level` at most.
        """
        server = self.servers[name]
        emits_ends = server.kind in (Kind.VLLM, Kind.SGLANG) and server.extras
        return mode is not Mode.WEIGHTS and not emits_ends

    def _is_last(self, batch: range) -> bool:
        """Return whether kept answers, which are all that there is, end before a batch."""
        journal = self.texts.journal
        keys = [f"{name}/{self.kind}/{i}" for name in self.servers for i in batch]
        return not journal.asks and not all(key in journal for key in keys)

    def _prompt(self, index: int) -> str:
        return self.modes.long(index) if self._long else self.texts.prompt(index)

    def _temperature(self, index: int) -> float:
        return self.plan.temperatures[index % len(self.plan.temperatures)]

    async def _asked(self, name: str, at: range, mode: Mode) -> list[Answer]:
        asks = [self.texts.ask(name, i, self._temperature(i), self._prompt(i)) for i in at]
        stops = (self.stop,) if self.stop else ()
        asks = [replace(ask, warp=self.plan.cut, stop=stops) for ask in asks]
        if mode is Mode.WEIGHTS and self.servers[name].ids_alone:  # ids say all
            asks = [replace(ask, top=0) for ask in asks]
        keyed = [(f"{self.kind}/{i}", ask) for i, ask in zip(at, asks, strict=True)]
        return await self.texts.asked(name, keyed)

    def _unended(self, text: Answer) -> Answer:
        if not self.stop:
            return text
        ids = (self.weights.tokens(text) or []) if self.weights else []
        decoded = "".join(self.weights.texts[i] or "" for i in ids) if self.weights else ""
        return unended(self.stop, text, decoded)

    async def _rescored(self, mode: Mode, name: str, index: int, text: Answer) -> Columns:
        """Return the columns of a text by the weights, or by the baseline."""
        if mode is Mode.WEIGHTS and self.weights is not None:
            prompt = self.texts.prompt_ids(self._prompt(index), text)
            temperature = self._temperature(index)
            return self.weights.columns(prompt, text, temperature, self.draft, self._cut)
        rows = await self._rows(f"rescored/{name}/{index}", text)
        return columns(rows, [f"#{i}" for i in text.ids or ()], self.servers[BASE].top)

    async def _rows(self, key: str, text: Answer) -> list[Stated]:
        """Return the baseline's distributions at the tokens of a text."""
        key, journal = f"{BASE}/{key}", self.texts.journal
        if key in journal:
            return journal.read(key, rows_of)
        rows = await self.servers[BASE].rescore(text.prompt_ids or (), text.ids or ())
        journal.keep(key, rows)
        return rows

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
            asks = [self.texts.ask(BASE, i, 1.0) for i in range(ROUNDING)]
            prompts = [self.texts.prompt(i) for i in range(ROUNDING)]
        else:
            prompts = [part for start in self.plan.texts for part in beginnings(start)][:FIRSTS]
            asks = [replace(self.texts.ask(OWN, 0, 1.0, start), tokens=1) for start in prompts]
        keyed = [(f"rounding/{i}", ask) for i, ask in enumerate(asks)]
        answers = await self.texts.asked(name, keyed)
        pairs = []
        for prompt, text in zip(prompts, answers, strict=True):
            scored = self.weights.columns(self.texts.prompt_ids(prompt, text), text, 1.0)
            pairs.append((self.weights.restated(text.stated, len(scored)), scored))
        band = band_between(pairs)
        if name == OWN and band.tokens:
            self.texts.remark(
                f"rounding ({band.argmax:.2g} of the likeliest token's chance) is measured on "
                f"{band.tokens} first tokens of the server, for there is no `baseline`"
            )
        return band

    async def _restated(self, index: int) -> tuple[Columns, Columns]:
        """Return the distributions of a baseline text, as stated with the text and as rescored."""
        base = self.servers[BASE]
        ask = self.texts.ask(BASE, index, 1.0)
        text = await self.texts.answer(BASE, f"rounding/{index}", ask)
        keys = [f"#{i}" for i in text.ids or ()]
        rows = await self._rows(f"rescored/rounding/{index}", text)
        return columns(text.stated, text.keys, base.top), columns(rows, keys, base.top)


def rows_of(values: Any) -> list[Stated]:
    """Read rescored rows."""
    return [[(str(key), float(logprob)) for key, logprob in row] for row in values]


def beginnings(prompt: str) -> list[str]:
    """Return a prompt and two shorter ones, cut between words."""
    words = prompt.split(" ")
    return [" ".join(words[: max(1, len(words) * part // 3)]) for part in (3, 2, 1)]
