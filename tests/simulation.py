"""Rounds with a known chance of acceptance and a known cost model, for the tests of figures."""

import random
from collections.abc import Iterator

from spsbench.settings.cell import Cell
from spsbench.settings.models import ModelSpec
from spsbench.settings.records import Record, RoundRecord
from spsbench.spec import Spec

PREFILL, DRAFT_PASS, TARGET_PASS, REST = 0.05, 0.002, 0.014, 0.001


def cell(k: int, **changes: object) -> Cell:
    """A cell that drafts `k` tokens; 0 is the baseline of all others."""
    drafting = (
        {"draft": ModelSpec("small"), "drafter": Spec("model"), "verifier": Spec("sps")}
        if k
        else {"drafter": Spec("none"), "verifier": Spec("match")}
    )
    made = {
        "target": ModelSpec("large"),
        "task": Spec("xsum"),
        "schedule": Spec("constant", (("lookahead", k),)),
        **drafting,
    }
    return Cell(**{**made, **changes})  # type: ignore[arg-type]


def rounds(draw: random.Random, k: int, alpha: float, tokens: int) -> list[RoundRecord]:
    """Rounds until `tokens` are out; each tested token is kept with chance `alpha`."""
    made: list[RoundRecord] = []
    left = tokens
    while left > 0:
        n = min(k, left - 1)
        accepted = 0
        while accepted < n and draw.random() < alpha:
            accepted += 1
        tested = min(accepted + 1, n)
        overlap = sum(min(1.0, max(0.0, draw.gauss(alpha, 0.02))) for _ in range(tested))
        draft, target = n * DRAFT_PASS, TARGET_PASS * (1 + 0.01 * n) * draw.uniform(0.95, 1.05)
        emitted = accepted + 1
        made.append(
            RoundRecord(n, tested, accepted, emitted, overlap, draft + target + REST, draft, target)
        )
        left -= emitted
    return made


def record(
    of: Cell, sample: str, repeat: int, rows: list[RoundRecord], **changes: object
) -> Record:
    """A good record of `rows`."""
    made = {
        "cell": of.id,
        "sample": sample,
        "repeat": repeat,
        "prompt_tokens": 20,
        "tokens": [0] * sum(r.emitted for r in rows),
        "text": "",
        "finish": "length",
        "prefill_seconds": PREFILL,
        "rounds": rows,
    }
    return Record(**{**made, **changes})  # type: ignore[arg-type]


def failure(of: Cell, sample: str, repeat: int = 0) -> Record:
    """A generation that failed."""
    return record(of, sample, repeat, [], error="out of memory", prefill_seconds=0.0)


def run(
    of: Cell, alpha: float, samples: int, repeats: int = 1, seed: int = 0, spread: float = 0.0
) -> Iterator[Record]:
    """Records of one cell; the acceptance rate of a sample varies by `spread` around `alpha`."""
    draw = random.Random(seed)
    for sample in range(samples):
        own = min(0.99, max(0.01, random.Random(sample).gauss(alpha, spread)))
        for repeat in range(repeats):
            made = rounds(draw, of.k or 0, own, of.max_new_tokens)
            yield record(of, f"s{sample}", repeat, made)
