"""A draft model on a device of its own, at work while the target verifies: gains by arithmetic.

Nothing runs on two devices: the rounds are those of a trace, their parts those of a table of costs.
The letters are the paper's (q target, p draft), K tokens are drafted at a time, under the rule
`sps`, one slot after another.

- `pearl` (Liu et al. 2024, arXiv 2408.11850). In a *pre-verify* step the target scores the first of
  K tokens while the draft model drafts them; a kept first token leads to a *post-verify* step,
  which scores the other K - 1 and the first of K further ones, drafted meanwhile. It lasts as long
  as tokens are kept; the first rejection leads back to pre-verify. A step takes as long as the
  slower device.
- `ssd:f=F` (Kumar et al. 2026, arXiv 2603.03251). While the target verifies N tokens, the draft
  model prepares a draft for each of the N + 1 counts of kept tokens and each of the F likeliest
  next tokens, without the token that was tested there. If the target's token is one of the F (a
  hit), the next draft is ready; if not, it is drafted while the target waits.

The token that a text has where a round rejects is the target's own, and given the text the rejected
token is of the distribution (p - q)+. So the rank of the text's token in p gives the chance of a
hit: 1 below rank F; at rank F the chance that the rejected token is one of the F likelier tokens;
else 0. After N kept tokens no token is left out.
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from spsbench.errors import UsageError
from spsbench.metrics.intervals import Estimate, Floats, Jackknife, over
from spsbench.metrics.surfaces import typical
from spsbench.planning.forecast.acceptance_chances import Chances, VerifierRule, acceptance_chances
from spsbench.planning.forecast.forecasts import Candidate, Forecast, RoundTimes, widened
from spsbench.planning.forecast.recommendation import Forecasts, Traced, factor
from spsbench.planning.forecast.replay import Span, Turns, span_of
from spsbench.spec import Spec
from spsbench.store.trace_records import Drawn, Written

RULE: VerifierRule = "sps"
PEARL, FAN_OUT = "pearl", 3  # F, unless `ssd` names another


class Devices(Protocol):
    """Seconds of the two devices, [T] turns each, in a step that begins at a position."""

    def draft(self, tokens: int, at: int) -> Floats:
        """Return the time to draft `tokens` tokens, one after another."""

    def prepare(self, tokens: int, branches: int, at: int) -> Floats:
        """Return the time to draft `tokens` tokens in each of some branches at once."""

    def verify(self, drafted: int, at: int) -> Floats:
        """Return the target's time to verify `drafted` tokens, with the rest of the round."""


class Total(NamedTuple):
    """The expected seconds of a text on two devices, and how often a draft was ready (`ssd`)."""

    seconds: Floats  # [T]
    hits: float = 0.0
    drafts: float = 0.0  # rounds that were followed by a draft


def pearl(chances: Chances, span: Span, k: int, devices: Devices) -> Total:
    """Return the expected time of a text under PEARL; exact, given the text."""
    pre, post = np.zeros(span.length + k + 2), np.zeros(span.length + k + 2)  # chance of a step
    pre[0], seconds = 1.0, np.zeros(1)
    for at in range(span.length):
        drafted = min(k, span.room(at))
        if drafted == 0:  # the target alone
            seconds = seconds + (pre[at] + post[at]) * devices.verify(0, at)
            pre[at + 1] += pre[at] + post[at]
            continue
        if pre[at]:
            took = np.maximum(devices.verify(0, at), devices.draft(drafted, at))
            seconds = seconds + pre[at] * took
            kept = Turns(chances, at, 1).kept[0]
            post[at + 1] += pre[at] * kept
            pre[at + 1] += pre[at] * (1 - kept)
        if post[at]:
            waiting = min(k - 1, span.room(at))  # tokens of the step before
            more = min(k, span.room(at) - waiting)
            took = devices.verify(waiting, at)
            if more:
                took = np.maximum(took, devices.draft(more, at + waiting))
            seconds = seconds + post[at] * took
            turns = Turns(chances, at, waiting + min(more, 1))
            pre[at + 1 : at + 1 + turns.drafted] += post[at] * turns.outcomes[:-1]
            after = post if more else pre
            after[at + waiting + 1] += post[at] * turns.outcomes[-1]
    return Total(seconds)


