"""Texts of a pair: generations, comparisons, and prompts as token ids."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple, cast

from spsbench.audit.statistical.greedy import Divergence, first_divergence
from spsbench.benchmark.generation import Arm, arm
from spsbench.engines.eager import context_of, rows_of
from spsbench.errors import DataError, UsageError
from spsbench.loop.decoder import Prompt as EnginePrompt
from spsbench.loop.text import Origin, Piece, PromptError, token_ids
from spsbench.metrics.intervals import FEWEST, Estimate
from spsbench.metrics.rates import Metrics, segments, speedup
from spsbench.models.cache import Loaded
from spsbench.models.tokenizers import encode, encode_chat
from spsbench.settings.cell import Cell
from spsbench.settings.records import Record, RoundRecord

__all__ = ["Arm", "Piece", "Text", "arm"]

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

    arm: Arm
    pieces: tuple[Piece, ...]

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        shown = self.text if len(self.text) <= SHOWN else self.text[:SHOWN] + "..."
        return f"<Text {shown!r}: {len(self.tokens)} tokens, {self.finish}>"

    @property
    def text(self) -> str:
        """Return the text, without the prompt."""
        return self.arm.record.text

    @property
    def tokens(self) -> list[int]:
        """Return the generated tokens."""
        return self.arm.record.tokens

    @property
    def finish(self) -> str:
        """Return the reason why the text ended: eos, stop, length or context."""
        return self.arm.record.finish

    @property
    def rounds(self) -> list[RoundRecord]:
        """Return the measurements of each round."""
        return self.arm.record.rounds

    @property
    def record(self) -> Record:
        """Return the whole record."""
        return self.arm.record

    @property
    def metrics(self) -> Metrics:
        """Return the figures, named as in the glossary."""
        return self.arm.figures

    @property
    def cell(self) -> Cell:
        """Return the configuration that made the text."""
        return self.arm.cell

    def _repr_html_(self) -> str:
        """Return the pieces in the colours of their origins and the figures, for notebooks."""
        parts = [
            f'<span style="{STYLES[origin]}" title="{origin}">{escape(text)}</span>'
            for text, origin in self.pieces
        ]
        figures = self.metrics
        shown = [f"{figures.tokens} tokens"]
        for name, value in (("α", figures.alpha), ("τ", figures.block_efficiency)):
            shown += [] if value is None else [f"{name} {value:.2f}"]
        if figures.mean_token_time_ms is not None:
            shown.append(f"{figures.mean_token_time_ms:.2f} ms a token")
        return (
            f'<div style="white-space:pre-wrap;font-family:monospace">{"".join(parts)}</div>'
            f"<small>{', '.join(shown)}</small>"
        )


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

    ars: Arm
    sps: Arm
    speedup: Estimate | None  # None: text too short
    identical: bool | None  # None: sampled texts, which differ by design
    divergence: Divergence | None
    loaded: bool = False  # other work used the machine meanwhile

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Return the result in sentences."""
        return [self.speed, *[BUSY] * self.loaded, divergence_of(self)]

    @property
    def speed(self) -> str:
        """Return the speed-up in a sentence, with the times of the tokens that it is over."""
        gained = self.speedup
        if gained is None:
            short, other = token_count(self.ars), token_count(self.sps)
            return (
                f"speed-up: n/a (needs {SHORTEST} tokens in both texts; ArS wrote {short}, SpS "
                f"{other})"
            )
        if self.undecided:
            spent = [processor_ms(arm) for arm in (self.ars, self.sps)]
            ratio = (
                "unknown"
                if spent[0] is None or not spent[1]
                else f"{spent[0] / spent[1]:.2f} times as much with ArS ({spent[0]:.2f} ms, with "
                f"SpS {spent[1]:.2f} ms)"
            )
            return (
                "speed-up over ArS: not decided: measured under load. Processor time (not elapsed "
                f"time) a token: {ratio}"
            )
        slower = ", slower" if gained.mean < 1 else ""
        return (
            f"speed-up over ArS: {gained.mean:.2f}x{slower} ({self._interval(gained)}, this "
            f"prompt{self._part()})"
        )

    @property
    def undecided(self) -> bool:
        """Return whether load leaves the speed-up open: it was timed under load, without interval.

        A few stretches do not show what load did to each text.
        """
        return self.loaded and self.speedup is not None and self.speedup.low is None

    def _part(self) -> str:
        """Return the tokens and times behind the speed-up, where these are not the whole texts."""
        ours, theirs = compared_segments(self.ars, self.sps)
        times = [(sum(s for s, _ in arm), sum(n for _, n in arm)) for arm in (theirs, ours)]
        if [n for _, n in times] == [token_count(self.sps), token_count(self.ars)]:
            return ""
        sps, ars = (f"{n} tokens of {{}} at {1e3 * spent / n:.2f} ms" for spent, n in times)
        return f", over the first {sps.format('SpS')} and {ars.format('ArS')}"

    def _interval(self, gained: Estimate) -> str:
        if gained.low is not None and gained.high is not None:
            return f"95% interval {gained.low:.2f} to {gained.high:.2f}"
        there = len(paired(self.ars, self.sps)[0])
        return (
            f"no interval: needs {FEWEST} segments of {SEGMENT} tokens or more in both texts, "
            f"which have {there}"
        )


