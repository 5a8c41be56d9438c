"""Costs of rounds that are assumed, not measured: by ratios, by a roofline, by the closed forms.

With alpha the chance that a drafted token is accepted, alike in every slot, c the cost of a drafted
token and r that of a further row, both in plain passes:

    E[tokens] = (1 - alpha^(K + 1)) / (1 - alpha)            Leviathan et al. 2023, equation 1
    speed-up  = E[tokens] / (1 + K (c + r))                   Theorem 3.8 at r = 0
    work      = (K c + K + 1) / E[tokens]                     Theorem 3.11, operations over plain

Theorem 3.11 counts operations: its c is a ratio of operations, for which the ratio of costs stands.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from spsbench.errors import UsageError
from spsbench.metrics.costs import PLAIN, Costs, line
from spsbench.metrics.costs_file import read_costs
from spsbench.metrics.rates import expected_tokens
from spsbench.metrics.surfaces import Surface
from spsbench.planning.logs.texts import LOOK_UP, priced_model
from spsbench.reports.reporter import TextTable
from spsbench.settings.commands import LogOptions
from spsbench.settings.method import Drafting
from spsbench.tables import read_table

ASSUMED_DRAFT, ASSUMED_ROW = 0.1, 0.05  # by which K is chosen where no costs are named
ASSUMPTION = (
    f"here a further row is assumed to cost {ASSUMED_ROW:g}, and a drafted token of a model "
    f"{ASSUMED_DRAFT:g}, of a plain pass"
)

TABLE = read_table(__file__, "roofline.toml")
DEVICES: Mapping[str, list[float]] = TABLE["devices"]
FIELDS: Mapping[str, float] = TABLE["fields"]
LONGEST = 1 << 22  # tokens of context


def assumed_costs(
    log_options: LogOptions,
    path: Path | None,
    batches: Sequence[int],
    models: Sequence[str],
    most: int,
) -> tuple[Costs, str]:
    """Return costs of rounds, and in words what they rest on; "": none were named or measured.

    The source is `roofline` or the ratios of `log_options` (of two, a missing one is 0), or a
    measured table in the file `path`; else `ASSUMED_DRAFT` and `ASSUMED_ROW`. `models` are names of
    draft models, `most` is the largest K, and `batches` are texts of a batch, which a roofline
    alone prices. Look-ups are free, but for those that the table has. UsageError: two sources,
    batches without a roofline, or as `parse_roofline`. SpsError: an unusable table.
    """
    draft, row, roofline = log_options.draft_ratio, log_options.row_ratio, log_options.roofline
    by_ratios = draft is not None or row is not None
    if (path is not None) + by_ratios + (roofline is not None) > 1:
        raise UsageError(
            "`costs`, `roofline` and ratios (`draft_ratio`, `row_ratio`): expected one source of "
            "the costs of rounds. Leave the others out"
        )
    if roofline is not None:
        fields = parse_roofline(roofline)
        about = (
            f"A roofline, not a measurement: {fields['params']:.3g} weights of "
            f"{fields['weight_bytes']:g} bytes at {fields['bandwidth']:.3g} B/s and "
            f"{fields['flops']:.3g} operations/s."
        )
        runs_model = {LOOK_UP: False, **dict.fromkeys(map(priced_model, models), True)}
        return roofline_costs(fields, runs_model, batches, most), about
    if list(batches) != [1]:
        raise UsageError(
            "`batch` with a log: expected costs of batches, which a roofline gives. Add `roofline` "
            "h100,params=8e9, or leave `batch` out"
        )
    if path is not None:
        table = read_costs(path)
        look_up = replace(table.drafter(PLAIN), draft=line(0.0, 0.0))
        costs = replace(table, arms={LOOK_UP: look_up, **table.arms})
        return costs, "Rounds are priced by the measured table of costs."
    draft, row = (draft or 0.0, row or 0.0) if by_ratios else (ASSUMED_DRAFT, ASSUMED_ROW)
    by_model = f"a drafted token of a model costs {draft:g}, " if models else ""
    about = f"In passes of plain sampling {by_model}a further row {row:g}; a look-up is free."
    drafts = {LOOK_UP: 0.0, **dict.fromkeys(map(priced_model, models), draft)}
    return Costs.of_ratios(row, drafts), about if by_ratios else ""


def parse_roofline(text: str) -> dict[str, float]:
    """Return the fields of `h100,params=8e9,kv_bytes=131072`, or of `bandwidth=...,flops=...`.

    UsageError: an unknown device or field, a number that is not finite or below 0, or no bandwidth,
    operations (`flops`) or `params`. Other fields have defaults.
    """
    fields = dict(FIELDS)
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, number = part.partition("=")
        if not equals and part.lower() in DEVICES:
            fields["bandwidth"], fields["flops"] = DEVICES[part.lower()]
            continue
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if name not in FIELDS or not 0 <= value < math.inf:
            raise UsageError(
                f"`roofline` {part!r}: expected a device ({', '.join(DEVICES)}) or one of "
                f"{', '.join(FIELDS)} with a number. Change it"
            )
        fields[name] = value
    for name in ("bandwidth", "flops", "params"):
        if not fields[name] > 0:
            raise UsageError(
                f"`roofline` without {name}: expected a number above 0. Add {name}=..., or name a "
                f"device: {', '.join(DEVICES)}"
            )
    return fields


def roofline_costs(
    fields: Mapping[str, float],
    drafters: Mapping[Drafting, bool],
    batches: Sequence[int],
    most: int,
) -> Costs:
    """Return the costs of a roofline: exact at whole tokens, and to a token of context.

    `drafters`: drafter -> whether it runs the draft model, else it is free. `batches` are texts of
    a batch, to which 1 is added; `most` is the largest K.
    """
    sizes = sorted({1, *batches})

    def drafting(size: int, runs_model: bool) -> Surface:
        token = seconds(fields, fields["draft_params"], 1, 0.0, size) if runs_model else 0.0
        return line(token, token)

    return Costs.of_passes(
        {size: passes(fields, size, most + 1) for size in sizes},
        {name: {size: drafting(size, model) for size in sizes} for name, model in drafters.items()},
        dict(fields),
    )


def seconds(
    fields: Mapping[str, float], params: float, rows: int, context: float, batch: int
) -> float:
    """Return a roofline's seconds of a pass over `rows` of each text; field `context` overrides."""
    if not params:
        return 0.0
    cached = context if math.isnan(fields["context"]) else fields["context"]
    read = params * fields["weight_bytes"] + batch * cached * fields["kv_bytes"]
    operations = 2.0 * params * rows * batch
    return max(read / fields["bandwidth"], operations / fields["flops"])


