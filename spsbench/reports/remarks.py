"""Lines below a table: quality parity, memory bandwidth, repetition, greedy texts, pass@k."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from spsbench.hardware.contention import OTHERS_AT_MOST
from spsbench.metrics.compare import OverSeeds
from spsbench.metrics.intervals import FEWEST
from spsbench.metrics.parity import OF_QUALITY, Parity, ParityVerdict
from spsbench.metrics.rates import baseline
from spsbench.metrics.summaries import Summary
from spsbench.metrics.sums import group_by
from spsbench.metrics.text_checks import GreedyTexts, Repetition
from spsbench.reports.columns import BY_K, MARK, SOURCE, full, paper_row, table_columns
from spsbench.settings.cell import Cell
from spsbench.settings.labels import Names, short_decoders
from spsbench.settings.records import Score
from spsbench.store.starts import Memory, Start
from spsbench.tasks.answers import UNMARKED
from spsbench.tasks.program_log import (
    NAME,
    counts,
    describe_settings,
    estimate_lines,
    format_counts,
    pass_at,
    read_verdicts,
    without,
)
from spsbench.tasks.program_texts import TASK


def basis(rows: Sequence[Summary], timed: bool) -> list[str]:
    """Return lines on counts, intervals, lengths, failures and cuts, and on times if `timed`."""
    good, failed = sum(s.n for s in rows), sum(s.failures for s in rows)
    cut, samples = max((s.cut for s in rows), default=0), max((s.samples for s in rows), default=0)
    loaded = sum(s.loaded for s in rows)
    has_intervals = any(
        e is not None and e.low is not None for s in rows for e in s.figures.values()
    )
    flagged = good - sum(s.timed for s in rows) - loaded
    lines = [
        f"{good} generations over up to {samples} samples. "
        + (
            "Brackets are 95 % intervals over samples; fewer than "
            f"{FEWEST} samples have none, unless every one or none succeeds."
            if has_intervals
            else f"No figure has an interval, which needs {FEWEST} samples that differ."
        )
    ]
    lengths = [s.text_tokens.mean for s in rows if s.text_tokens is not None]
    if lengths:
        lines.append(
            f"Mean length of the texts: {_format_range(min(lengths), max(lengths))} tokens."
        )
    if failed:
        lines.append(f"{failed} generations failed and are left out of every figure.")
    if flagged and timed:
        lines.append(f"{flagged} timings of first calls are left out of the times.")
    if loaded and timed:
        lines.append(under_load(loaded, loaded + sum(s.timed for s in rows)))
    if timed:
        lines += gains_in_words(rows)
        if by_k := [column.heading for column in table_columns(rows) if column in BY_K]:
            horizon = max(s.horizon for s in rows)
            lines.append(f"{' and '.join(by_k)}: of the time to {horizon} tokens (Figure 1).")
    if cut:
        lines.append(f"{cut} prompts were truncated to fit the context.")
    return lines


def seed_lines(seed_rows: Sequence[OverSeeds], rows: Sequence[Summary]) -> list[str]:
    """Return a line a cell on its variation over seeds on the same samples, in `rows`' columns."""
    lines, names = [], Names(seed_row.cell for seed_row in seed_rows)
    for seed_row in seed_rows:
        figures = [
            f"{column.heading} {full(seed_row.figures[column.figure], column.digits, column.unit)}"
            for column in table_columns(rows)
            if column.figure in seed_row.figures
        ]
        lines.append(
            f"Over {len(seed_row.seeds)} seeds, {names.full(seed_row.cell)}: "
            f"{', '.join(figures)} (95 % intervals over seeds, Student's t)."
        )
    return lines


def under_load(loaded: int, timed: int) -> str:
    """Return a line that `loaded` of `timed` timings are under load, and how to repeat them."""
    return (
        f"{loaded} of {timed} timings were taken on a busy machine: other programs used more than "
        f"{OTHERS_AT_MOST:.0%} of the processors. Figures marked {MARK} have no other timings; "
        f"their speed-up over fewer than {FEWEST} samples is not decided. For times to quote, stop "
        "the other programs (top lists them) and run again with `overwrite`."
    )