def ssd(along: Drawn, chances: Chances, span: Span, k: int, f: int, devices: Devices) -> Total:
    """Return the expected time of a text under SSD with F = `f`; exact, given the text."""
    rejected, whole = hit_chances(along, k, f)
    visits = np.zeros(span.length + k + 1)  # chance of a round from each position
    misses = np.zeros_like(visits)  # that its draft was not prepared
    visits[0] = misses[0] = 1.0
    room = np.array([min(k, span.room(at)) for at in range(len(visits))])
    room[span.length :] = 0  # the text has ended
    seconds, hits = np.zeros(1), 0.0
    for at in range(span.length):
        turns = Turns(chances, at, int(room[at]))
        verified = devices.verify(turns.drafted, at)
        seconds = seconds + visits[at] * verified
        if room[at]:
            seconds = seconds + misses[at] * devices.draft(int(room[at]), at)
        ends = slice(at + 1, at + 2 + turns.drafted)
        weights = visits[at] * turns.outcomes
        hit = np.append(rejected[at : at + turns.drafted], whole[at + turns.drafted])
        visits[ends] += weights
        misses[ends] += weights * (1 - hit)
        ready = weights * hit * (room[ends] > 0)
        hits += float(ready.sum())
        for tokens in np.unique(room[ends][ready > 0]):
            prepared = devices.prepare(int(tokens), f * (turns.drafted + 1), at)
            late = np.maximum(prepared - verified, 0.0)
            seconds = seconds + ready[room[ends] == tokens].sum() * late
    drafts = float(visits[1:][room[1:] > 0].sum())
    return Total(seconds, hits, drafts)


def hit_chances(along: Drawn, k: int, f: int) -> tuple[Floats, Floats]:
    """Return [L + k + 1] chances that the draft after each token of a text was prepared.

    The first where a drafted token was rejected at the position, the second where all were kept;
    both 0 beyond the text.
    """
    whole = (along.rank < f).astype(np.float64)
    rejected = np.where(along.rank == f, along.above, whole)
    beyond = np.zeros(k + 1)
    return np.append(rejected, beyond), np.append(whole, beyond)


@dataclass(frozen=True)
class MeasuredDevices:
    """The devices of a text, by the costs of rounds on one device.

    A drafted token takes what it takes there. A pass over branches is taken to grow with their
    number as the target's pass does with its tokens, and one pass more finds the token after the
    last drafted one. Sampling, the rule, the loop and what is not explained are the target's.
    """

    draft_name: str
    text: Written
    times: RoundTimes

    def _parts(self, requested: int, drafted: int, at: int) -> Floats:
        context = self.text.prompt_tokens + at
        return self.times.of_round(self.draft_name, RULE, requested, drafted, context)

    def draft(self, tokens: int, at: int) -> Floats:
        """See `Devices.draft`."""
        return np.asarray(self._parts(tokens, tokens, at)[0])

    def prepare(self, tokens: int, branches: int, at: int) -> Floats:
        """See `Devices.prepare`."""
        passes, context = self.times.costs.passes, self.text.prompt_tokens + at
        wider = np.maximum(passes.at(branches, context) / passes.at(1, context), 1.0)
        return np.asarray(self.draft(tokens, at) / tokens * (1 + tokens * wider))

    def verify(self, drafted: int, at: int) -> Floats:
        """See `Devices.verify`."""
        return np.asarray(self._parts(max(drafted, 1), drafted, at)[1:].sum(0))