def passes(fields: Mapping[str, float], batch: int, most: int) -> Surface:
    """Return the seconds of a pass of the target over 1 .. `most` rows of each text, by context.

    Contexts are 0, `LONGEST` and where the line between bends; 0 alone where none matters.
    """
    params, rows, cached = fields["params"], range(1, most + 1), batch * fields["kv_bytes"]
    contexts = {0}
    if cached and math.isnan(fields["context"]):
        contexts.add(LONGEST)
        for n in rows:  # where reads overtake operations, the line has a corner
            read = 2 * params * n * batch * fields["bandwidth"] / fields["flops"]
            corner = (read - params * fields["weight_bytes"]) / cached
            if 0 < corner < LONGEST - 1:
                contexts |= {int(corner), int(corner) + 1}
    axis = tuple(sorted(contexts))
    grid = [[seconds(fields, params, n, context, batch) for context in axis] for n in rows]
    return Surface(tuple(rows), axis, np.array([grid]))


def rates_of(text: str) -> list[float]:
    """Return acceptance rates: `0.5,0.7,0.9`; UsageError: something else, or one outside 0..1."""
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = [math.nan]
    if not all(0 <= rate <= 1 for rate in rates):
        raise UsageError(f"`alpha` {text!r}: expected numbers from 0 to 1, as 0.5,0.7,0.9")
    return rates


def formula_values(
    rates: Sequence[float], ks: Sequence[int], draft: float, row: float
) -> dict[str, Any]:
    """Return inputs and results by name; as [alpha][K], `expected_tokens`, `speedup` and `work`.

    `best_k` has for each rate the K that gains most, or None if none does. `draft` (`draft_ratio`)
    and `row` (`row_ratio`) are costs of a drafted token and of a further row, in plain passes.
    """
    depths = np.array(ks)
    tokens = expected_tokens(np.array(rates)[:, None], depths)
    gains = (tokens / (1 + depths * (draft + row))).tolist()
    return {
        "alpha": list(rates),
        "k": list(ks),
        "draft_ratio": draft,
        "row_ratio": row,
        "expected_tokens": tokens.tolist(),
        "speedup": gains,
        "best_k": [ks[by_k.index(max(by_k))] if max(by_k) > 1 else None for by_k in gains],
        "work": ((depths * draft + depths + 1) / tokens).tolist(),
    }


def formula_tables(values: Mapping[str, Any]) -> list[TextTable]:
    """Return tables of E[tokens], speed-up and best K, and work: a row a rate, a column a K."""
    heads = ["alpha", *(f"K = {k}" for k in values["k"])]
    costs = (
        f"a drafted token costs {values['draft_ratio']:g} and a further row "
        f"{values['row_ratio']:g} of a plain pass"
    )

    def rows(name: str, unit: str = "") -> list[list[str]]:
        by_rate = zip(values["alpha"], values[name], strict=True)
        return [[f"{alpha:g}", *(f"{x:.2f}{unit}" for x in by_k)] for alpha, by_k in by_rate]

    best = ["none" if k is None else f"K = {k}" for k in values["best_k"]]
    gains = [[*cells, k] for cells, k in zip(rows("speedup", "x"), best, strict=True)]
    return [
        TextTable("E[tokens] of a round", heads, rows("expected_tokens")),
        TextTable(f"Speed-up, where {costs}", [*heads, "best"], gains),
        TextTable("Operations over plain sampling", heads, rows("work")),
    ]
