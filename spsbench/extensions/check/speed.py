"""Latency and throughput of streamed greedy answers, paired with those of a baseline.

Blocks of requests alternate between the two servers to cancel drift. Figures are ratios of sums
over paired requests, with 95 % intervals by the jackknife over prompts of `metrics.intervals`.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any

import msgspec
import numpy as np

from spsbench.errors import UnavailableError
from spsbench.extensions.check.texts import OWN, CheckTexts
from spsbench.metrics.intervals import Estimate, Jackknife, ratio_of
from spsbench.serving.engines import Answer, Ask

BLOCKS = 2  # for each server at each concurrency
WARM_UP = 2  # requests at most before the first block


@dataclass(frozen=True, slots=True)
class Timed:
    """The times of one answer."""

    prompt: Annotated[int, msgspec.Meta(ge=0)]  # index of the prompt
    ttft: float
    decoding: float  # seconds from the first token to the last
    tokens: int | None  # None: what the engine counts cannot be
    seconds: float
    chunks: int
    began: float = 0.0  # seconds after the start of the block

    @classmethod
    def of(cls, answer: Answer, prompt: int, began: float, most: int) -> "Timed | None":
        """Return the times of an answer to `most` tokens; None: it was retried, or has no text."""
        if not answer.stamps or answer.attempts > 1:
            return None
        first, last = answer.stamps[0], answer.stamps[-1]
        tokens = None if answer.miscount(most) else answer.tokens
        return cls(prompt, first, last - first, tokens, answer.seconds, len(answer.stamps), began)

    def sums(self) -> tuple[float, ...]:
        """Return the summands of the figures: TTFT, DECODING, FOLLOWING, TOKENS, SECONDS, ONE."""
        if self.tokens is None:
            return (self.ttft, 0.0, 0, 0, 0.0, 1.0)
        return (self.ttft, self.decoding, self.tokens - 1, self.tokens, self.seconds, 1.0)


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """The figures of one server at one concurrency."""

    server: str
    concurrency: int
    requests: int
    failed: int
    ttft: Estimate | None  # seconds
    tpot: Estimate | None
    user: Estimate | None  # tokens a second of one answer, prompt included
    machine: float | None  # tokens a second of all answers


@dataclass(frozen=True, slots=True)
class Ratios:
    """Ratios to the baseline at one concurrency, over paired requests; above 1 is better."""

    concurrency: int
    pairs: int
    ttft: Estimate | None
    tpot: Estimate | None  # the speed-up
    user: Estimate | None
    machine: float | None


Block = Sequence[Timed | None]  # requests in order; None for a failed request

TTFT, DECODING, FOLLOWING, TOKENS, SECONDS, ONE = range(6)
WIDTH = ONE + 1


def jackknife(rows: Sequence[Sequence[Timed]]) -> Jackknife | None:
    """Return the sums of each row's answers side by side, clustered by prompt; None: no rows."""
    if not rows:
        return None
    sums = np.array([[x for timed in row for x in timed.sums()] for row in rows], np.float64)
    clusters = np.unique(np.array([row[0].prompt for row in rows], np.intp), return_inverse=True)
    return Jackknife(sums.reshape(len(rows), -1), clusters[1])


def figures_of(server: str, concurrency: int, blocks: Sequence[Block]) -> LoadFigures:
    """Return a server's figures over blocks of one concurrency: ratios of sums; None: not known.

    Requests without times count as failed; the machine's rate needs the tokens of all timed ones.
    """
    requests = sum(map(len, blocks))
    timed = [answer for block in blocks for answer in block if answer is not None]
    sums = jackknife([(answer,) for answer in timed])
    wall, counts = sum(map(wall_time, blocks)), [t.tokens for t in timed if t.tokens is not None]

    def figure(numerator: int, denominator: int) -> Estimate | None:
        return sums.estimate(ratio_of(numerator, denominator), denominator) if sums else None

    return LoadFigures(
        server=server,
        concurrency=concurrency,
        requests=requests,
        failed=requests - len(timed),
        ttft=figure(TTFT, ONE),
        tpot=figure(DECODING, FOLLOWING),
        user=figure(TOKENS, SECONDS),
        machine=sum(counts) / wall if wall and len(counts) == len(timed) else None,
    )


