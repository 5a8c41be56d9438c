"""Measure rounds and passes that several texts make together, by the texts of a batch."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np

from spsbench.benchmark.generation import check_cache
from spsbench.engines.session.cache import token_bytes
from spsbench.loop.types import Engine
from spsbench.methods.resolve import resolve
from spsbench.metrics.costs import BatchCosts, Costs
from spsbench.metrics.costs_file import dumps
from spsbench.metrics.surfaces import Surface
from spsbench.planning import measure
from spsbench.planning.forecast.batch_gains import FEW
from spsbench.planning.meters import PassMeter, RoundMeter, turn_tokens
from spsbench.plugins import make
from spsbench.settings.labels import drafting
from spsbench.store.atomic import replace_file

TOKENS = (1, 2, 3, 5, 9, 17)  # of each text, in a common pass
REQUESTED = (1, 2, 4, 8, 16)
PLAIN_KS = (0,)

MeasureSizes = Callable[[Sequence[int]], BatchCosts]


def measured_sizes(requested: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes to measure, from 1: those requested, or of many the powers of two.

    >>> measured_sizes(range(1, 25))
    (1, 2, 4, 8, 16, 24)
    """
    powers = [2**i for i in range(max(requested).bit_length())]
    return tuple(sorted({1, max(requested), *(requested if len(requested) <= FEW else powers)}))


def reached(values: Sequence[int], most: int) -> tuple[int, ...]:
    """Return the values up to the first that is `most` or more."""
    return tuple(values[: next((i for i, v in enumerate(values) if v >= most), len(values)) + 1])


def measure_batches(
    pairs: Sequence[measure.Pair],
    text: Sequence[int],
    sizes: Sequence[int],
    *,
    contexts: Sequence[int],
    most_k: int,
    seconds: float,
    watch: Callable[[measure.CostProgress], None],
) -> BatchCosts:
    """Measure passes and rounds in batches, of the drafters of some cells and of ArS.

    Args:
        pairs, text, contexts, seconds, watch: as for `measure.measure`.
        sizes: texts of a batch, from 1.
        most_k: largest K of a forecast.

    Raises:
        OutOfMemoryError: the largest batch does not fit.
        UsageError: contexts that are too short.
    """
    first, models = pairs[0]
    plain = resolve(first.auto_regressive), models
    tokens, ks = reached(TOKENS, most_k + 1), reached(REQUESTED, most_k)
    draw = Random(0)
    arms: dict[str, RoundMeter] = {}
    fitting = measure.within(contexts, turn_tokens(ks, len(sizes)) + 1, models.limit)
    text = measure.enough(text, fitting[-1] + max(tokens) + 1)
    middle = fitting[len(fitting) // 2]
    check_cache(first, models, [fitting[-1]] * sizes[-1], sizes[-1])
    for cell, loads in (plain, *pairs):
        arm_ks = PLAIN_KS if cell.k == 0 else ks
        round_meter = RoundMeter(cell, loads, text, middle, arm_ks, draw, sizes=sizes)
        arms.setdefault(drafting(cell), round_meter)
    engine: Engine = make("engines", first.target.engine)
    passes = []
    for context in fitting:
        lms = [
            engine.session(models.target, vocab_size=models.vocab_size) for _ in range(sizes[-1])
        ]
        passes.append(PassMeter(lms, text, sizes, tokens, context, models.target.device, draw))
    pace = measure.CostProgress(seconds)
    turns, _ = measure.quiet(measure.take_turns([*passes, *arms.values()], pace, watch, draw))
    surfaces = measure.surfaces(passes, turns, tokens, fitting)
    return BatchCosts(
        sizes=tuple(sizes),
        passes=surfaces,
        rest={name: _beside_passes(meter, turns, surfaces, middle) for name, meter in arms.items()},
        cached=token_bytes(models.target),
    )


def _beside_passes(
    meter: RoundMeter, turns: Sequence[int], passes: Sequence[Surface], context: int
) -> tuple[Surface, ...]:
    """Return the seconds of rounds less those of the target's pass, of each size."""
    drafted, _, _, seconds, contexts = meter.of(turns).swapaxes(0, 1)  # [T, B, K]
    remainder = seconds.copy()
    for turn, size, k in np.ndindex(*seconds.shape):
        n, at = drafted[turn, size, k] + 1, contexts[turn, size, k]
        alone = passes[size].of_turns([turn]).at(n, at)
        remainder[turn, size, k] -= alone[0]
    return tuple(
        Surface(meter.ks, (context,), remainder[:, i, :, None]) for i in range(len(meter.sizes))
    )


def with_batches(
    costs: Costs,
    file: Path,
    drafts: Sequence[str],
    sizes: Sequence[int],
    measure_sizes: MeasureSizes,
) -> Costs:
    """Return costs with those of batches, measured and written to `file` where they lack some.

    Args:
        drafts: names of the drafts that must have costs.
        sizes: texts of a batch that are asked for.
        measure_sizes: measures some sizes.
    """
    batches = costs.batches
    has = (
        batches is not None and batches.sizes[-1] >= max(sizes) and {*drafts} <= batches.rest.keys()
    )
    if has:
        return costs
    updated = replace(costs, batches=measure_sizes(measured_sizes(sizes)))
    replace_file(file, dumps(updated).encode("ascii"))
    return updated
