"""A plan as a report: candidates with predictions and measurements, and the answer in words."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from spsbench.metrics.costs import Costs
from spsbench.metrics.intervals import FEWEST, Estimate
from spsbench.metrics.summaries import Summary
from spsbench.planning.candidates import candidate_of, replayable
from spsbench.planning.forecast.batch_gains import BatchForecasts, forecast_batches
from spsbench.planning.forecast.predictions import Prediction, tau_of
from spsbench.planning.forecast.recommendation import (
    Answer,
    Forecasts,
    Measured,
    Verdict,
    forecast_all,
    group,
)
from spsbench.planning.forecast.tables import rounds
from spsbench.planning.plan_folder import PlanRecord
from spsbench.reports.batch_figures import with_batch_figures
from spsbench.reports.columns import Column
from spsbench.reports.reporter import (
    Curve,
    Figure,
    Level,
    Panel,
    Point,
    Report,
    Section,
    Status,
    Table,
    Title,
)
from spsbench.reports.run_tables import tables
from spsbench.settings.cell import WARP, Cell, WarpSettings
from spsbench.settings.commands import Planning
from spsbench.settings.labels import drafting
from spsbench.settings.models import DEFAULT_DRAFT, ModelSpec
from spsbench.settings.options import flag_of
from spsbench.store.traces import Traces, read_traces

COLUMNS = (
    Column("measured", "speedup", 2, "x"),
    Column("predicted", "predicted_speedup", 2, "x"),
    Column("ceiling", "terms.ceiling_speedup", 2, "x"),
    Column("alpha", "alpha", 3),
    Column("tau", "terms.predicted_tau", 2),
    Column("tau meas.", "block_efficiency", 2),
    Column("ms/token", "terms.predicted_ms", 2),
    Column("ms meas.", "mean_token_time_ms", 2),
    Column("draft", "terms.draft_percent", 0, "%"),
    Column("target", "terms.target_percent", 0, "%"),
    Column("rest", "terms.rest_percent", 0, "%"),
    Column("work", "terms.work", 2),
)

STATUSES: Mapping[Verdict, Status] = {Verdict.SPECULATE: "good", Verdict.DO_NOT: "bad"}


@dataclass(frozen=True, eq=False)
class Planned:
    """The result of a plan: predictions, measurements, and the answer.

    Args:
        record: the inputs of the plan.
        planning: options of how it is shown: `batch`, `every`.
        measured: candidate name -> figures of real rounds.
        missing: candidate name -> reason for missing figures.
        folder: of the plan; None: made from files alone.
        incomplete: what a stopped plan has, and how to go on.
    """

    record: PlanRecord
    planning: Planning
    forecasts: Forecasts
    measured: Mapping[str, Measured] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None
    incomplete: str = ""

    @cached_property
    def cells(self) -> dict[str, Cell]:
        """Return the cells by the name of the candidate of each."""
        return {str(candidate_of(cell)): cell for cell in self.record.cells}

    @cached_property
    def batches(self) -> BatchForecasts | None:
        """Return predictions for several texts at a time (`batch`)."""
        return forecast_batches(self.planning.batch_sizes(), self.forecasts, self.cells)

    @property
    def answer(self) -> Answer:
        """Return whether to speculate, with which candidate, and why."""
        return self.forecasts.answer(self.measured)

    @property
    def command(self) -> str:
        """Return the command line that applies the plan."""
        answer = self.answer
        return command(self.cells[answer.best], answer)

    @property
    def report(self) -> Report:
        """Return the best K of each method, or every candidate, with the answer below."""
        answer = self.answer
        forecasts = list(self.forecasts.by_method)
        names = {str(forecast.candidate) for forecast in forecasts}
        forecasts += [
            f for f in self.forecasts.all if str(f.candidate) in self.measured.keys() - names
        ]
        if self.planning.every:
            forecasts = list(self.forecasts.all)
        forecasts.sort(key=lambda f: -f.speedup.mean)
        best = self.cells[answer.best]
        rows = [
            row(forecast, self.cells[str(forecast.candidate)], self.forecasts, self.measured)
            for forecast in forecasts
        ]
        predicted = {str(forecast.candidate) for forecast in self.forecasts.all}
        rows += [
            unpredicted_row(self.cells[name], figures)
            for name, figures in self.measured.items()
            if name not in predicted
        ]
        name = "plan" if self.folder is None else self.folder.name
        lines = [str(answer), *filter(None, [self.incomplete])]
        lines += [f"To paste: {command(best, answer)}"]
        by_batch = self.batches
        if by_batch is not None:
            lines += by_batch.remarks(self.forecasts.context)
        lines += self._remarks()
        title = Title(name, self.record.title)
        table = Table(
            title=title,
            rows=rows,
            columns=COLUMNS,
            paper=[None] * len(rows),
            remarks=lines,
            figure=figure(self.forecasts, self.measured, str(answer)),
            identity={
                "verdict": answer.verdict.value,
                "candidate": answer.best,
                "answer": str(answer),
                "command": command(best, answer),
                **({"incomplete": self.incomplete} if self.incomplete else {}),
                **({} if by_batch is None else {"batches": by_batch.values()}),
            },
        )
        if by_batch is not None:
            table = with_batch_figures(table, by_batch.rows, predicted=True)
        section = Section(
            title=f"Plan: {name}",
            status=STATUSES.get(answer.verdict, "open"),
            line=str(answer),
            notes=tuple(table.remarks[1:]),
            says="Lines are predicted from texts and costs; single points were measured by real "
            "rounds on prompts held back from the choice. A dashed line is the ceiling: the best "
            "K of every round in hindsight.",
            figures=(table.figure,),
            tables=(rounds(self.forecasts.costs),),
            answers=True,
        )
        return Report(name, [table], sections=[section])

    def _remarks(self) -> list[str]:
        """Return the assumptions of the predictions, and what was and was not measured."""
        lines = self.forecasts.remarks()
        if self.measured:
            lines.append(
                "Measured on prompts that were held back from the choice, interleaved with ArS. "
                "n/a: only the best methods are measured (`confirm`)."
            )
            few = min(figures.speedup.n for figures in self.measured.values())
            if any(figures.speedup.low is None for figures in self.measured.values()):
                lines.append(
                    f"What was measured has no interval: an interval needs {FEWEST} prompts, and "
                    f"{few} of those held back {'was' if few == 1 else 'were'} compared with ArS "
                    "(`held_back`)."
                )
        elif not self.missing and not self.incomplete:
            reason = self.planning.unmeasured or "the plan was made without real rounds"
            lines.append(f"Nothing was measured: {reason}.")
        lines += [
            f"{label} was run, and has no measured figures: {why}."
            for label, why in self.missing.items()
        ]
        lines += [
            f"{label} is not decided by what was measured (marked *): {figures.doubt}."
            for label, figures in self.measured.items()
            if figures.doubt
        ]
        for label, figures in self.measured.items():
            if figures.foretold is not None:
                lines.append(
                    f"{label}: on the held-back prompts themselves their traces say tau "
                    f"{figures.foretold:.2f}, and {figures.tau.mean:.2f} was measured."
                )
        if any(figures.loaded for figures in self.measured.values()):
            lines.append(
                "Other work kept this machine busy while the best were measured (marked *): their "
                "intervals are wider for it."
            )
        return lines


def row(
    forecast: Prediction, cell: Cell, forecasts: Forecasts, measured: Mapping[str, Measured]
) -> Summary:
    """Return the row of a candidate: measured figures in a benchmark's columns, and predictions."""
    figures = measured.get(str(forecast.candidate))
    high = forecasts.ceilings[str(group(forecast.candidate))]
    shares = forecast.shares

    def alone(value: float) -> Estimate:
        return Estimate(value, None, None, forecast.texts)

    other_shares = shares.sampling + shares.verify + shares.host + shares.unexplained
    parts = 100 * shares.draft, 100 * shares.target, 100 * other_shares
    hides = forecasts.costs.busy and not all(0 <= part <= 100 for part in parts)  # no shares
    draft, target, rest = [None] * 3 if hides else map(alone, parts)
    return Summary(
        cell=cell,
        samples=forecast.texts,
        n=forecast.texts,
        failures=0,
        cut=0,
        timed=0,
        horizon=cell.max_new_tokens,
        alpha=forecast.alpha,
        block_efficiency=None if figures is None else figures.tau,
        mean_token_time_ms=None if figures is None else figures.ms,
        speedup=None if figures is None else gain_column(figures),
        predicted_speedup=forecast.speedup,
        terms={
            "predicted_tau": forecast.tau,
            "predicted_ms": forecast.ms,
            "ceiling_speedup": alone(high),
            "draft_percent": draft,
            "target_percent": target,
            "rest_percent": rest,
            "work": alone(forecast.work),
        },
    )


