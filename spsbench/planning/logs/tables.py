"""The answer of a log: tables, plot, sentence, and settings for engines that serve."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from spsbench.methods.drafters.ngram import NgramDrafter
from spsbench.metrics.sums import group_by
from spsbench.planning.forecast.recommendation import NOTICED, format_estimate
from spsbench.planning.logs.assumptions import ASSUMPTION
from spsbench.planning.logs.texts import LogPlan, LogRow
from spsbench.planning.report import plan_figure
from spsbench.reports.reporter import Figure, Section, TextTable
from spsbench.settings.cell_from_options import inner_drafters
from spsbench.settings.method import Drafting, Method

SHOWN = 5  # methods in detailed tables
TITLE = "Plan from logs"
NGRAM = NgramDrafter()
LIMITS = ("mean", "low", "high")


@dataclass(frozen=True)
class LogAnswer:
    """The answer of a replayed log.

    `plan` is one after `LogPlan.run`. `costs` says what the costs are; empty: none were named, and
    K is chosen by an assumption. `every`: detailed tables show all methods, not the best `SHOWN`.
    """

    plan: LogPlan
    costs: str = ""
    every: bool = False

    @cached_property
    def methods(self) -> list[list[LogRow]]:
        """Return the rows of each method by K, the best method first."""
        groups = group_by(self.plan.rows.values(), lambda row: row.prediction.method.group)
        return sorted(groups.values(), key=lambda rows: -max(row.prediction.gain for row in rows))

    @cached_property
    def rows(self) -> list[LogRow]:
        """Return every method at its best K, the best first."""
        return [max(rows, key=lambda row: row.prediction.gain) for rows in self.methods]

    @property
    def detailed(self) -> list[list[LogRow]]:
        """Return the methods of detailed tables by K, the best first."""
        return self.methods if self.every else self.methods[:SHOWN]

    @property
    def batches(self) -> Sequence[int]:
        """Return the batches whose speed-ups are known."""
        return self.plan.batches if self.costs else ()

    def sentence(self) -> str:
        """Return what to do by costs, in two sentences, or without them tokens a round, in more."""
        row = self.rows[0]
        method, value = row.prediction.method, row.prediction.tau
        start = (
            f"{method.drafting}, K = {method.k}, would have made "
            f"{format_estimate(value, '')} tokens a round on these {row.prediction.texts:,} "
            "requests."
        )
        if not self.costs:
            return (
                f"{start} It gains where a round costs less than {value.mean:.2f} plain passes, "
                f"its drafting included. Costs decide on K: {ASSUMPTION}. Name yours by "
                "`row_ratio`, `roofline` or `costs`."
            )
        gained = row.prediction.speedup
        if gained.mean < NOTICED:
            return f"Do not speculate by these costs: {gained.mean:.2f}x at best. {start}"
        sure = gained.low is not None and gained.low > 1
        advice = "Speculate" if sure else "Not decided"
        return (
            f"{advice}: {method.drafting}, K = {method.k}: {format_estimate(gained)} predicted. "
            f"{start}"
        )

    def tables(self) -> list[TextTable]:
        """Return all tables: by method, K, group and slot."""
        return [self._by_method(), self._by_k(), *self._by_group(), self._by_slot()]

    def _by_method(self) -> TextTable:
        """Return rows of all methods, each at its best K: acceptance, work, speed-up by batch."""
        unlike = len({row.prediction.texts for row in self.rows}) > 1
        cells = [
            [
                str(row.prediction.method.k),
                format_estimate(row.prediction.tau, ""),
                "n/a" if row.acceptance_length is None else f"{row.acceptance_length:.2f}",
                percent(row.acceptance_rate),
                percent(row.kept_share),
                f"{row.prediction.work:.2f}",
                *[f"{row.prediction.texts:,}"] * unlike,
                *(format_estimate(row.prediction.speedup_in(size)) for size in self.batches),
            ]
            for row in self.rows
        ]
        heads = ["K", "tau", "vLLM's", "its rate", "accepted", "work", *["requests"] * unlike]
        heads += [f"batch {n}" if len(self.batches) > 1 else "speed-up" for n in self.batches]
        title = "From the log: each drafter at its best K"
        return method_table(title, heads, self.rows, cells)._replace(remarks=self.remarks())

    def _by_k(self) -> TextTable:
        """Return the tokens a round of each detailed method, a column a K."""
        heads = [f"K = {k}" for k in self.plan.ks]
        cells = [[f"{row.prediction.tau.mean:.2f}" for row in rows] for rows in self.detailed]
        firsts = [rows[0] for rows in self.detailed]
        return method_table("Tokens a round by K", heads, firsts, cells)

    def _by_group(self) -> list[TextTable]:
        """Return a table of tokens a round by group, 1 without rounds; [] for under two groups."""
        groups = sorted(self.rows[0].by_group)
        cells = [
            [
                str(row.prediction.method.k),
                *(f"{row.groups.get(group, 1.0):.2f}" for group in groups),
            ]
            for row in self.rows
        ]
        table = method_table("Tokens a round by group", ["K", *groups], self.rows, cells)
        return [table] if len(groups) > 1 else []

    def _by_slot(self) -> TextTable:
        """Return shares of tested tokens that were accepted at the largest K, by place."""
        most = max(self.plan.ks)
        lasts = [rows[-1] for rows in self.detailed]
        by_place = (row.rounds.sums.by_position.reshape(2, -1).T for row in lasts)
        cells = [[percent(kept / n if n else None) for kept, n in row] for row in by_place]
        title = f"Accepted of the tested tokens, by place in the draft (K = {most})"
        return method_table(title, [str(place + 1) for place in range(most)], lasts, cells)

    def warnings(self) -> list[str]:
        """Return warnings, or []: other counts of tokens than the log's, repetition in answers."""
        plan, tokens = self.plan, self.plan.tokens
        lines = [
            tokens.answers.warning("tokens in their answers"),
            tokens.prompts.warning("tokens in their prompts"),
            tokens.texts.warning("token ids in their answers"),
        ]
        if plan.repetition.doubtful:
            lines.append(
                f"Repetition in the answers ({plan.repetition}). Loops are easy to draft: the "
                "figures say little about other texts."
            )
        return list(filter(None, lines))

    def remarks(self) -> list[str]:
        """Return what the figures rest on, and what was left out."""
        plan, methods = self.plan, self.plan.rows
        formats = ", ".join(plan.reader.formats)
        lines = [
            f"{plan.requests:,} requests, {plan.written:,} tokens ({formats}); intervals are "
            "over requests. Every exact rule accepts the same tokens of a deterministic draft.",
            "tau: tokens a round, over all rounds. vLLM's: its mean acceptance length, accepted "
            "tokens a round with a draft, and one; rounds without a draft are left out.",
            "its rate: vLLM's draft acceptance rate, accepted of all drafted tokens.",
            "accepted: of the drafted tokens whose places the answers have. work: operations over "
            "plain sampling's, a row of the target each, and the draft's.",
        ]
        if plan.of_servers:
            lines.append(
                f"{plan.of_servers:,} requests as vLLM serves them: the pass over the prompt gives "
                "the first token without a draft, and is no round."
            )
        if plan.without_prompt:
            lines.append(
                f"{plan.without_prompt:,} of {plan.requests:,} requests have no prompt, from "
                "which drafters copy (`prompts`): more would be accepted with them."
            )
        if plan.echoed:
            lines.append(f"{plan.echoed:,} answers began with their prompts, which are cut off.")
        lines += [
            f"{n:,} of {plan.requests:,} requests have text in a field that is not read: {path}."
            for path, n in plan.reader.unread.most_common()
        ]
        if plan.reader.unanswered:
            lines.append(f"{plan.reader.unanswered:,} requests of batches have no answer.")
        lines += [f"{n:,} left out: {why}." for why, n in plan.reader.left_out.most_common()]
        lines += [f"{n:,} texts not read: {why}." for why, n in plan.unread.most_common()]
        lines += [f"{n:,} without sps and block: {why}." for why, n in plan.without_q.most_common()]
        if plan.without_q and any(method.verifier == "match" for method in methods):
            lines.append("match is a lower bound for sps: p(x) is at most min(1, p(x) / q(x)).")
        if plan.models and plan.assumed:
            lines.append(
                f"{plan.assumed:,} requests name no temperature: "
                f"{plan.warp.temperature:g} was assumed (`temperature`)."
            )
        if plan.models and not plan.processed:
            lines += [
                f"{n:,} requests have {names}: drafts of a model are predicted without."
                for names, n in plan.under.most_common()
            ]
        parts = (part for m in methods for part in inner_drafters(m.drafting.drafter))
        if any(dict(part.args).get("shared") is True for part in parts):
            lines.append("shared=true looks up earlier answers of the log, in its order.")
        return [*lines, *filter(None, [self.costs])]

    def pasted(self) -> list[str]:
        """Return settings of engines for the advised method."""
        method = self.rows[0].prediction.method
        return engine_settings(method.drafting, method.k or 0)

    def figure(self) -> Figure:
        """Return a plot of tau, and of the speed-up where costs are known, by K."""
        predictions = [row.prediction for rows in self.methods for row in rows]
        return plan_figure(TITLE, predictions, {}, {}, priced=bool(self.costs))

    def section(self) -> Section:
        """Return the answer as a page's section: sentence, warnings, settings, plot and tables."""
        return Section(
            title=TITLE,
            status="good" if self.rows[0].prediction.gain >= NOTICED else "open",
            line=self.sentence(),
            notes=(*self.warnings(), *self.pasted()),
            figures=(self.figure(),),
            tables=tuple(self.tables()),
            answers=True,
        )

    def values(self) -> dict[str, Any]:
        """Return plain values: answer, warnings, counts, rows by method and K, notes, settings."""
        return {
            "answer": self.sentence(),
            "warnings": self.warnings(),
            "requests": self.plan.requests,
            "tokens": self.plan.written,
            "left_out": dict(self.plan.reader.left_out),
            "rows": [self._values(method, row) for method, row in self.plan.rows.items()],
            "notes": self.remarks(),
            "settings": self.pasted(),
        }

    def _values(self, method: Method, row: LogRow) -> dict[str, Any]:
        """Return a row as plain values; `tau`, and `speedup` by batch, have mean, low and high."""
        return {
            "drafter": str(method.drafting),
            "rule": method.verifier,
            "k": method.k,
            "tau": dict(zip(LIMITS, row.prediction.tau, strict=False)),
            "acceptance_length": row.acceptance_length,
            "acceptance_rate": row.acceptance_rate,
            "kept": row.kept_share,
            "work": row.prediction.work,
            "speedup": {
                str(size): dict(zip(LIMITS, row.prediction.speedup_in(size), strict=False))
                for size in self.batches
            },
            "groups": dict(row.groups),
        }


