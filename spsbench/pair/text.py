"""Texts of a pair: finished generations, and comparisons of two."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple, cast

from spsbench.audit.statistical.comparison import Compared
from spsbench.audit.statistical.forward import Scorer
from spsbench.audit.statistical.greedy import compare_greedy as compare_greedy
from spsbench.generation import Generation
from spsbench.loop.decoder import EnginePrompt as EnginePrompt
from spsbench.loop.text import Origin, Piece
from spsbench.loop.types import Drawn
from spsbench.methods.resolve import plan_of
from spsbench.metrics.intervals import FEWEST, Estimate
from spsbench.metrics.rates import Metrics, estimate_speedup, generation_metrics, segments
from spsbench.settings.cell import Cell
from spsbench.settings.records import Record, RoundRecord

SHOWN = 60  # characters in a repr
STYLES = {
    Origin.ACCEPTED: "color:#1a7f37",
    Origin.RECOVERED: "color:#b35900",
    Origin.BONUS: "color:#0969da",
    Origin.PLAIN: "",
    Origin.UNTOLD: "",
}


@dataclass(frozen=True, slots=True, repr=False)
class Text:
    """A finished generation; `str` of it is the text alone."""

    cell: Cell  # the configuration that made it
    record: Record
    metrics: Metrics  # named as in the glossary
    by_rule: bool  # deterministic drafts, not sampled
    pieces: tuple[Piece, ...] = ()

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= SHOWN else self.text[:SHOWN] + "..."
        return f"<Text {text!r}: {len(self.tokens)} tokens, {self.finish}>"

    @property
    def text(self) -> str:
        """Return the text, without the prompt."""
        return self.record.text

    @property
    def tokens(self) -> list[int]:
        """Return the generated tokens."""
        return self.record.tokens

    @property
    def finish(self) -> str:
        """Return the reason why the text ended: eos, stop, length or context."""
        return self.record.finish

    @property
    def rounds(self) -> list[RoundRecord]:
        """Return the measurements of each round."""
        return self.record.rounds

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: the pieces in the colours of their origins, the figures."""
        parts = [
            f'<span style="{STYLES[origin]}" title="{origin}">{escape(text)}</span>'
            for text, origin in self.pieces
        ]
        figures = self.metrics
        phrases = [f"{figures.tokens} tokens"]
        for name, value in (("α", figures.alpha), ("τ", figures.block_efficiency)):
            phrases += [] if value is None else [f"{name} {value:.2f}"]
        if figures.mean_token_time_ms is not None:
            phrases.append(f"{figures.mean_token_time_ms:.2f} ms a token")
        return (
            f'<div style="white-space:pre-wrap;font-family:monospace">{"".join(parts)}</div>'
            f"<small>{', '.join(phrases)}</small>"
        )


def make_text(generation: Generation, pieces: Sequence[Piece] = ()) -> Text:
    """Return the text of a finished generation."""
    cell, record = generation.cell, generation.record
    by_rule = not cell.elsewhere and plan_of(cell.drafter).drawn is Drawn.POINT
    figures = generation_metrics(record.rounds, record.prefill_seconds)
    return Text(cell, record, figures, by_rule, tuple(pieces))


SEGMENT = 8  # tokens timed together: the unit of the interval
SHORTEST = 32  # tokens below which no speed-up is reported

Segments = list[tuple[float, int]]
"""(seconds, tokens) of each segment."""

BUSY = (
    "warning: other work kept this machine busy meanwhile: times are too long, and the speed-up is "
    "of a machine that is shared. End the other work (top shows it) and try again"
)


class Comparison(NamedTuple):
    """Two generations of one prompt."""

    ars: Text
    sps: Text
    speedup: Estimate | None  # None: text too short
    identical: bool | None  # None: sampled texts, which differ by design
    divergence: Compared | None
    loaded: bool = False  # other work used the machine meanwhile

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Return sentences: speed, answer if there is one, a warning if load disturbed, tokens."""
        answer = [self.answer] if self.answer else []
        return [self.speed, *answer, *[BUSY] * self.loaded, divergence_of(self)]

    @property
    def speed(self) -> str:
        """Return the speed-up and times in a sentence, or why not: short texts, a busy machine."""
        if (gained := self.speedup) is None:
            short, other = count_tokens(self.ars), count_tokens(self.sps)
            return (
                f"speed-up: n/a (needs {SHORTEST} tokens in both texts; ArS wrote {short}, SpS "
                f"{other})"
            )
        if self.undecided:
            spent = [processor_ms(text) for text in (self.ars, self.sps)]
            ratio = (
                "unknown"
                if not spent[0] or spent[1] is None
                else f"{spent[0]:.2f} ms with ArS, {spent[1]:.2f} ms with SpS, which takes "
                f"{spent[1] / spent[0]:.2f} times as much"
            )
            return (
                "speed-up over ArS: not decided: measured on a busy machine. Processor time "
                f"(not elapsed time) a token: {ratio}"
            )
        slower = ", slower" if gained.mean < 1 else ""
        return (
            f"speed-up over ArS: {gained.mean:.2f}x{slower} ({self._interval(gained)}, this "
            f"prompt{self._part()})"
        )

    @property
    def answer_speedup(self) -> float | None:
        """Return how many times faster a token of the whole answer is by SpS, prefill included.

        None where a text is too short or has no such time, or where load leaves the speed-up open.
        """
        times = [text.metrics.answer_ms for text in (self.ars, self.sps)]
        if self.speedup is None or self.undecided or times[0] is None or not times[1]:
            return None
        return times[0] / count_tokens(self.ars) / (times[1] / count_tokens(self.sps))

    @property
    def answer(self) -> str:
        """Return the whole answer's speed-up, tokens and times in a sentence; "": no speed-up."""
        if (gained := self.answer_speedup) is None:
            return ""
        times = ", ".join(
            f"{name} {text.metrics.answer_ms:.0f} ms for {count_tokens(text)} tokens, the first "
            f"after {text.metrics.ttft_ms:.0f} ms"
            for name, text in (("SpS", self.sps), ("ArS", self.ars))
        )
        slower = ", slower" if gained < 1 else ""
        return f"speed-up per answer, prefill included: {gained:.2f}x{slower} ({times})"

    @property
    def undecided(self) -> bool:
        """Return whether load leaves the speed-up open: it was timed under load, without interval.

        A few stretches do not show what load did to each text.
        """
        return self.loaded and self.speedup is not None and self.speedup.low is None

    def _part(self) -> str:
        """Return ", over the first ..." with tokens and ms a token of both; "" over whole texts."""
        ours, theirs = compared_segments(self.ars, self.sps)
        times = [(sum(s for s, _ in timed), sum(n for _, n in timed)) for timed in (theirs, ours)]
        if [n for _, n in times] == [count_tokens(self.sps), count_tokens(self.ars)]:
            return ""
        sps, ars = (f"{n} tokens of {{}} at {1e3 * spent / n:.2f} ms" for spent, n in times)
        return f", over the first {sps.format('SpS')} and {ars.format('ArS')}"

    def _interval(self, gained: Estimate) -> str:
        if gained.low is not None and gained.high is not None:
            return f"95% interval {gained.low:.2f} to {gained.high:.2f}"
        segments_of_both = len(pair_segments(self.ars, self.sps)[0])
        needed = f"no interval: needs {FEWEST} segments of {SEGMENT} tokens or more in both texts"
        return f"{needed}, which have {segments_of_both}"