def gain_column(figures: Measured) -> Estimate:
    """Return the speed-up of a row; one in doubt has no interval, so that it decides nothing."""
    gained = figures.speedup._replace(loaded=figures.loaded)
    return gained._replace(low=None, high=None, loaded=True) if figures.doubt else gained


def unpredicted_row(cell: Cell, figures: Measured) -> Summary:
    """Return the row of a candidate that was measured without a prediction."""
    return Summary(
        cell=cell,
        samples=figures.speedup.n,
        n=figures.speedup.n,
        failures=0,
        cut=0,
        timed=0,
        horizon=cell.max_new_tokens,
        block_efficiency=figures.tau,
        mean_token_time_ms=figures.ms,
        speedup=gain_column(figures),
    )


def figure(forecasts: Forecasts, measured: Mapping[str, Measured], title: str) -> Figure:
    """Return a plot of tau and speed-up by K: predicted lines, measured points, ceilings."""
    taus: list[Curve | Level] = []
    gains: list[Curve | Level] = []
    groups: dict[tuple[str, str], list[Prediction]] = {}
    for forecast in forecasts.all:
        groups.setdefault(group(forecast.candidate), []).append(forecast)
    for line, (key, members) in enumerate(groups.items()):
        name = ", ".join(key)
        by_k = sorted((f for f in members if f.candidate.k), key=lambda f: f.candidate.k or 0)
        if by_k:
            best = max(by_k, key=lambda f: f.speedup.mean)
            points = tuple(point(f, f.tau) for f in by_k)
            taus.append(Curve(name=name, points=points, line=line))
            points = tuple(point(f, f.speedup) for f in by_k)
            gains.append(Curve(name=name, points=points, line=line, best=point(best, best.speedup)))
        for forecast in members:
            figures = measured.get(str(forecast.candidate))
            if figures is None or not forecast.candidate.k:
                continue
            label, other = f"{name}, measured", len(groups) + line
            taus.append(Curve(name=label, points=(point(forecast, figures.tau),), line=other))
            if not figures.doubt:
                at = point(forecast, figures.speedup)._replace(loaded=figures.loaded)
                gains.append(Curve(name=label, points=(at,), line=other))
        high = forecasts.ceilings[str(key)]
        gains.append(Level(name=f"{name}, ceiling", y=high, line=line))
    gains.append(Level(name="ArS", y=1.0))
    return Figure(
        title=title,
        panels=(
            Panel(title="Tokens a round", x="K", y="tau", items=tuple(taus), whole=True),
            Panel(title="Speed-up", x="K", y="over ArS", items=tuple(gains), whole=True),
        ),
    )


