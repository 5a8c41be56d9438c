"""Timed blocks of greedy streamed answers, alternating between a server and its baseline."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from spsbench.errors import UnavailableError
from spsbench.extensions.check.speed import Block, Level, Ratios, Timed, level, miscount, ratios
from spsbench.extensions.check.texts import OWN, Texts, gathered
from spsbench.serving.engines import Answer, Ask

BLOCKS = 2  # of each server at each concurrency


class Timing:
    """The timing of one check; `answers` are those of the audited server."""

    def __init__(self, texts: Texts) -> None:
        self.texts, self.plan, self.servers = texts, texts.plan, texts.servers
        self.answers: list[Answer] = []

    async def run(self) -> tuple[list[Level], list[Ratios]]:
        """Return the figures of each server, and the ratios to the baseline, by concurrency."""
        levels: list[Level] = []
        to_baseline: list[Ratios] = []
        for place, concurrency in enumerate(self.plan.levels):
            part = f"speed, {concurrency} at a time"
            self.texts.report(part, place, len(self.plan.levels))
            blocks: dict[str, list[Block]] = {name: [] for name in self.servers}
            for name in self.servers:  # warm up
                if f"{name}/block/{concurrency}/0" not in self.texts.journal:
                    await self._block(name, concurrency, min(concurrency, 2))
            for number in range(BLOCKS):
                for name in list(self.servers)[:: 1 if number % 2 == 0 else -1]:
                    blocks[name].append(await self._kept_block(name, concurrency, number))
            of_servers = [
                level(name, concurrency, of_server, self.plan.objectives)
                for name, of_server in blocks.items()
            ]
            levels += of_servers
            if len(of_servers) == 2:
                audited, baseline = blocks.values()
                to_baseline.append(ratios(concurrency, audited, baseline, *of_servers))
        return levels, to_baseline

    async def _kept_block(self, name: str, concurrency: int, number: int) -> Block:
        key, journal = f"{name}/block/{concurrency}/{number}", self.texts.journal
        if key in journal:
            return journal.read(key, block_of)
        block = await self._block(name, concurrency, self.plan.requests)
        journal.keep(key, [asdict(answer) if answer else None for answer in block])
        return block

    async def _block(self, name: str, concurrency: int, count: int) -> Block:
        """Time `count` greedy answers, `concurrency` at a time."""
        gate, began = asyncio.Semaphore(concurrency), time.perf_counter()
        server, plan = self.servers[name], self.plan
        failures: list[UnavailableError] = []

        async def time_one(i: int) -> Timed | None:
            async with gate:
                at = time.perf_counter() - began
                prompt, seed = self.texts.prompt(i), plan.seed
                ask = Ask(prompt, plan.max_new_tokens, 0.0, seed, 0, True, plan.chat)
                try:
                    answer = await server.answer(ask)
                except UnavailableError as error:
                    failures.append(error)
                    return None
            if name == OWN:
                self.answers.append(answer)
            if line := miscount(answer, ask.tokens):
                self.texts.remark(f"{name}: {line}, so that its speed is n/a")
            return Timed.of(answer, i % len(plan.texts), at, ask.tokens)

        block: Block = await gathered([time_one(i) for i in range(count)])
        if len(failures) == count:
            raise failures[0]
        return block


def block_of(values: Sequence[dict[str, Any] | None]) -> Block:
    """Read a kept block."""
    return [Timed.from_json(value) if value is not None else None for value in values]