def compare(
    loaded: Loaded, prompt: Sequence[int] | EnginePrompt, ars: Arm, sps: Arm, *, busy: bool = False
) -> Comparison:
    """Return the speed-up of `sps` over `ars`, and at temperature 0 whether the texts are equal."""
    identical, divergence = None, None
    if sps.cell.sampling.temperature == 0:
        identical = (ars.record.tokens, ars.record.text) == (sps.record.tokens, sps.record.text)
    if identical is False and not isinstance(prompt, EnginePrompt) and loaded.target is not None:
        drafted = max(r.drafted for r in sps.record.rounds)
        texts = ars.record.tokens, sps.record.tokens
        divergence = first_divergence(loaded.target, prompt, *texts, drafted)
    return Comparison(ars, sps, gain(ars, sps), identical, divergence, busy)


def gain(ars: Arm, sps: Arm) -> Estimate | None:
    """Return the speed-up; None for texts that are too short.

    The speed-up is over segments in the order of time, so that both methods saw the same machine.
    If there are too few segments for an interval, the speed-up is over the whole texts, which does
    not depend on the split of rounds into segments.
    """
    if min(token_count(ars), token_count(sps)) < SHORTEST:
        return None
    return speedup(*compared_segments(ars, sps))


def compared_segments(ars: Arm, sps: Arm) -> tuple[Segments, Segments]:
    """Return the segments of both methods that a speed-up is over."""
    ours, theirs = paired(ars, sps)
    return (ours, theirs) if len(ours) >= FEWEST else (whole(ars), whole(sps))


def processor_ms(arm: Arm) -> float | None:
    """Return the processor time of a token, of all threads; None where it was not measured."""
    spent = [r.processor_seconds for r in arm.record.rounds]
    known = [seconds for seconds in spent if seconds is not None]
    return 1e3 * sum(known) / token_count(arm) if spent and len(known) == len(spent) else None


def whole(arm: Arm) -> Segments:
    """Return the text as one segment."""
    return [(sum(r.seconds for r in arm.record.rounds), token_count(arm))]


def paired(ars: Arm, sps: Arm) -> tuple[Segments, Segments]:
    """Return the same number of segments of both methods."""
    ours, theirs = (segments(arm.record.rounds, SEGMENT) for arm in (ars, sps))
    both = min(len(ours), len(theirs))
    return ours[:both], theirs[:both]


def token_count(arm: Arm) -> int:
    """Return the number of tokens of a text."""
    return sum(r.emitted for r in arm.record.rounds)


def divergence_of(comparison: Comparison) -> str:
    """State whether the two texts are equal, and interpret a difference."""
    if comparison.identical is None:
        return "tokens: texts differ by design (same law)"
    if comparison.identical:
        return "tokens: identical to ArS"
    found = comparison.divergence
    if found is None and comparison.sps.cell.method.elsewhere:
        return "tokens: texts differ; without the weights it is open why"
    if found is None:
        return "tokens: one text is the beginning of the other"
    meaning = {"tie": "a rounding tie", "bug": "a BUG: please report it"}[found.kind]
    return (
        f"tokens: first difference at token {found.position + 1}: {meaning} "
        f"(logits {found.gap:.3g} apart, rounding {found.tolerance:.3g})"
    )