@dataclass(frozen=True, kw_only=True, eq=False)
class OverlapForecast:
    """The best K of a draft on a device of its own, predicted."""

    overlap: Spec
    candidate: Candidate
    speedup: Estimate  # over ArS on the same texts
    hit_rate: Estimate | None  # share of drafts that were ready; None: not of `ssd`
    alone: Forecast  # the best of the same draft and rule on one device

    def __str__(self) -> str:
        hits = "" if self.hit_rate is None else f", {self.hit_rate.mean:.0%} of drafts ready"
        return (
            f"With the draft model on a second device ({self.overlap}; predicted, nothing ran on "
            f"two): {self.candidate}: {factor(self.speedup)}{hits}; on one device "
            f"{self.alone.speedup.mean:.2f}x predicted at K = {self.alone.candidate.k}."
        )

    def values(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "overlap": str(self.overlap),
            "candidate": str(self.candidate),
            "speedup": self.speedup.mean,
            "speedup.low": self.speedup.low,
            "speedup.high": self.speedup.high,
            "hit_rate": None if self.hit_rate is None else self.hit_rate.mean,
            "speedup_alone": self.alone.speedup.mean,
        }


def check_overlap(
    how: Spec, candidates: Iterable[Candidate], sampled: Container[str]
) -> list[Candidate]:
    """Return the candidates that the arithmetic covers: a constant K of a sampled draft, by `sps`.

    Args:
        sampled: names of the drafts that are sampled from a distribution of the text alone.

    Raises:
        UsageError: there are none.
    """
    covered = [c for c in candidates if c.verifier == RULE and c.k and c.draft in sampled]
    if not covered:
        raise UsageError(
            f"`overlap` {how}: expected a draft model and the verifier {RULE} among what is "
            f"compared. Add `drafter` model `verifier` {RULE}"
        )
    return covered


def forecast_overlap(how: Spec, forecasts: Forecasts, traced: Traced) -> list[OverlapForecast]:
    """Return the forecast of each sampled draft at the K that suits two devices best.

    Args:
        how: `pearl` or `ssd:f=F`.
        forecasts: of the candidates on one device.

    Raises:
        UsageError: none is covered.
    """
    sampled = {name for name, (draft, _) in traced.items() if draft.sampled}
    covered = check_overlap(how, (forecast.candidate for forecast in forecasts.all), sampled)
    times, overlaps = RoundTimes(forecasts.costs), []
    for name in dict.fromkeys(candidate.draft for candidate in covered):
        of_draft = [candidate for candidate in covered if candidate.draft == name]
        same = [forecast for forecast in forecasts.all if forecast.candidate in of_draft]
        pairs = [(text, along) for text, along in traced[name][1] if isinstance(along, Drawn)]
        estimated = [
            (forecast, *estimates(how, forecast.candidate, pairs, times)) for forecast in same
        ]
        best, speedup, hit_rate = max(estimated, key=lambda pair: pair[1].mean)
        overlaps.append(
            OverlapForecast(
                overlap=how,
                candidate=best.candidate,
                speedup=speedup,
                hit_rate=hit_rate,
                alone=max(same, key=lambda forecast: forecast.speedup.mean),
            )
        )
    return overlaps


def estimates(
    how: Spec, candidate: Candidate, pairs: Sequence[tuple[Written, Drawn]], times: RoundTimes
) -> tuple[Estimate, Estimate | None]:
    """Return the speed-up over ArS of a candidate on two devices, and the hit rate of `ssd`."""
    totals = []
    for text, along in pairs:
        chances, span = acceptance_chances(text, along, RULE), span_of(text, along)
        devices = MeasuredDevices(candidate.draft, text, times)
        if how.name == PEARL:
            totals.append(pearl(chances, span, candidate.k or 0, devices))
        else:
            f = int(dict(how.args).get("f", FAN_OUT))
            totals.append(ssd(along, chances, span, candidate.k or 0, f, devices))
    whole = np.stack([total.seconds for total in totals])  # [texts, turns]
    plain = np.stack([times.of_plain(text) for text, _ in pairs])
    clusters = np.unique([text.key[1] for text, _ in pairs], return_inverse=True)[1]
    columns = [np.median(plain, 1), np.median(whole, 1)]
    columns += [np.array([getattr(total, name) for total in totals]) for name in ("hits", "drafts")]
    sums = Jackknife(np.column_stack(columns), clusters)
    gained = sums.estimate(over(0, 1), 1)
    if gained is None:
        raise ValueError("texts without a token")
    by_turns = typical(plain.sum(0) / whole.sum(0), times.costs.busy)
    return widened(gained, by_turns), None if how.name == PEARL else sums.estimate(over(2, 3), 3)