def compare_texts(
    loaded: Any, prompt: Sequence[int] | EnginePrompt, ars: Text, sps: Text, *, busy: bool
) -> Comparison:
    """Return the comparison of two texts that continue `prompt`; `busy`: other work ran meanwhile.

    At temperature 0 it says whether ids and texts are equal (else None); where they are not, and
    the weights are here, the target of `loaded` scores both texts: a rounding tie, or a bug. No
    speed-up where a text is below `SHORTEST` tokens. SpsError: a text that cannot be scored.
    """
    identical, divergence = None, None
    if sps.cell.temperature == 0:
        identical = (ars.record.tokens, ars.record.text) == (sps.record.tokens, sps.record.text)
    if identical is False and not sps.cell.elsewhere:
        texts = ars.record.tokens, sps.record.tokens, max(r.drafted for r in sps.record.rounds)
        divergence = compare_greedy(
            Scorer.shared(sps.cell, loaded), cast("Sequence[int]", prompt), *texts
        )
    return Comparison(ars, sps, gain(ars, sps), identical, divergence, busy)


def gain(ars: Text, sps: Text) -> Estimate | None:
    """Return the speed-up of `sps` over `ars`; None: one of them is shorter than `SHORTEST`."""
    if min(count_tokens(ars), count_tokens(sps)) < SHORTEST:
        return None
    return estimate_speedup(*compared_segments(ars, sps))


def compared_segments(ars: Text, sps: Text) -> tuple[Segments, Segments]:
    """Return (seconds, tokens) by segment of `ars`, and of `sps`: the first ones, equally many.

    Each has `SEGMENT` tokens or more; what is left of a text is dropped, so that both methods saw
    the same machine. Where there are fewer than `FEWEST`, each whole text is one segment, which
    does not depend on the split of rounds.
    """
    ours, theirs = pair_segments(ars, sps)
    return (ours, theirs) if len(ours) >= FEWEST else (one_segment(ars), one_segment(sps))


def processor_ms(text: Text) -> float | None:
    """Return the processor time of a token, of all threads; None where it was not measured."""
    spent = [r.processor_seconds for r in text.record.rounds]
    measured = [seconds for seconds in spent if seconds is not None]
    if not spent or len(measured) < len(spent):
        return None
    return 1e3 * sum(measured) / count_tokens(text)


def one_segment(text: Text) -> Segments:
    """Return the text as one segment: the seconds of all rounds, and the tokens."""
    return [(sum(r.seconds for r in text.record.rounds), count_tokens(text))]


def pair_segments(ars: Text, sps: Text) -> tuple[Segments, Segments]:
    """Return the first segments of at least `SEGMENT` tokens of both methods, equally many."""
    ours, theirs = (segments(text.record.rounds, SEGMENT) for text in (ars, sps))
    both = min(len(ours), len(theirs))
    return ours[:both], theirs[:both]


def count_tokens(text: Text) -> int:
    """Return the number of tokens of a text."""
    return sum(r.emitted for r in text.record.rounds)


def divergence_of(comparison: Comparison) -> str:
    """Return a line: the texts are equal, or where they differ and why (design, a tie, a bug)."""
    if comparison.identical is None:
        return "tokens: texts differ by design (same distribution)"
    if comparison.identical:
        return "tokens: identical to ArS"
    divergence = comparison.divergence
    if divergence is None or divergence.position is None:
        elsewhere = comparison.sps.cell.elsewhere
        why = "texts differ; without the weights it is open why"
        return f"tokens: {why if elsewhere else 'one text is the beginning of the other'}"
    meaning = {"tie": "a rounding tie", "bug": "a BUG: please report it"}[divergence.kind]
    return (
        f"tokens: first difference at token {divergence.position + 1}: {meaning} "
        f"(logits {divergence.gap:.3g} apart, rounding {divergence.tolerance:.3g})"
    )
