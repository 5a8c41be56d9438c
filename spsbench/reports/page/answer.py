"""The answer first, in words: how much faster, lossless or not, and is the quality the same."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from spsbench.metrics.intervals import Estimate
from spsbench.metrics.parity import Parity, ParityVerdict
from spsbench.metrics.sameness import Same
from spsbench.metrics.summary import Summary
from spsbench.registry import find
from spsbench.reports.reporter import Table
from spsbench.reports.sheet import Mood, Sheet
from spsbench.settings.cell import Cell
from spsbench.settings.labels import Names

NONE: Mapping[str, Sheet] = {}


class Statement(NamedTuple):
    """A sentence, and how it reads at a glance."""

    mood: Mood
    text: str


class Answer(NamedTuple):
    """What was found under one task and setting."""

    run: str
    name: str  # task and setting
    method: str  # of the fastest row, which the sentences are about
    figure: str  # its speed-up, large
    interval: str
    speed: Statement
    lossless: Statement
    quality: Statement


def answers(
    table: Table, same: dict[str, Same | None], audits: Mapping[str, Sheet] = NONE
) -> list[Answer]:
    """One for each task and setting that drafts; greedy texts and audits are given by cell."""
    made: dict[tuple[str, str], list[Summary]] = {}
    names = Names(row.cell for row in table.whole)
    for row in table.whole:
        if row.cell.k != 0:
            work = names.work(row.cell), row.cell.models.target.id
            made.setdefault(work, []).append(row)
    return [_answer(table, rows, names, same, audits) for rows in made.values()]


def _answer(
    table: Table,
    rows: Sequence[Summary],
    names: Names,
    same: dict[str, Same | None],
    audits: Mapping[str, Sheet],
) -> Answer:
    timed = [row for row in rows if row.speedup is not None]
    best = max(timed, key=lambda row: row.speedup.mean if row.speedup else 0, default=rows[0])
    cell, gained = best.cell, best.speedup
    return Answer(
        run=table.title.run,
        name=names.work(cell),
        method=names.how(cell),
        figure="n/a" if gained is None else f"{gained.mean:.2f}x",
        interval="" if gained is None else _interval(gained),
        speed=_speed(best, names.how(cell), len(timed)),
        lossless=lossless(cell, same.get(cell.id), audits.get(cell.id)),
        quality=_quality(cell, table.parities, same.get(cell.id)),
    )


def _speed(row: Summary, method: str, among: int) -> Statement:
    gained, (own, loaded) = row.speedup, row.at_any_load("mean_token_time_ms")
    if own is None:
        return Statement("open", "Speed-up unknown: no time that counts.")
    if gained is None:
        return Statement("open", "Speed-up unknown: no ArS beside it that was timed.")
    busy = ", timed under load" if loaded else ""
    what = f"{method} takes {own.mean:.2f} ms a token{busy}"
    chosen = f" It is the fastest of {among}, chosen after looking." if among > 1 else ""
    if gained.low is None or gained.high is None:
        told = f"{what}, {gained.mean:.2f} times as fast as ArS; too few samples for an interval."
        return Statement("open", told + chosen)
    told = f"{what}, {gained.mean:.2f} times as fast as ArS ({_interval(gained)})."
    if gained.low > 1:
        return Statement("good", told + chosen)
    if gained.high < 1:
        return Statement("bad", f"{told} It is slower than ArS.{chosen}")
    return Statement("open", f"{told} The interval holds 1: no difference can be told.{chosen}")


def lossless(cell: Cell, same: Same | None, audit: Sheet | None = None) -> Statement:
    """What is known of the law of the output: the rule's promise, greedy texts, an audit."""
    if cell.models.random or cell.method.verifier.name == "synthetic":
        return Statement("bad", "Timing only: the output is meaningless by construction.")
    rule = cell.method.verifier.name
    promise = _promise(rule)
    if not cell.method.own_loop:
        told = "Made by another loop than ours: nothing is promised of its law."
        mood: Mood = "open"
    elif promise == "exact":
        told = f"Lossless by construction: the rule {rule} keeps the target's law exactly."
        mood = "good"
    elif promise == "greedy-exact":
        told, mood = f"The rule {rule} is lossless at temperature 0 only.", "open"
    elif promise:
        told, mood = f"Not lossless: the rule {rule} changes the law.", "bad"
    else:
        told, mood = f"Unknown: the rule {rule} promises nothing that is known here.", "open"
    if same is not None:
        told += f" {same.equal} of {same.of} greedy texts are ArS's, token for token."
        if same.equal < same.of:
            told += " The others part at a rounding tie or by a fault: sps verify pair tells which."
            mood = "open"
    if audit is not None:
        mood = "bad" if audit.mood == "bad" else mood
        told += f" Audit of these records: {audit.line}."
    elif same is None and cell.sampling.temperature:
        told += " Sampled texts differ by design; sps verify run bets against this run's records."
    return Statement(mood, told)


def _promise(rule: str) -> str:
    try:
        return find("verifiers", rule).guarantee
    except KeyError:
        return ""


def _quality(cell: Cell, parities: Iterable[tuple[Cell, Parity]], same: Same | None) -> Statement:
    found = [parity for of, parity in parities if of.id == cell.id]
    if not found and same is not None and same.equal == same.of:
        return Statement("good", f"Quality: {ParityVerdict.IDENTICAL}, since all texts are.")
    if not found:
        return Statement("open", "Quality: not scored in both arms.")
    moods: dict[ParityVerdict, Mood] = {
        ParityVerdict.IDENTICAL: "good",
        ParityVerdict.EQUIVALENT: "good",
        ParityVerdict.DIFFERENT: "bad",
    }
    told = [
        f"{p.metric} {p.ars:.4f} by ArS, {p.sps:.4f} by SpS over {p.difference.n:,} samples: {p}."
        for p in found
    ]
    seen: list[Mood] = [moods.get(p.verdict, "open") for p in found]
    mood: Mood = "bad" if "bad" in seen else "open" if "open" in seen else "good"
    return Statement(mood, "Quality: " + " ".join(told))


def _interval(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return "no interval"
    return f"95 % interval {estimate.low:.2f} to {estimate.high:.2f}"
