"""The answer of a log: a sentence, tables, what it rests on, and settings to paste."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from spsbench.metrics.intervals import Estimate
from spsbench.planning.logs.conduct import LogPlan
from spsbench.planning.logs.replay import (
    ASSUMED,
    DEPTHS,
    NO_MODEL,
    Extreme,
    Method,
    Sums,
    groups,
)
from spsbench.planning.logs.settings_to_paste import engine_settings
from spsbench.reports.figures import Curve, Figure, Level, Panel, Point, Section, TextTable
from spsbench.reports.table import Bar

SHOWN = 5  # methods in detailed tables
NOTICED = 1.02  # speed-ups from which speculation is advised, as in other plans
TITLE = "Plan from logs"
ASSUMPTION = (
    f"here a further row is assumed to cost {ASSUMED.row:g}, and a drafted token of a model "
    f"{ASSUMED.draft:g}, of a plain pass"
)


@dataclass(frozen=True)
class LogAnswer:
    """What a replayed log says.

    Args:
        plan: after `LogPlan.run`.
        ms: milliseconds of a plain token, where a file of costs told them.
        every: whether detailed tables show all methods, not the best `SHOWN`.
    """

    plan: LogPlan
    ms: float | None = None
    every: bool = False

    @property
    def rows(self) -> list[tuple[Method, Sums]]:
        """Return every method at its best K, the best first."""
        gain = self.plan.replay.gain
        best = [
            (method, max(by_k, key=lambda sums: gain(method, sums)))
            for method, by_k in self.plan.replay.sums.items()
        ]
        return sorted(best, key=lambda row: -gain(*row))

    @property
    def detailed(self) -> list[tuple[Method, list[Sums]]]:
        """Return the methods of detailed tables with the sums of each K, the best first."""
        rows = self.rows if self.every else self.rows[:SHOWN]
        return [(method, self.plan.replay.sums[method]) for method, _ in rows]

    def sentence(self) -> str:
        """Return what to do, in a sentence or two."""
        method, sums = self._advised()
        tau = sums.tau()
        start = (
            f"{method.drafter}, K = {sums.k}, would have made {_bound(method)}{spread(tau)} tokens "
            f"a round on these {sums.requests:,} requests."
        )
        if not self.plan.prices:
            return (
                f"{start} It gains where a round costs less than {tau.mean:.2f} plain passes, its "
                f"drafting included. Costs decide on K: {ASSUMPTION}. Name yours by `row_ratio`, "
                "`roofline` or `costs`."
            )
        gain = sums.speedup(0)
        if gain.mean < NOTICED:
            return f"Do not speculate by these costs: {gain.mean:.2f}x at best. {start}"
        sure = gain.low is not None and gain.low > 1
        advice = "Speculate" if sure else "Not decided"
        return (
            f"{advice}: {method.drafter}, K = {sums.k}: {spread(gain, 'x')} predicted. {start}"
            + self._milliseconds(gain)
        )

    def _milliseconds(self, gain: Estimate) -> str:
        if self.ms is None:
            return ""
        return f" A token that takes {self.ms:.2f} ms would take {self.ms / gain.mean:.2f} ms."

    def _advised(self) -> tuple[Method, Sums]:
        """Return the best row that can be chosen: no upper bound, nothing that was recorded."""
        usable = [
            row
            for row in self.rows
            if row[0].bound != "at most" and "recorded:" not in row[0].drafter
        ]
        return (usable or self.rows)[0]

    def tables(self) -> list[TextTable]:
        """Return all tables: methods, K, groups, slots, depths, requests."""
        return [
            self._methods(),
            self._by_k(),
            *self._by_group(),
            self._by_slot(),
            self._by_depth(),
            self._requests(),
        ]

    def _methods(self) -> TextTable:
        prices = self.plan.prices
        unlike = len({sums.requests for _, sums in self.rows}) > 1
        rows = []
        for method, sums in self.rows:
            kept, length = sums.kept_share, sums.acceptance_length
            row = [
                method.drafter,
                method.rule,
                str(sums.k),
                _bound(method) + spread(sums.tau()),
                "n/a" if length is None else f"{length:.2f}",
                "n/a" if kept is None else f"{100 * kept:.0f} %",
                f"{self.work(method, sums):.2f}",
            ]
            row += [f"{sums.requests:,}"] * unlike
            row += [_bound(method) + spread(sums.speedup(i), "x") for i in range(len(prices))]
            rows.append(row)
        batched = len(prices) > 1
        speedups = [f"batch {p.batch}" if batched else "speed-up" for p in prices]
        return TextTable(
            "From the log: each drafter at its best K",
            [
                "drafter",
                "rule",
                "K",
                "tau",
                "vLLM's",
                "kept",
                "work",
                *["requests"] * unlike,
                *speedups,
            ],
            rows,
            self.remarks(),
            names=2,
        )

    def work(self, method: Method, sums: Sums) -> float:
        """Return operations over those of plain sampling (Leviathan et al. 2023, Theorem 3.11).

        Rows of the target a token, and of a draft model the share that a token of it takes.
        """
        rows = (1 + sums.drafted) / sums.tau().mean
        if method.rule in NO_MODEL:
            return rows
        return rows + self.draft_operations * sums.drafted / sums.tau().mean

    @property
    def draft_operations(self) -> float:
        """Return the operations of a drafted token over those of a row of the target."""
        for price in self.plan.prices:
            params = getattr(price, "draft_params", 0.0) / getattr(price, "params", 1.0)
            return float(params or getattr(price, "draft", 0.0))
        return 0.0

    def _by_k(self) -> TextTable:
        ks = self.plan.ks
        rows = [
            [method.drafter, method.rule, *(f"{of_k.tau().mean:.2f}" for of_k in sums)]
            for method, sums in self.detailed
        ]
        return TextTable(
            "Tokens a round by K", ["drafter", "rule", *(f"K = {k}" for k in ks)], rows, names=2
        )

    def _by_group(self) -> Iterator[TextTable]:
        names = sorted(self._advised()[1].by_group)
        if len(names) < 2:
            return
        rows = [
            [m.drafter, m.rule, str(s.k), *(f"{groups(s).get(name, 1.0):.2f}" for name in names)]
            for m, s in self.rows
        ]
        yield TextTable("Tokens a round by group", ["drafter", "rule", "K", *names], rows, names=2)

    def _by_slot(self) -> TextTable:
        most = max(self.plan.ks)
        rows = []
        for method, sums in self.detailed:
            last = sums[-1]
            shares = [
                f"{100 * kept / tested:.0f} %" if tested else "n/a"
                for kept, tested in zip(last.kept, last.tested, strict=True)
            ]
            rows.append([method.drafter, method.rule, *shares])
        return TextTable(
            f"Kept of the tested tokens, by place in the draft (K = {most})",
            ["drafter", "rule", *map(str, range(1, most + 1))],
            rows,
            names=2,
        )

    def _by_depth(self) -> TextTable:
        ends = [*DEPTHS[1:], None]
        heads = [
            f"from {first}" if end is None else f"{first} to {end - 1}"
            for first, end in zip(DEPTHS, ends, strict=True)
        ]
        rows = [
            [
                method.drafter,
                str(sums.k),
                *(f"{emitted / n:.2f}" if n else "n/a" for n, emitted in sums.by_depth),
            ]
            for method, sums in self.rows[: None if self.every else SHOWN]
        ]
        return TextTable("Tokens a round by place in the answer", ["drafter", "K", *heads], rows)

    def _requests(self) -> TextTable:
        method, sums = self._advised()
        most = sorted(sums.most, reverse=True)
        least = sorted((Extreme(-e.tau, e.request, e.tokens) for e in sums.least), key=lambda e: e)
        rows = [
            [word, extreme.request, f"{extreme.tau:.2f}", str(extreme.tokens)]
            for word, extremes in (("most", most), ("least", least))
            for extreme in extremes
        ]
        return TextTable(
            f"Requests that gain most and least with {method.drafter}, K = {sums.k}",
            ["gains", "request", "tau", "tokens"],
            rows,
            names=2,
        )

    def remarks(self) -> list[str]:
        """Return what the figures rest on, and what was left out."""
        plan, replay = self.plan, self.plan.replay
        formats = ", ".join(plan.reader.formats)
        lines = [
            f"{replay.requests:,} requests, {replay.tokens:,} tokens ({formats}); intervals are "
            "over requests. Every exact rule keeps the same tokens of a draft by rule.",
            "tau: tokens a round, over all rounds. vLLM's: its mean acceptance length, accepted "
            "tokens a round with a draft, and one; rounds without a draft are left out.",
            "kept: of the drafted tokens whose places the answers have. work: operations over "
            "plain sampling's, a row of the target each, and the draft's.",
        ]
        if plan.of_servers:
            lines.append(
                f"{plan.of_servers:,} requests as vLLM serves them: the pass over the prompt gives "
                "the first token without a draft, and is no round."
            )
        if plan.without_prompt:
            lines.append(
                f"{plan.without_prompt:,} of {replay.requests:,} requests have no prompt, from "
                "which drafters copy (`prompts`): more would be kept with them."
            )
        lines += [f"{n:,} left out: {why}." for why, n in plan.reader.left_out.most_common()]
        lines += [f"{n:,} texts not read: {why}." for why, n in plan.unread.most_common()]
        lines += [f"{n:,} without sps and block: {why}." for why, n in plan.without_q.most_common()]
        if plan.without_q and any(method.rule == "match" for method in replay.sums):
            lines.append("match is a lower bound for sps: p(x) is at most min(1, p(x) / q(x)).")
        if plan.models and plan.assumed:
            lines.append(
                f"{plan.assumed:,} requests name no temperature: "
                f"{plan.warp.temperature:g} was assumed (`temperature`)."
            )
        if plan.tokens.compared:
            lines.append(
                f"The tokenizer reads {plan.tokens.different:,} of {plan.tokens.compared:,} "
                "answers otherwise than their logged ids; ids were taken."
            )
        if any("shared=true" in method.drafter for method in replay.sums):
            lines.append("shared=true looks up earlier answers of the log, in its order.")
        lines += dict.fromkeys(price.words for price in plan.prices)
        return lines

    def pasted(self) -> list[str]:
        """Return settings of engines for the advised method."""
        method, sums = self._advised()
        return engine_settings(method.drafter, sums.k, model=method.rule not in NO_MODEL)

    def figure(self) -> Figure:
        """Return tau, and the speed-up where costs are known, by K."""
        taus, gains = [], list[Curve | Level]()
        for line, (method, sums) in enumerate(self.plan.replay.sums.items()):
            name = f"{method.drafter}, {method.rule}"
            taus.append(Curve(name=name, points=points(sums, Sums.tau), line=line))
            if self.plan.prices:
                curve = points(sums, lambda of_k: of_k.speedup(0))
                gains.append(Curve(name=name, points=curve, line=line))
        panels = [Panel(title="Tokens a round", x="K", y="tau", items=tuple(taus), whole=True)]
        if gains:
            gains.append(Level(name="plain sampling", y=1.0))
            panels.append(
                Panel(title="Speed-up", x="K", y="over plain", items=tuple(gains), whole=True)
            )
        return Figure(title=TITLE, panels=tuple(panels))

    def bars(self) -> list[Bar]:
        """Return a bar for each method at its best K: its speed-up, or tau without costs."""
        priced = bool(self.plan.prices)
        heading = "speed-up over plain sampling, predicted" if priced else "tokens a round"
        unit = "x" if priced else ""
        return [
            Bar(
                heading,
                f"K = {sums.k}, {method.drafter}, {method.rule}",
                sums.speedup(0) if priced else sums.tau(),
                "",
                unit,
            )
            for method, sums in self.rows
        ]

    def section(self) -> Section:
        """Return the answer for a page."""
        return Section(
            title=TITLE,
            status="good" if self.plan.replay.gain(*self._advised()) >= NOTICED else "open",
            line=self.sentence(),
            notes=tuple(self.pasted()),
            figures=(self.figure(),),
            tables=tuple(self.tables()),
            answers=True,
        )

    def values(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        replay = self.plan.replay
        return {
            "answer": self.sentence(),
            "requests": replay.requests,
            "tokens": replay.tokens,
            "left_out": dict(self.plan.reader.left_out),
            "rows": [
                {
                    "drafter": method.drafter,
                    "rule": method.rule,
                    "bound": method.bound,
                    "k": sums.k,
                    "tau": _values(sums.tau()),
                    "acceptance_length": sums.acceptance_length,
                    "kept": sums.kept_share,
                    "work": self.work(method, sums),
                    "speedup": {
                        str(price.batch): _values(sums.speedup(i))
                        for i, price in enumerate(self.plan.prices)
                    },
                    "groups": dict(groups(sums)),
                }
                for method, by_k in replay.sums.items()
                for sums in by_k
            ],
            "notes": self.remarks(),
            "settings": self.pasted(),
        }


def points(sums: Sequence[Sums], figure: Any) -> tuple[Point, ...]:
    """Return a point for each K."""
    estimates = [(of_k.k, figure(of_k)) for of_k in sums]
    return tuple(Point(k, value.mean, value.low, value.high) for k, value in estimates)


def _bound(method: Method) -> str:
    return f"{method.bound} " if method.bound else ""


def spread(estimate: Estimate, unit: str = "") -> str:
    """Format a figure with its interval: `1.53 (1.48 to 1.58)`."""
    value = f"{estimate.mean:.2f}{unit}"
    if estimate.low is None or estimate.high is None:
        return value
    return f"{value} ({estimate.low:.2f} to {estimate.high:.2f})"


def _values(estimate: Estimate) -> dict[str, float | None]:
    return {"mean": estimate.mean, "low": estimate.low, "high": estimate.high}