def point(forecast: Prediction, value: Estimate) -> Point:
    """Return the point of a candidate at its K."""
    return Point(float(forecast.candidate.k or 0), value.mean, value.low, value.high)


def command(cell: Cell, answer: Answer) -> str:
    """Return the command line that applies the plan; without a verdict, a comparison with ArS."""
    target, draft = cell.target, cell.draft
    words = ["sps", "generate", flag_of("target"), target.id]
    words += _more("", target, ModelSpec(target.id))
    if answer.verdict in (Verdict.SPECULATE, Verdict.UNDECIDED):
        if draft is not None and draft.id != DEFAULT_DRAFT.get(target.id):
            words += [flag_of("draft"), draft.id]
            words += [flag_of("draft_revision"), draft.revision] if draft.revision else []
        words += _more("draft-", draft, target) if draft else []
        if cell.drafter.name != "model":
            words += [flag_of("drafter"), str(cell.drafter)]
        words += [flag_of("verifier"), str(cell.verifier)]
        words += (
            [flag_of("schedule"), str(cell.schedule)]
            if cell.k is None
            else [flag_of("k"), str(cell.k)]
        )
    else:
        words += [flag_of("k"), "0"]
    usual = WarpSettings()
    for name in WARP:
        value = getattr(cell, name)
        if cell.chat or value != getattr(usual, name):  # a chat has its model's defaults
            words += [flag_of(name), f"{value:g}"]
    words += [flag_of("chat")] if cell.chat else []
    words += [flag_of("system"), cell.system] if cell.system else []
    words += [flag_of("compare")] if answer.verdict is Verdict.UNDECIDED else []
    return shlex.join([*words, "PROMPT"])