log = logging.getLogger(__name__)

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]
"""A text to continue, its token ids, or the messages of a conversation with role and content."""


def batch_of(prompt: Any) -> list[Any] | None:
    """Return the prompts of a batch: a list of texts, of lists of token ids, or of conversations.

    None: one prompt.
    """
    several = isinstance(prompt, list | tuple) and len(prompt) > 0
    return (
        list(prompt) if several and all(isinstance(p, str | list | tuple) for p in prompt) else None
    )


def is_chat(prompt: Prompt, chat: bool) -> bool:
    """Return whether a prompt needs the chat template: messages, or text under `chat`."""
    return chat or (not isinstance(prompt, str) and _messages(prompt) is not None)


def ids_of(
    loaded: Loaded, prompt: Prompt, *, chat: bool, system: str | None
) -> list[int] | EnginePrompt:
    """Return the tokens of a prompt; `chat` puts a text into the model's template.

    An engine that has the models elsewhere is given the text or the messages as well.

    Raises:
        UsageError: a system message without a conversation, or an empty text.
        DataError: a model without a template, or invalid token ids or messages.
    """
    messages = _messages(prompt) if not isinstance(prompt, str) else None
    if isinstance(prompt, str) and chat:
        messages = [{"role": "user", "content": prompt}]
    if messages is not None:
        start = [{"role": "system", "content": system}] if system else []
        instead = "Leave --chat out" if chat else "Give the prompt as a text, without --chat"
        if loaded.tokenizer is None:
            return EnginePrompt([*start, *messages])
        return encode_chat(loaded.tokenizer, [*start, *messages], instead=instead)
    if isinstance(prompt, str) and not prompt:
        raise UsageError(
            "the prompt is empty: expected text, or token ids. Give at least one character"
        )
    if system is not None:
        raise UsageError("--system without --chat: expected both or none")
    if loaded.target is None and isinstance(prompt, str):
        return EnginePrompt(prompt, loaded.tokenizer and encode(loaded.tokenizer, prompt))
    if isinstance(prompt, str):
        return encode(loaded.tokenizer, prompt)
    rows = None if loaded.target is None else rows_of(loaded.target)
    return token_ids(cast("Sequence[int]", prompt), rows)


def _messages(prompt: Any) -> list[dict[str, str]] | None:
    """Return `prompt` as messages, or None for token ids and the like."""
    if isinstance(prompt, (Mapping, bytes)):
        raise PromptError(
            f"the prompt is of type {type(prompt).__name__}: expected text, a list of token ids, "
            "or a list of messages. Put it in a list, or decode it"
        )
    if not isinstance(prompt, Sequence) or not any(isinstance(each, Mapping) for each in prompt):
        return None
    for at, each in enumerate(prompt):
        if not isinstance(each, Mapping) or not {"role", "content"} <= each.keys():
            raise PromptError(
                f"message {at} of the prompt is none: expected role and content. Give it both"
            )
    return [{"role": str(each["role"]), "content": str(each["content"])} for each in prompt]


def fitted(
    cell: Cell,
    loaded: Loaded,
    prompt: list[int] | EnginePrompt,
    truncate: bool,
) -> list[int] | EnginePrompt:
    """Return `prompt` if it fits the target's context with the new tokens.

    Raises:
        DataError: the prompt is too long, and truncation is disabled or impossible.
    """
    if loaded.target is None or isinstance(prompt, EnginePrompt):
        return prompt  # the engine refuses what does not fit
    context, wanted = context_of(loaded.target), cell.sampling.max_new_tokens
    if context is None or len(prompt) + wanted <= context:
        return prompt
    needs = f"the prompt has {len(prompt)} tokens and {wanted} are to be generated"
    if wanted >= context:
        raise DataError(
            f"{needs}: expected fewer new tokens, the target's context holds {context} in all. "
            "Lower --max-new-tokens"
        )
    if not truncate:
        raise DataError(
            f"{needs}: expected at most {context} in all, the target's context. "
            "Lower --max-new-tokens, or drop the oldest tokens with --truncate left"
        )
    dropped = len(prompt) + wanted - context
    log.info(
        f"note: dropped the oldest {dropped} of {len(prompt)} prompt tokens to fit the context"
    )
    return prompt[dropped:]
