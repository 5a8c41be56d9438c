"""Latency and throughput of streamed answers, paired with those of a baseline.

Blocks of requests alternate between the two servers to cancel drift. Figures are ratios of sums
over paired requests, with 95 % intervals by the jackknife over prompts of `metrics.intervals`.
Goodput counts the answers within the objectives, as tokens a second and as a share of requests.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from spsbench.errors import UsageError
from spsbench.metrics.intervals import Estimate, Jackknife, over
from spsbench.serving.engines import Answer

OBJECTIVE = re.compile(r"(ttft|tpot|e2e):([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s)")


@dataclass(frozen=True, slots=True)
class Objectives:
    """Latency limits in seconds; None = no limit."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    @classmethod
    def parse(cls, text: str) -> "Objectives":
        """Read `ttft:500ms,tpot:50ms`.

        Raises:
            UsageError: the text has another form.
        """
        limits = {}
        for part in text.replace(" ", "").split(","):
            match = OBJECTIVE.fullmatch(part)
            if match is None:
                raise UsageError(f"`slo` {text[:80]}: expected a form like ttft:500ms,tpot:50ms")
            name, value, unit = match.groups()
            limits[name] = float(value) / (1000 if unit == "ms" else 1)
        return cls(**limits)

    def met(self, timed: "Timed") -> bool:
        """Return whether an answer is within all limits."""
        pairs = ((self.ttft, timed.ttft), (self.tpot, timed.tpot), (self.e2e, timed.seconds))
        return all(most is None or (took is not None and took <= most) for most, took in pairs)


@dataclass(frozen=True, slots=True)
class Timed:
    """The times of one answer."""

    prompt: int  # index of the prompt
    ttft: float
    decoding: float  # seconds from the first token to the last
    tokens: int | None  # None: what the engine counts cannot be
    seconds: float
    chunks: int
    began: float = 0.0  # seconds after the start of the block

    @property
    def tpot(self) -> float | None:
        """Return seconds per output token after the first; None for a single token."""
        return self.decoding / (self.tokens - 1) if self.tokens and self.tokens > 1 else None

    @classmethod
    def of(
        cls, answer: Answer, prompt: int, began: float, most_tokens: float = math.inf
    ) -> "Timed | None":
        """Read the timestamps of an answer; None if the answer needed retries or has no text.

        At most `most_tokens` tokens are believed.
        """
        if not answer.stamps or answer.attempts > 1:
            return None
        first, last = answer.stamps[0], answer.stamps[-1]
        tokens = None if miscount(answer, most_tokens) else answer.tokens
        count = len(answer.stamps)
        return cls(prompt, first, last - first, tokens, answer.seconds, count, began)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Timed":
        """Read kept values.

        Raises:
            TypeError, ValueError: other fields, or no numbers.
        """
        timed = cls(**values)
        numbers = (timed.ttft, timed.decoding, timed.seconds, timed.began, timed.tokens or 0)
        if not all(math.isfinite(number) for number in numbers) or timed.prompt < 0:
            raise ValueError(f"impossible times {values}")
        return timed


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


@dataclass(frozen=True, slots=True)
class Level:
    """The figures of one server at one concurrency."""

    server: str
    concurrency: int
    requests: int
    failed: int
    ttft: Estimate | None  # seconds
    tpot: Estimate | None
    user: Estimate | None  # tokens a second of one answer, prompt included
    machine: float | None  # tokens a second of all answers
    good_tokens: float | None = None  # tokens a second of answers within the objectives
    good_requests: float | None = None  # share of the requests

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Ratios:
    """Ratios to the baseline at one concurrency, over paired requests; above 1 is better."""

    concurrency: int
    pairs: int
    ttft: Estimate | None
    tpot: Estimate | None  # the speed-up
    user: Estimate | None
    machine: float | None

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


Block = Sequence[Timed | None]
"""Requests in order; None for a failed request."""

TTFT, DECODING, FOLLOWING, TOKENS, SECONDS, ONE = range(6)


def level(
    server: str, concurrency: int, blocks: Sequence[Block], objectives: Objectives | None
) -> Level:
    """Return the figures of one server."""
    timed = [answer for block in blocks for answer in block if answer is not None]
    sums = Jackknife(_rows(timed), _clusters([answer.prompt for answer in timed]))
    wall = sum(map(_wall, blocks))
    good = [answer for answer in timed if objectives is not None and objectives.met(answer)]
    requests = sum(len(block) for block in blocks)
    return Level(
        server=server,
        concurrency=concurrency,
        requests=requests,
        failed=requests - len(timed),
        ttft=sums.estimate(over(TTFT, ONE), ONE) if timed else None,
        tpot=sums.estimate(over(DECODING, FOLLOWING), FOLLOWING) if timed else None,
        user=sums.estimate(over(TOKENS, SECONDS), TOKENS) if timed else None,
        machine=_rate(timed, wall),
        good_tokens=_rate(timed, wall, good) if objectives else None,
        good_requests=len(good) / requests if objectives and requests else None,
    )


def _rate(timed: Sequence[Timed], wall: float, some: Sequence[Timed] | None = None) -> float | None:
    """Return tokens a second of some answers; None if the tokens of any answer are not known."""
    counts = [answer.tokens for answer in timed if answer.tokens is not None]
    if not wall or len(counts) < len(timed):
        return None
    return sum(answer.tokens or 0 for answer in (timed if some is None else some)) / wall


def ratios(
    concurrency: int, blocks: Sequence[Block], base: Sequence[Block], own_level: Level, other: Level
) -> Ratios:
    """Compare paired requests: those at equal positions in blocks of equal number."""
    pairs = [
        (a, b)
        for one, two in zip(blocks, base, strict=False)
        for a, b in zip(one, two, strict=False)
        if a is not None and b is not None and a.tokens is not None and b.tokens is not None
    ]
    width = ONE + 1
    rows = np.hstack([_rows([a for a, _ in pairs]), _rows([b for _, b in pairs])])
    sums = Jackknife(rows, _clusters([a.prompt for a, _ in pairs]))

    def better(top: int, bottom: int) -> Estimate | None:
        def ratio(s: Any) -> Any:
            return (s[..., width + top] / s[..., width + bottom]) / (s[..., top] / s[..., bottom])

        return sums.estimate(ratio, ONE) if pairs else None

    measured = own_level.machine is not None and other.machine
    gain = own_level.machine / other.machine if measured else None  # type: ignore[operator]
    return Ratios(
        concurrency,
        len(pairs),
        better(TTFT, ONE),
        better(DECODING, FOLLOWING),
        better(SECONDS, TOKENS),
        gain,
    )


def _rows(timed: Sequence[Timed]) -> Any:
    rows = [
        (t.ttft, t.decoding, t.tokens - 1, t.tokens, t.seconds, 1.0)
        if t.tokens is not None
        else (t.ttft, 0.0, 0, 0, 0.0, 1.0)
        for t in timed
    ]
    return np.array(rows, np.float64).reshape(len(rows), 6)


def _clusters(prompts: Sequence[int]) -> Any:
    order = {prompt: i for i, prompt in enumerate(dict.fromkeys(prompts))}
    return np.array([order[prompt] for prompt in prompts], np.intp)


def _wall(block: Block) -> float:
    timed = [answer for answer in block if answer is not None]
    ends = [answer.began + answer.seconds for answer in timed]
    return max(ends) - min(answer.began for answer in timed) if timed else 0.0