def method_table(
    title: str, heads: Sequence[str], rows: Sequence[LogRow], cells: Sequence[Sequence[str]]
) -> TextTable:
    """Return a table of cells with headings `heads`, after the drafter and rule of each row."""
    methods = [row.prediction.method for row in rows]
    named = [
        [str(method.drafting), method.verifier, *figures]
        for method, figures in zip(methods, cells, strict=True)
    ]
    return TextTable(title, ["drafter", "rule", *heads], named, names=2)


def percent(share: float | None) -> str:
    """Return a share as whole per cent; `n/a` for None."""
    return "n/a" if share is None else f"{100 * share:.0f} %"


def engine_settings(drafting: Drafting, k: int) -> list[str]:
    """Return lines with vLLM's and llama.cpp's settings; none for what they cannot draft.

    `k` is the number of drafted tokens a round. llama.cpp has one for a draft model alone.
    """
    model, name, args = drafting.model, drafting.drafter.name, dict(drafting.drafter.args)
    config: dict[str, Any] = {"method": "draft_model" if model else name}
    lines, note = [], ""
    if model:
        config |= {"model": model, "num_speculative_tokens": k}
        config["draft_sample_method"] = "probabilistic"
        lines = [f"llama.cpp: --model-draft {model}.gguf --draft-max {k}"]
    elif name == "ngram":
        config |= {"num_speculative_tokens": k, "prompt_lookup_max": args.get("n", NGRAM.n)}
        config["prompt_lookup_min"] = args.get("min_n", NGRAM.min_n)
        if args.get("match", NGRAM.match) != "first":
            note = " (it takes the first match: see ngram:match=first)"
    elif name == "suffix":
        config |= {
            "num_speculative_tokens": k,
            "suffix_decoding_max_spec_factor": args.get("factor", 1.0),
            "suffix_decoding_min_token_prob": args.get("least", 0.1),
            "suffix_decoding_max_cached_requests": 10_000 if args.get("shared") else 0,
        }
    else:
        return []
    return [f"vLLM: --speculative-config '{json.dumps(config)}'{note}", *lines]