def _more(prefix: str, model: ModelSpec, usual: ModelSpec) -> list[str]:
    """Return flags for the fields of a model that differ from `usual`; for a draft, the target."""
    words = []
    for name in ("weights", "device", "dtype", "engine", *([] if prefix else ["revision"])):
        value = getattr(model, name)
        if value != getattr(usual, name):
            words += [flag_of(prefix + name), str(value)]
    return words


def forecasts_of(
    record: PlanRecord,
    traces: Traces,
    costs: Costs,
    notify: Callable[[int, int], None] = lambda done, total: None,
) -> Forecasts:
    """Return the forecasts of the cells of a plan whose rule and draft the traces can predict.

    Raises:
        DataError: the costs lack a candidate.
    """
    traced = {name: (draft, traces.of(name)) for name, draft in traces.drafts.items()}
    candidates = map(candidate_of, filter(replayable, record.cells))
    return forecast_all(candidates, traced, costs, notify, record.new_prompts)


def real_rounds(
    folder: Path, cells: Sequence[Cell], confirm: str | None
) -> tuple[dict[str, Measured], dict[str, str]]:
    """Return by candidate the figures of real rounds, or the reason why they are missing.

    Args:
        confirm: the folder of the real rounds in that of the plan; None: nothing was measured.
    """
    figures: dict[str, Measured] = {}
    reasons: dict[str, str] = {}
    if confirm is None:
        return figures, reasons
    run = folder / confirm
    names = {bare(cell): str(candidate_of(cell)) for cell in cells}
    of_traces = taus(run, cells)
    for row in tables(run)[0].whole:
        name = names.get(bare(row.cell))
        gained, ms = row.speedup, row.mean_token_time_ms
        if name is None:
            continue
        if gained is not None and ms and row.block_efficiency:
            foretold = of_traces.get(name)
            figures[name] = Measured(gained, row.block_efficiency, ms, gained.loaded, foretold)
        elif not row.n:
            reasons[name] = f"{row.failures} of its generations failed, and none succeeded"
        elif not row.timed + row.loaded:
            reasons[name] = "all of its timings are of first calls"
        elif gained is None:
            reasons[name] = "no prompt was timed with it and with ArS"
    return figures, reasons


def taus(folder: Path, cells: Sequence[Cell]) -> dict[str, float]:
    """Return tau of candidates by the traces of the same prompts, to exclude prompts as a cause."""
    if not any(folder.glob("traces-*.jsonl")):
        return {}
    traces = read_traces([folder])
    by_candidate = {}
    for cell in cells:
        one, texts = candidate_of(cell), traces.of(drafting(cell))
        if replayable(cell) and texts:
            by_candidate[str(one)] = tau_of(one, traces.drafts[one.draft], texts)
    return by_candidate


def bare(cell: Cell) -> Cell:
    """Return the cell without its source of prompts."""
    return cell.but(task=None, prompt_version="", chat=False, system="")