def compare_requests(
    concurrency: int,
    blocks: Sequence[Block],
    base: Sequence[Block],
    own_level: LoadFigures,
    other: LoadFigures,
) -> Ratios:
    """Return ratios of the server's figures to the baseline's, above 1 if the server is better.

    Figures are ratios of sums over requests at equal places that both timed, with tokens known;
    `machine` compares the rates in `own_level` and `other`, the baseline's. None: not known.
    """
    pairs = [
        (b, a)
        for one, two in zip(blocks, base, strict=False)
        for a, b in zip(one, two, strict=False)
        if a is not None and b is not None and a.tokens is not None and b.tokens is not None
    ]
    sums = jackknife(pairs)

    def better(top: int, bottom: int) -> Estimate | None:
        def ratio(s: Any) -> Any:
            return ratio_of(top, bottom)(s) / ratio_of(WIDTH + top, WIDTH + bottom)(s)

        return sums.estimate(ratio, ONE) if sums else None

    both = own_level.machine is not None and other.machine
    machine = own_level.machine / other.machine if both else None  # type: ignore[operator]
    figures = better(TTFT, ONE), better(DECODING, FOLLOWING), better(SECONDS, TOKENS)
    return Ratios(concurrency, len(pairs), *figures, machine)


def wall_time(block: Block) -> float:
    """Return the seconds from the first request to the last answer of a block."""
    timed = [answer for answer in block if answer is not None]
    ends = [answer.began + answer.seconds for answer in timed]
    return max(ends) - min(answer.began for answer in timed) if timed else 0.0


async def time_servers(texts: CheckTexts) -> tuple[list[LoadFigures], list[Ratios]]:
    """Time greedy answers in blocks, after a warm-up, unless the journal has the times.

    Returns, one concurrency after the other, each server's figures, and with a baseline the ratios.
    """
    plan, servers, journal = texts.plan, list(texts.servers), texts.journal
    levels: list[LoadFigures] = []
    to_baseline: list[Ratios] = []
    for place, together in enumerate(plan.concurrency):
        texts.report(f"speed, {together} at a time", place, len(plan.concurrency))
        blocks: dict[str, list[Block]] = {name: [] for name in servers}
        first = place * (BLOCKS * plan.requests + WARM_UP)  # no request asks for another's prompt
        for name in servers:  # warm up
            if f"{name}/block/{together}/0" not in journal:
                await time_block(texts, name, together, first, min(together, WARM_UP))
        for number in range(BLOCKS):
            start = first + WARM_UP + number * plan.requests
            for name in servers[:: 1 if number % 2 == 0 else -1]:
                block = await journal.get(
                    f"{name}/block/{together}/{number}",
                    partial(msgspec.convert, type=list[Timed | None]),
                    partial(time_block, texts, name, together, start, plan.requests),
                    lambda block: [timed and asdict(timed) for timed in block],
                )
                blocks[name].append(block)
        of_servers = [figures_of(name, together, of_server) for name, of_server in blocks.items()]
        levels += of_servers
        if len(of_servers) == 2:
            audited, baseline = blocks.values()
            to_baseline.append(compare_requests(together, audited, baseline, *of_servers))
    return levels, to_baseline


async def time_block(texts: CheckTexts, name: str, together: int, first: int, count: int) -> Block:
    """Time `count` greedy answers to new prompts from number `first` on, `together` at a time.

    A request that failed, was retried or has no text is None in the block. The server's answers
    join `texts.answers`, and wrong lengths are remarked. UnavailableError: all requests fail.
    """
    plan, began = texts.plan, time.perf_counter()
    failures: list[UnavailableError] = []

    async def time_one(i: int) -> Timed | None:
        """Return the times of prompt `i`'s answer; None: failed (noted), retried, without text."""
        at = time.perf_counter() - began
        ask = Ask(texts.new_prompt(i), plan.max_new_tokens, 0.0, plan.seed, 0, True, plan.chat)
        try:
            answer = await texts.servers[name].answer(ask)
        except UnavailableError as error:
            failures.append(error)
            return None
        if name == OWN:
            texts.answers.append(answer)
        texts.remark_length(name, answer, ask.tokens, ", so that its speed is n/a")
        return Timed.of(answer, i % len(plan.texts), at, ask.tokens)

    block: Block = await texts.wait_for(
        [partial(time_one, first + i) for i in range(count)], together
    )
    if len(failures) == count:
        raise failures[0]
    return block