def gains_in_words(rows: Sequence[Summary]) -> list[str]:
    """Return lines on what the speed-ups are taken over; [] where they need none."""
    drafting, names, lines = [row for row in rows if row.cell.k != 0], Names(_cells(rows)), []
    if any(row.answer_speedup and not row.answer_speedup.undecided for row in drafting):
        lines.append(PER_TOKEN_AND_ANSWER)
    if fewer_pairs := [line for row in drafting if (line := _pairs(row, rows, names))]:
        lines.append(
            "A speed-up is over the generations timed under both methods, ms/token over all of one "
            f"method: {'; '.join(fewer_pairs)}."
        )
    return lines


PER_TOKEN_AND_ANSWER = (
    "The speed-up is per token, without the prefill; the answer speed-up is per answer: the time "
    "until the last token over the tokens, with the prefill in both times."
)
NEARLY_ALL = 0.9
"""Share of the generations behind a time above which a speed-up is over the same."""


def _pairs(row: Summary, rows: Sequence[Summary], names: Names) -> str:
    """Return `LABEL 12 pairs` of a gain; "": none, or over `NEARLY_ALL` of each time's texts."""
    gained, base = row.speedup, baseline(row.cell, _cells(rows))
    times = [
        time
        for other in rows
        if other is row or (base is not None and other.cell.id == base.id)
        if (time := other.mean_token_time_ms) is not None
    ]
    if gained is None or gained.undecided or all(gained.n >= NEARLY_ALL * t.n for t in times):
        return ""
    return f"{names.full(row.cell)} {gained.n} pair{'s' * (gained.n != 1)}"


def _cells(rows: Sequence[Summary]) -> list[Cell]:
    return [row.cell for row in rows]


def _format_range(low: float, high: float) -> str:
    first, last = f"{low:.0f}", f"{high:.0f}"
    return first if first == last else f"{first} to {last}"


def run_findings(
    rows: Sequence[Summary], paired: Sequence[tuple[Cell, Parity]], *, paper: bool = False
) -> list[str]:
    """Return the findings of a run, a line each: warnings on `rows`, then verdicts on quality.

    Warnings tell of settings, not figures. `paired` are cells with verdicts against ArS; identical
    ones have no line. With `paper` the last line names the source, if the paper has such a row.
    """
    names = Names(row.cell for row in rows)
    lines = [*_warnings([row.cell for row in rows]), *_parities(paired, names)]
    return lines + [f"{SOURCE}."] * (paper and any(map(paper_row, rows)))


def ceilings(
    rows: Sequence[Summary], memory: Memory | None, prompts: Mapping[str, float] | None = None
) -> list[str]:
    """Return lines on ArS and SpS against the limits of memory and products, by target.

    Nothing that was measured under load, or of quantised targets. Only several tokens a pass can
    exceed the limit of memory. `prompts` has the mean tokens of a prompt by the cell's id; without
    it prefills are left out.
    """
    lines: list[str] = []
    if memory is None or memory.loaded:
        return lines
    for target, size in memory.weights.items():
        bound = 1e3 * size / memory.bandwidth  # every token reads all weights (Chen et al. 2023)
        times = [
            (row, row.mean_token_time_ms)
            for row in rows
            if row.cell.target.id == target
            and row.cell.target.quantised is None  # fewer bytes a token
        ]
        names = Names(row.cell for row, _ in times)
        reached, speculative = (
            [
                f"{names.full(row.cell)}: {bound / time.mean:.0%}"
                for row, time in times
                if time is not None and not time.loaded and (row.cell.k == 0) is plain
            ]
            for plain in (True, False)
        )
        if reached:
            lines.append(
                f"Memory bandwidth limits ArS of {target} to {bound:.2f} ms/token "
                f"({size / 1e6:.0f} MB at {memory.bandwidth / 1e9:.1f} GB/s, measured); "
                f"share of this limit reached: {'; '.join(dict.fromkeys(reached))}."
            )
        if speculative:
            lines.append(
                f"SpS, of the same limit of {bound:.2f} ms/token, which no ArS "
                f"exceeds: {'; '.join(dict.fromkeys(speculative))}."
            )
        least = 1e3 * memory.prompt.get(target, 0)  # ms of a prompt's token
        prefills = [
            f"{names.full(row.cell)}: {least * tokens / time.mean:.0%} of {tokens:.0f} tokens"
            for row, _ in times
            if row.cell.k == 0 and (time := row.prefill_ms) is not None and not time.loaded
            if least and (tokens := (prompts or {}).get(row.cell.id))
        ]
        if prefills:
            lines.append(
                f"Products limit prompts of {target} to {least:.3f} ms/token (at the rate of "
                f"torch's own, measured); reached: {'; '.join(dict.fromkeys(prefills))}."
            )
    return lines


