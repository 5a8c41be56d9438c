"""Golden acceptance: the expected acceptance of a pair of target and head, stored in a file.

The reference is the readable engine in float32. Any other engine must agree by depth within a
tolerance. A head that reads the wrong layer, or whose vocabulary mapping is wrong, still gives
correct text with almost no acceptance, which only such a comparison detects.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spsbench.errors import DataError
from spsbench.loop.types import (
    Context,
    Draft,
    Drafter,
    Drawn,
    Noise,
    Purpose,
    Scores,
    Step,
    Verdict,
    always,
)
from spsbench.methods.build import LoadedDecoderContext
from spsbench.methods.resolve import warp as warp_of
from spsbench.models.cache import Loaded
from spsbench.settings.cell import Cell


class Slot(NamedTuple):
    """A drafted token's law compared with the target's."""

    overlap: float  # acceptance probability
    likeliest: int  # token of the draft's law
    same: bool  # whether both laws have the same argmax


@dataclass
class Led(Noise):
    """Noise and schedule in one: uniforms that draw the tokens of `text`, one after the other.

    Args:
        text: tokens of the target's vocabulary.
        vocab: its size.
        ids: the target's token of each entry of a law; None: entry i is token i.
    """

    text: Sequence[int]
    vocab: int
    ids: Tensor | None = None
    laws: list[Tensor] = field(default_factory=list)  # [V], over the target's vocabulary
    _u: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))

    def uniform(self, purpose: Purpose, n: int) -> Tensor:
        """Return [n] uniforms, set when the laws become known."""
        self._u = torch.full((max(n, 1),), 0.5, dtype=torch.float64)
        return self._u[:n]

    def go_on(self, law: Tensor) -> Tensor:
        """Record the law of the next slot and force its draw; stop if the draw cannot be forced."""
        i = len(self.laws)
        ids = torch.arange(len(law), device=law.device) if self.ids is None else self.ids
        self.laws.append(law.new_zeros(self.vocab).index_copy(0, ids, law))
        mass = float(self.laws[i][self.text[i]])
        if mass > 0 and i < len(self._u):
            cdf = law.double().cpu().cumsum(-1)  # in the order of the law's own entries
            end = float(cdf[int((ids == self.text[i]).nonzero())])
            self._u[i] = (end - mass / 2) / float(cdf[-1])
        return torch.tensor(mass > 0, device=law.device)


@torch.inference_mode()
def along(
    cell: Cell, loaded: Loaded, prompt: Sequence[int], text: Sequence[int], depth: int
) -> list[list[Slot]]:
    """Return for each position of `text` the slots of a draft of `depth` tokens, fewer at its end.

    The target is fed as in rounds that accept everything, so that its passes and hidden states are
    those of its engine.
    """
    context = LoadedDecoderContext(cell, loaded)
    drafter: Drafter = inspect.unwrap(context.drafter())  # type: ignore[arg-type]
    warp = warp_of(cell)
    by_rule = drafter.drawn is Drawn.POINT  # then no law leads a draft, and none is its acceptance
    target = context.target(drafter.layers)
    target.commit(0)
    prefill = target.append(torch.tensor(list(prompt[:-1]), dtype=torch.int64), keep=0)
    drafter.begin(prompt, prefill)
    fed = [prompt[-1], *text]
    laws: list[Tensor] = []
    parts: list[Scores] = []
    for start in range(0, len(fed), depth + 1):
        block = torch.tensor(fed[start : start + depth + 1], dtype=torch.int64)
        parts.append(target.append(block, keep=len(block)))
        target.commit(len(prompt) - 1 + start + len(block))
        laws.append(warp(parts[-1].logits))
    q = torch.cat(laws)  # [n + 1, V]
    hidden = {n: torch.cat([part.hidden[n] for part in parts]) for n in drafter.layers}
    slots_of_texts: list[list[Slot]] = []
    last: Step | None = None
    for place in range(len(text)):
        here = [*prompt, *text[:place]]
        k = min(depth, len(text) - place)
        led = Led(text[place : place + k], q.shape[1], drafter.known_ids)
        # A bare function is no `Warp`: at temperature 0 it has `go_on` get the one-hot laws too.
        by = warp if by_rule else lambda logits: warp(logits)
        go_on = always if by_rule else led.go_on
        draft = drafter.draft(Context(here, by, last, None), k, led, go_on)
        slots_of_texts.append(seen(draft, led, q[place : place + k], text[place : place + k]))
        row = {n: states[place : place + 1] for n, states in hidden.items()}
        last = kept_nothing(Scores(q[place : place + 1], row))
    return slots_of_texts


def seen(draft: Draft, led: Led, q: Tensor, text: Sequence[int]) -> list[Slot]:
    """Return the slots of one draft up to its first difference from the text."""
    if (led.laws and draft.probs is not None) or not len(draft.tokens):
        p = led.laws[: len(q)]
        return [
            Slot(
                float(torch.minimum(law, law_of_target).sum()),
                int(law.argmax()),
                bool(law.argmax() == law_of_target.argmax()),
            )
            for law, law_of_target in zip(p, q, strict=False)
        ]
    slots = []
    for token, law_of_target, right in zip(draft.tokens.tolist(), q, text, strict=False):
        slots.append(Slot(float(law_of_target[token]), token, token == int(law_of_target.argmax())))
        if token != right:
            break
    return slots


def kept_nothing(scores: Scores) -> Step:
    """Return the record of a round that fed the pending token alone."""
    none: Any = torch.empty(0, dtype=torch.int64)
    zero = torch.zeros((), dtype=torch.int64)
    return Step(Draft(none, None), scores, Verdict(none, zero, zero))


SCHEMA = 1
NEAR = 0.02  # tolerance of acceptance at a depth, over all texts; exceeds half-precision rounding
FAINT = 0.05  # acceptance at depth 1 below which the head hardly fits the target


@dataclass(frozen=True, slots=True)
class Passage:
    """A text of the target, and the drafts at each of its positions."""

    name: str
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    slots: tuple[tuple[Slot, ...], ...]


class Depth(NamedTuple):
    """Expected values at a depth, given that all depths before it were accepted."""

    depth: int  # 1 = the first drafted token
    acceptance: float  # mean overlap of the laws
    agreement: float  # share of positions where both laws have the same argmax
    places: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """Expected acceptance of a pair, and the settings of its measurement."""

    target: str
    head: str
    kind: str  # kind of the head, as detected from its files
    drafter: str
    digests: Mapping[str, str]  # digests of local files
    sampling: Mapping[str, Any]
    run: Mapping[str, str]  # dtype and engine
    passages: tuple[Passage, ...]

    @property
    def depths(self) -> list[Depth]:
        """Return acceptance at each depth over all texts."""
        deepest = max((len(s) for p in self.passages for s in p.slots), default=0)
        return [self._at(depth) for depth in range(deepest)]

    def _at(self, depth: int) -> Depth:
        slots = [s[depth] for p in self.passages for s in p.slots if len(s) > depth]
        n = len(slots)
        overlap, same = sum(s.overlap for s in slots), sum(s.same for s in slots)
        return Depth(depth + 1, overlap / n, same / n, n)

    @property
    def kept(self) -> float:
        """Return the expected number of accepted tokens of a draft of full depth."""
        total, chance = 0.0, 1.0
        for depth in self.depths:
            chance *= depth.acceptance
            total += chance
        return total

    def to_json(self) -> dict[str, Any]:
        """Return the values for a file; `depths` and `kept` are recomputed on load."""
        values = asdict(self)
        for passage in values["passages"]:
            passage["slots"] = [
                [[round(slot.overlap, 9), slot.likeliest, slot.same] for slot in slots]
                for slots in passage["slots"]
            ]
        depths = [depth._asdict() for depth in self.depths]
        return {"schema": SCHEMA, "kept": self.kept, "depths": depths, **values}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: str) -> "Golden":
        """Read the values that `to_json` wrote.

        Raises:
            DataError: the values are not golden acceptance.
        """
        try:
            if values["schema"] != SCHEMA:
                raise KeyError("schema")
            passages = tuple(
                Passage(
                    passage["name"],
                    tuple(passage["prompt"]),
                    tuple(passage["tokens"]),
                    tuple(tuple(Slot(*slot) for slot in slots) for slots in passage["slots"]),
                )
                for passage in values["passages"]
            )
            names = ("target", "head", "kind", "drafter", "digests", "sampling", "run")
            return cls(**{name: values[name] for name in names}, passages=passages)
        except (KeyError, TypeError) as error:
            raise DataError(
                f"no golden acceptance of schema {SCHEMA} ({where}): expected what `sps verify "
                "head` has written. Name another file with `golden`"
            ) from error


class Parting(NamedTuple):
    """First difference between a run of the pair and its golden values."""

    depth: int
    expected: float
    found: float
    passage: str  # the text with the widest gap at that depth
    place: int  # tokens of the text before it
    slots: tuple[Slot, Slot]  # expected, found


def parting(golden: Golden, now: Golden) -> Parting | None:
    """Return the first depth with different acceptance, and its position of the widest gap."""
    for one, two in zip(golden.depths, now.depths, strict=False):
        if abs(one.acceptance - two.acceptance) > NEAR:
            return widest(golden, now, one, two)
    shorter = len(now.depths) < len(golden.depths)
    return widest(golden, now, golden.depths[0], now.depths[0]) if shorter and now.depths else None


def widest(golden: Golden, now: Golden, one: Depth, two: Depth) -> Parting:
    """Return the position where the overlaps of a depth differ most."""
    at = one.depth - 1
    pairs = [
        (abs(a[at].overlap - b[at].overlap), passage.name, place, (a[at], b[at]))
        for passage, other in zip(golden.passages, now.passages, strict=True)
        for place, (a, b) in enumerate(zip(passage.slots, other.slots, strict=True))
        if len(a) > at and len(b) > at
    ]
    _, name, place, slots = max(pairs, key=lambda pair: pair[0])
    return Parting(one.depth, one.acceptance, two.acceptance, name, place, slots)


def by_depth(rates: Sequence[float]) -> list[float]:
    """Return the acceptance at each depth, from shares of drafts accepted up to that depth.

    Other engines report such shares: of all drafts those whose token i, and so all before it, was
    accepted.
    """
    before = [1.0, *rates]
    return [now / then if then > 0 else 0.0 for then, now in zip(before, rates, strict=False)]
