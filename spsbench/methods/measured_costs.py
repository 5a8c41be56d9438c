"""Measure the costs of a round with loaded models: 84 rounds, once for a machine."""

import logging
from collections.abc import Sequence
from itertools import accumulate
from random import Random
from statistics import median

from spsbench.hardware.contention import loaded as is_loaded
from spsbench.hardware.contention import read_clocks
from spsbench.loop.decode import never
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.types import Limits
from spsbench.methods.build import build
from spsbench.methods.resolve import resolve, warp
from spsbench.methods.round_costs import DIGITS, RoundCosts, asks_for_costs, keep_costs, known_costs
from spsbench.models.cache import Loaded
from spsbench.settings.cell import AUTO, Cell, constant
from spsbench.settings.cell_from_options import HYBRID, part
from spsbench.spec import Spec

log = logging.getLogger(__name__)

DEPTHS = range(7)  # tokens drafted a round; the last is the most that `payoff` drafts by itself
PROMPT = 32  # random tokens
TURNS = 3
ROUNDS = 3  # of each depth and turn, behind one that captures what later ones replay


def learn_costs(cell: Cell, loaded: Loaded) -> None:
    """Measure and keep costs for an unresolved cell that asks for them, if none are kept.

    Nothing is measured beside other work: the costs that are usual for the processor hold then.
    """
    if not asks_for_costs(cell) or known_costs(cell) is not None or loaded.target is None:
        return
    before = read_clocks()
    costs = measured_costs(cell, loaded)
    if is_loaded(before, read_clocks()):
        log.info("note: other work runs: the usual costs of a round are taken, none are measured")
        return
    keep_costs(cell, costs)
    log.info(
        f"note: measured once for this machine: a drafted token costs {costs.draft:g} passes, "
        f"{len(costs.row)} further rows {costs.row[-1]:g}, a round with a draft {costs.fixed:g}"
    )


def measured_costs(cell: Cell, loaded: Loaded) -> RoundCosts:
    """Return the costs of rounds by the model of a cell's drafter, over a random text.

    All depths are measured in turns, of which the fastest counts: what else a machine does only
    adds time, and a slow moment of one depth would tilt the cost of a row.
    """
    drafter = cell.drafter
    if drafter.name == HYBRID:
        drafter = part(str(dict(drafter.args).get("then", "model")))
    turns = [[_round_seconds(cell, drafter, loaded, k) for k in DEPTHS] for _ in range(TURNS)]
    fastest = [
        tuple(map(min, zip(*of_depth, strict=True))) for of_depth in zip(*turns, strict=True)
    ]
    return costs_of(fastest)


def costs_of(seconds: Sequence[tuple[float, float]]) -> RoundCosts:
    """Return costs from seconds of rounds of 0, 1, 2, ... drafted tokens.

    The first row counts as the second: what more a round with a draft takes is its own.

    Args:
        seconds: of drafting, and of the rest of a round: the target's pass, its laws and the rule.
    """
    drafting, rest = zip(*seconds, strict=True)
    plain, first, deepest = rest[0], rest[1], len(seconds) - 1
    token = max(0.0, (drafting[-1] - drafting[1]) / (deepest - 1))
    second = max(0.0, rest[2] - first)
    rows = accumulate((second + max(0.0, time - first) for time in rest[1:]), max)
    fixed = max(0.0, drafting[1] - token) + max(0.0, first - plain - second)
    draft, fixed, *row = (round(cost / plain, DIGITS) for cost in (token, fixed, *rows))
    return RoundCosts(draft, tuple(row), fixed)


def _round_seconds(cell: Cell, drafter: Spec, loaded: Loaded, k: int) -> tuple[float, float]:
    """Return median seconds of drafting, and of the rest, in rounds of `k` tokens."""
    how = {"verifier": AUTO, "schedule": constant(k)}
    depth = resolve(cell.but(drafter=drafter, **how))
    decoder = build(depth, loaded)
    times: list[tuple[float, float]] = []
    prompt: Sequence[int] = Random(0).choices(range(loaded.vocab_size), k=PROMPT)
    for turn in decoder(
        prompt,
        limits=Limits(PROMPT + ROUNDS * (k + 1)),
        warp=warp(depth),
        noise=PhiloxStream(0, "costs", "", 0),
        stop=never,
    ):
        times.append((turn.draft_seconds, turn.seconds - turn.draft_seconds))
        if len(times) == ROUNDS + 1:
            break
    drafts, rest = zip(*times[1:], strict=True)
    return median(drafts), median(rest)