def repetitions(cells: Sequence[Cell], texts: Mapping[str, Repetition]) -> list[str]:
    """Return a warning on rows with over a tenth of looping texts, or []; `texts` has all cells."""
    names = Names(cells)
    looping = [
        f"{names.full(cell)} ({texts[cell.id]})"
        for cell in cells
        if texts[cell.id].doubtful and not cell.random
    ]
    if not looping:
        return []
    return [
        f"Repetition in {'; '.join(looping)}. Loops are easy to draft: the speed-up says little "
        "about other texts."
    ]


def count_unmarked(rows: Sequence[Summary], scores: Sequence[Score]) -> list[str]:
    """Return a line that names rows with answers without a marked result, and how many; or []."""
    names, listed = Names(row.cell for row in rows), []
    for row in rows:
        marks = [score.metrics.get(UNMARKED, 0.0) for score in scores if score.cell == row.cell.id]
        if count := int(sum(marks)):
            listed.append(f"{names.full(row.cell)} ({count} of {len(marks)} answers had none)")
    return [f"No marked result, which counts as wrong: {'; '.join(listed)}."] if listed else []


def sameness(cells: Sequence[Cell], greedy: GreedyTexts) -> list[str]:
    """Return a line on equal greedy texts, and one per reason for others, by row; [] for none."""
    names = Names(cells)
    by_line: dict[str, list[str]] = {}
    for cell in cells:
        if (same := greedy.same(cell)) is None:
            continue
        line = "Greedy texts identical to those of ArS, and so of identical quality"
        if same.equal < same.of:
            line = "Greedy texts that differ from those of ArS " + (
                "because the rule is lossy (identical ones)"
                if cell.lossy
                else "by a rounding tie or a fault, sps verify pair shows which (identical ones)"
            )
        by_line.setdefault(line, []).append(f"{names.full(cell)} ({same.equal} of {same.of})")
    return [f"{line}: {'; '.join(rows)}." for line, rows in sorted(by_line.items())]


