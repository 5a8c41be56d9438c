"""A plan as a report: candidates with predictions and measurements, and the answer in words."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from spsbench.errors import SpsError
from spsbench.heads.families import head_part
from spsbench.metrics.intervals import FEWEST, Estimate
from spsbench.metrics.summaries import Summary
from spsbench.metrics.sums import group_by
from spsbench.models.folder import local_folder
from spsbench.planning.forecast.batch_gains import BatchForecasts, forecast_batches, summary_row
from spsbench.planning.forecast.forecasts import Forecasts
from spsbench.planning.forecast.predictions import Prediction
from spsbench.planning.forecast.recommendation import (
    NO_GAIN,
    NOTICED,
    Decision,
    Measured,
    Recommendation,
)
from spsbench.planning.plan_folder import PlanRecord
from spsbench.registry import SERVED, TRIAL, attribute_at, is_installed
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
    curves,
)
from spsbench.settings.cell import DISTRIBUTION, Cell
from spsbench.settings.cell_from_options import OF_CELL
from spsbench.settings.commands import Planning
from spsbench.settings.method import Method
from spsbench.settings.models import DEFAULT_DRAFT, ModelSpec
from spsbench.settings.options import flag_of

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

KEPT = 0.95  # share of the base's speed-up below which another drafter is worth its trouble
CONTROL = 0.4  # tokens: heads of `nano` keep 0.1 to 0.4 over features of other rows

STATUSES: Mapping[Decision, Status] = {Decision.SPECULATE: "good", Decision.DO_NOT: "bad"}


@dataclass(frozen=True, eq=False)
class Planned:
    """The result of a plan: predictions, measurements, and the answer.

    `record` has the inputs of the plan; `planning` says how it is shown (`batch`, `every`).
    `measured` maps a method to its figures of real rounds, `missing` to the reason why it has none.
    `folder` is its own; None: made from files. `incomplete`: what a stopped plan has, how to go on.
    """

    record: PlanRecord
    planning: Planning
    forecasts: Forecasts
    measured: Mapping[Method, Measured] = field(default_factory=dict)
    missing: Mapping[Method, str] = field(default_factory=dict)
    folder: Path | None = None
    incomplete: str = ""

    @property
    def target(self) -> ModelSpec:
        """Return the target of the plan."""
        return self.record.cells[0].target

    @cached_property
    def cells(self) -> dict[Method, Cell]:
        """Return the cells by their methods."""
        return {Method.of(cell): cell for cell in self.record.cells}

    @cached_property
    def batches(self) -> BatchForecasts | None:
        """Return predictions for several texts at a time (`batch`)."""
        return forecast_batches(sorted(self.planning.batch), self.forecasts, self.cells)

    @cached_property
    def answer(self) -> Recommendation:
        """Return whether to speculate, with which candidate, and why."""
        return self.forecasts.answer(self.measured)

    @property
    def command(self) -> str:
        """Return the command line that applies the plan."""
        return apply_command(self.cells[self.answer.best], self.answer)

    @property
    def serving(self) -> str:
        """Return the command that serves the best candidate in vLLM.

        Empty: no constant K, no gain, an adapter, no extension for it, or vLLM cannot draft so.
        """
        cell = self.cells[self.answer.best]
        gains = cell.k and self.answer.verdict not in NO_GAIN
        if gains and not cell.target.adapter and is_installed(SERVED):  # servers rename adapters
            with suppress(SpsError):
                target = local_folder(cell.target.id) or cell.target.id
                return str(attribute_at(SERVED)(str(cell.drafter), cell.k, str(target))[1])
        return ""

    @property
    def report(self) -> Report:
        """Return the report: one table of candidates with remarks and a plot, and a page's section.

        Rows, no ArS, are by predicted speed-up: the best K of each method and what was measured,
        or all with `every`. Remarks begin with the answer and commands. With `batch` there are rows
        by batch too, with ArS; DataError: costs have no such batches. UsageError: no constant K.
        """
        answer, by_batch, forecasts = self.answer, self.batches, self.forecasts
        best = {f.method for f in forecasts.by_method} | self.measured.keys()
        predicted = {f.method: f for f in forecasts.all}
        ordered = sorted(predicted, key=lambda method: -predicted[method].speedup.mean)
        methods = [method for method in ordered if self.planning.every or method in best]
        methods += [method for method in self.measured if method not in predicted]
        rows = [
            candidate_row(self.cells[m], forecasts, predicted.get(m), self.measured.get(m))
            for m in methods
        ]
        name = "plan" if self.folder is None else self.folder.name
        lines = [str(answer), *filter(None, [self.incomplete]), f"To paste: {self.command}"]
        lines += [f"To serve with vLLM: {self.serving}"] if self.serving else []
        table = Table(
            title=Title(name, self.record.title),
            rows=rows,
            columns=COLUMNS,
            remarks=[*lines, *(by_batch.remarks if by_batch else ()), *self._remarks()],
            figure=plan_figure(str(answer), forecasts.all, self.measured, forecasts.ceilings),
            identity={
                "verdict": answer.verdict.value,
                "candidate": str(answer.best),
                "answer": str(answer),
                "command": self.command,
                **({"serving": self.serving} if self.serving else {}),
                **({"incomplete": self.incomplete} if self.incomplete else {}),
                **({"batches": by_batch.values} if by_batch else {}),
            },
        )
        if by_batch:
            table = with_batch_figures(table, by_batch.rows, predicted=True)
        section = Section(
            title=f"Plan: {name}",
            status=STATUSES.get(answer.verdict, "open"),
            line=str(answer),
            notes=table.remarks[1:],
            says="Lines are predicted from texts and costs; single points were measured by real "
            "rounds on prompts held back from the choice. A dashed line is the ceiling: the best "
            "K of every round in hindsight.",
            figures=[table.figure],
            answers=True,
        )
        return Report(name, [table], sections=[section])

    def trial(self, adapted: "Planned", steps: int, options: Mapping[str, Any]) -> str:
        """Train this base's drafter on texts of `adapted`; tell the gain in speed-up and alpha.

        "": `adapted` lacks it. Files go to its folder. `options`: the user's, with `prompts`.
        """
        best, cells = drafter_in(self.forecasts).method.drafting, adapted.cells
        cell = next((cell for method, cell in cells.items() if method.drafting == best), None)
        if cell is None:
            return ""
        if cell.draft is None:  # heads that no trace predicts: trees, parts of hybrids
            cell = next((each for each in cells.values() if head_part(each.drafter)), cell)
        return str(attribute_at(TRIAL)(cell, steps, adapted.folder, options))

    def with_adapters(self, adapted: Sequence["Planned"], trials: Mapping[str, str]) -> Report:
        """Return this plan of a base and its adapters' as one table, with advice for each.

        `trials`: adapter -> what is appended to its advice, if anything. Rows and sections are of
        the base, then of each adapter; a section before them has the advice.
        """
        reports = {plan.target.adapter or "base": plan.report for plan in (self, *adapted)}
        advice = {plan.target.adapter: advise(self, plan) for plan in adapted}
        advice = {name: f"{line}{trials.get(name, '')}" for name, line in advice.items()}
        lines = [f"{name}: {line}" for name, line in advice.items()]
        tables = {name: report.tables[0] for name, report in reports.items()}
        table = replace(
            tables["base"],
            rows=[row for table in tables.values() for row in table.rows],
            remarks=[*lines, *(f"{name}: {r}" for name, t in tables.items() for r in t.remarks)],
            identity={"advice": advice, **{name: t.identity for name, t in tables.items()}},
        )
        section = Section(title="By adapter", status="open", line=" ".join(lines))
        sections = [replace(r.sections[0], title=f"Plan: {name}") for name, r in reports.items()]
        return replace(reports["base"], tables=[table], sections=[section, *sections])

    def _remarks(self) -> list[str]:
        """Return sentences: assumptions of the predictions, then what was measured or why not."""
        measured = self.measured
        few = min((figures.speedup.n for figures in measured.values()), default=0)
        reason = self.planning.unmeasured or "the plan was made without real rounds"
        lines = self.forecasts.remarks()
        if measured:
            lines.append(
                "Measured on prompts that were held back from the choice, interleaved with ArS. "
                "n/a: only the best methods are measured (`confirm`)."
            )
        if any(figures.speedup.low is None for figures in measured.values()):
            lines.append(
                f"What was measured has no interval: an interval needs {FEWEST} prompts, and "
                f"{few} of those held back {'was' if few == 1 else 'were'} compared with ArS "
                "(`held_back`)."
            )
        if not (measured or self.missing or self.incomplete):
            lines.append(f"Nothing was measured: {reason}.")
        lines += [
            f"{name} was run, and has no measured figures: {why}."
            for name, why in self.missing.items()
        ]
        lines += [
            f"{name} is not decided by what was measured (marked *): {figures.doubt}."
            for name, figures in measured.items()
            if figures.doubt
        ]
        lines += [
            f"{name}: on the held-back prompts themselves their traces say tau "
            f"{figures.predicted_tau:.2f}, and {figures.tau.mean:.2f} was measured."
            for name, figures in measured.items()
            if figures.predicted_tau is not None
        ]
        lines += [
            f"{cell.draft}: a draft keeps {kept:.2f} tokens, below {CONTROL:g}, as heads of nano "
            f"do over features of other rows. `sps verify head {flag_of('target')} "
            f"{cell.target.id} {flag_of('draft')} {cell.draft and cell.draft.id} "
            f"{flag_of('drafter')} {cell.drafter}` tells whether it is wired as it was trained."
            for cell, kept in self._heads().values()
            if kept < CONTROL and not cell.target.adapter
        ]
        if any(figures.speedup.loaded for figures in measured.values()):
            lines.append(
                "Other work kept this machine busy while the best were measured (marked *): their "
                "intervals are wider for it."
            )
        return lines

    def _heads(self) -> dict[str, tuple[Cell, float]]:
        """Map each head, "drafter draft", to (cell of most tau, measured if it was, tau - 1)."""
        heads: dict[str, tuple[Cell, float]] = {}
        taus = {f.method: f.tau for f in self.forecasts.all}
        for name, tau in {**taus, **{m: f.tau for m, f in self.measured.items()}}.items():
            cell, kept = self.cells[name], tau.mean - 1
            head = f"{cell.drafter} {cell.draft}"
            if head_part(cell.drafter) and kept > heads.get(head, (cell, -1.0))[1]:
                heads[head] = cell, kept
        return heads


def drafter_in(forecasts: Forecasts) -> Prediction:
    """Return the best prediction with a model or a head, or else the best of all."""
    return next((f for f in forecasts.by_method if f.method.drafting.model), None) or forecasts.best


def advise(base: Planned, adapted: Planned) -> str:
    """Say what to do with the base's drafter under an adapter, with predicted speed-ups.

    That drafter is the base's best with a model or a head, else the best of all. The advice: plan
    with it (the adapter's plan lacks it), do not speculate (nor on the base), keep it (`KEPT` of
    its gain, and the best), use the best without a model (as good, or no draft), or train it.
    """
    ranked, target = adapted.forecasts.by_method, adapted.target
    before = drafter_in(base.forecasts)
    now = next((f for f in ranked if f.method.drafting == before.method.drafting), None)
    if now is None:
        return f"plan the adapter with {before.method.drafting} too: its plan has no such drafter."
    free = next((f for f in ranked if not f.method.drafting.model), now)
    cell = adapted.cells[now.method]
    head, gain, other = head_part(cell.drafter), now.speedup.mean, free.speedup.mean
    usual = before.speedup.mean
    if max(gain, other) < NOTICED and usual < NOTICED:
        advice = "do not speculate"
    elif gain >= max(KEPT * usual, other):
        advice = "keep the drafter"
    elif other >= max(gain, NOTICED) or cell.draft is None:
        advice = f"use {free.method.drafting}"
    else:
        kind = f"head {flag_of('kind')} {head.name}" if head else "draft"
        advice = (
            f"train it on this adapter's texts (sps train {kind} {flag_of('target')} {target.id} "
            f"{flag_of('adapter')} {target.adapter} {flag_of('from')} {cell.draft.id}): "
            f"up to {usual:.2f}x, where it becomes as good as for the base"
        )
    figures = (f"{f.speedup.mean:.2f}x (tau {f.tau.mean:.2f})" for f in (now, before, free))
    words = f"{now.method} gives ", f"on the base {before.method} ", f"{free.method} "
    return f"{advice}. Predicted: {'; '.join(map(''.join, zip(words, figures, strict=True)))}."


def candidate_row(
    cell: Cell, forecasts: Forecasts, forecast: Prediction | None, figures: Measured | None
) -> Summary:
    """Return the row of a candidate: its figures and forecast in columns, absent where None.

    A measured speed-up in doubt has no interval, so that it decides nothing. Shares of a round's
    time are left out where costs of a busy machine make one less than 0 or more than 100 %.
    """
    values: dict[str, Any] = {}
    if figures is not None:
        gained = figures.speedup
        doubtful = gained._replace(low=None, high=None, loaded=True)
        values["speedup"] = doubtful if figures.doubt else gained
        values |= {"block_efficiency": figures.tau, "mean_token_time_ms": figures.ms}
    if forecast is None:
        return summary_row(cell, 0 if figures is None else figures.speedup.n, **values)

    def alone(value: float) -> Estimate:
        return Estimate(value, None, None, forecast.texts)

    percents = {part: 100 * share for part, share in forecast.shares.items()}
    draft, target = percents.pop("draft"), percents.pop("target")
    parts = {"draft": draft, "target": target, "rest": sum(percents.values())}
    hides = forecasts.costs.busy and not all(0 <= part <= 100 for part in parts.values())
    values |= {"alpha": forecast.alpha, "predicted_speedup": forecast.speedup}
    values["terms"] = {
        "predicted_tau": forecast.tau,
        "predicted_ms": forecast.ms,
        "ceiling_speedup": alone(forecasts.ceilings[forecast.method.group]),
        **{f"{name}_percent": None if hides else alone(part) for name, part in parts.items()},
        "work": alone(forecast.work),
    }
    return summary_row(cell, forecast.texts, **values)


def plan_figure(
    title: str,
    predictions: Iterable[Prediction],
    measured: Mapping[Method, Measured],
    ceilings: Mapping[Method, float],
    *,
    priced: bool = True,
) -> Figure:
    """Return a plot of tau and, where `priced`, of the speed-up, by K; K = 0 is left out.

    Each draft and rule has a predicted line, points where it was `measured` (no speed-up in doubt),
    and its ceiling; ArS is a level at 1.
    """
    taus: list[Curve | Level] = []
    gains: list[Curve | Level] = []
    groups = group_by(predictions, lambda f: f.method.group)
    for line, (group, members) in enumerate(groups.items()):
        by_k = {k: f for f in sorted(members, key=lambda f: f.method.k or 0) if (k := f.method.k)}
        name, label, other = str(group), f"{group}, measured", len(groups) + line
        taus += curves([(name, (Point.of(k, f.tau) for k, f in by_k.items()))], line)
        points = [Point.of(k, f.speedup) for k, f in by_k.items()]
        top = max(filter(None, points), key=lambda point: point.y, default=None)
        gains += curves([(name, points)], line, best=top)
        for k, forecast in by_k.items():
            if figures := measured.get(forecast.method):
                gained = None if figures.doubt else figures.speedup
                taus += curves([(label, [Point.of(k, figures.tau)])], other)
                gains += curves([(label, [Point.of(k, gained)])], other)
        if group in ceilings:
            gains.append(Level(name=f"{name}, ceiling", y=ceilings[group], line=line))
    gains.append(Level(name="ArS", y=1.0))
    panels = (
        Panel(title="Tokens a round", x="K", y="tau", items=taus, whole=True),
        Panel(title="Speed-up", x="K", y="over ArS", items=gains, whole=True),
    )
    return Figure(title=title, panels=panels[: 1 + priced])


def apply_command(cell: Cell, answer: Recommendation) -> str:
    """Return the answer's `sps generate` line: K = 0 without a gain, `--compare` if undecided."""
    target, draft, words = cell.target, cell.draft, ["sps", "generate"]

    def add(name: str, value: Any, default: Any = None) -> None:
        if value != default:
            words.extend([flag_of(name), f"{value:g}" if isinstance(value, float) else str(value)])

    def add_model(prefix: str, model: ModelSpec, default: ModelSpec) -> None:
        for name in ("weights", "adapter", "device", "dtype", "engine"):
            add(prefix + name, getattr(model, name), getattr(default, name))

    add("target", target.id)
    add_model("", target, ModelSpec(target.id))
    add("revision", target.revision)
    if answer.verdict in (Decision.SPECULATE, Decision.UNDECIDED):
        if draft is not None:
            if draft.id != DEFAULT_DRAFT.get(target.id):
                add("draft", draft.id)
                add("draft_revision", draft.revision)
            add_model("draft-", draft, replace(target, adapter=""))
        add("drafter", str(cell.drafter), "model")
        add("verifier", cell.verifier)
        add(*("schedule", cell.schedule) if cell.k is None else ("k", cell.k))
    else:
        add("k", 0)
    for name in DISTRIBUTION:  # a chat has its model's defaults
        value, default = getattr(cell, name), OF_CELL[name].default
        for one in value if isinstance(value, tuple) else (value,):
            add(name, one, None if cell.chat else default)
    words += [flag_of("chat")] if cell.chat else []
    add("system", cell.system, "")
    words += [flag_of("compare")] if answer.verdict is Decision.UNDECIDED else []
    return shlex.join([*words, "PROMPT"])