def _warnings(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield a line, which names no cell, for each reason why figures do not measure plain SpS.

    They are random weights or synthetic acceptance, lossy rules, ignored ends of text, another
    engine's counts, each of its decoders that has a short name, and transformers' loop.
    """
    if any(cell.random or cell.verifier.name == "synthetic" for cell in cells):
        yield "Timing only, output meaningless: random weights or acceptance at a given rate."
    changed = [cell for cell in cells if cell.lossy and cell.verifier.name != "synthetic"]
    if rules := ", ".join(dict.fromkeys(str(cell.verifier) for cell in changed)):
        yield (
            f"Lossy: {rules}. Texts do not follow the target's distribution; the speed-up may "
            "cost quality."
        )
    if any(cell.ignore_eos for cell in cells):
        yield "End-of-text is ignored and all texts have the full length: timing only, no quality."
    if elsewhere := [c for c in cells if c.elsewhere]:
        named = ", ".join(dict.fromkeys(cell.decoder.name for cell in elsewhere))
        yield (
            f"Text and counts are another engine's ({named}): what it does not report is n/a, the "
            "time beyond a usual round before the first token is taken as prefill, and the "
            "speed-up is over the same engine without a draft."
        )
        for decoder, name in short_decoders(elsewhere).items():
            if decoder != name:
                yield f"Decoder {name}: {decoder}."
    if any(not cell.own_loop and not cell.elsewhere for cell in cells):
        yield (
            "Decoder hf is transformers' generate: its prefill is estimated as its first "
            "round less its median round, its alpha is accepted over drafted tokens, and its "
            "speed-up is over its ArS."
        )


def _parities(paired: Sequence[tuple[Cell, Parity]], names: Names) -> Iterator[str]:
    """Yield a line for each verdict but IDENTICAL; one a metric for several that are undecided."""
    left_open = (pair for pair in paired if pair[1].verdict is ParityVerdict.UNDECIDED)
    undecided = group_by(left_open, lambda pair: pair[1].metric)
    for cell, parity in paired:
        alike = undecided.get(parity.metric, [])
        if parity.verdict is ParityVerdict.UNDECIDED and len(alike) > 1:
            if parity is alike[0][1]:
                most = max((parity for _, parity in alike), key=lambda parity: parity.needed)
                listed = "; ".join(
                    f"{names.full(cell)} {full(parity.shown, 2)}" for cell, parity in alike
                )
                yield f"Quality, {parity.metric}, difference to ArS {most}: {listed}."
        elif parity.verdict is not ParityVerdict.IDENTICAL:  # which `sameness` tells
            yield f"Quality, {names.full(cell)}: {parity.sentence}."
    if any(parity.bounded for _, parity in paired):
        yield f"{OF_QUALITY}."


def counter_notes(rows: Sequence[Summary], starts: Sequence[Start]) -> list[str]:
    """Return a line on servers' counts over unfailed batches, for each row without own counts."""
    names, lines = Names(row.cell for row in rows), []
    for row in rows:
        counters = [start.counters.get(row.cell.id, {}) for start in starts]
        texts, rounds, accepted, drafted = (
            sum(counts.get(name, 0) for counts in counters)
            for name in ("texts", "rounds", "accepted", "drafted")
        )
        if row.draft_acceptance is None and rounds:
            share = f", {accepted / drafted:.3f} of what was drafted" if drafted else ""
            lines.append(
                f"Counters of the server, {names.full(row.cell)}: {1 + accepted / rounds:.2f} "
                f"tokens a round with a draft{share} accepted, over {texts:.0f} texts of batches "
                "without a failure; they are of no single text."
            )
    return lines


PROBLEMS = 164  # problems in HumanEval


def judged_notes(folder: Path, cells: Sequence[Cell]) -> list[str]:
    """Return how programs were run, then a line a cell with verdicts; [] without a log of them.

    A line has counts and each pass@k that has programs enough. DataError: a damaged log.
    """
    settings, judged = read_verdicts(folder / NAME)
    if not settings:
        return []
    lines = [f"Programs: {describe_settings(settings)}."]
    names = Names(cells)
    for cell in cells:
        results = [result for result in judged if result.cell == cell.id]
        if cell.task is None or cell.task.name != TASK or not results:
            continue
        problems = len({result.sample for result in results})
        partial = f"partial {problems}/{PROBLEMS} problems: " if problems < PROBLEMS else ""
        figures = "; ".join(line for line in estimate_lines(pass_at(results)) if "n/a:" not in line)
        lacking = without(results)
        apart = f" ({lacking} of them: no program in the answer)" if cell.chat else ""
        lines.append(
            f"{names.full(cell)}: {partial}{format_counts(counts(results))}{apart}; {figures}."
        )
    return lines
