"""How much of a given text a drafter would have got right, depth by depth, without any chance.

The text is the target's. At each of its places the drafter drafts as it does in a round, but its
draws are led along the text: the uniform of each slot is put into the cell of the text's next token
when the schedule is asked about that slot's law. So slot i is seen after i right tokens, and what
is expected of it, the overlap sum_x min(p, q), has no noise of its own. Any drafter that draws a
chain from laws can be led so, a head, a draft model or a plug-in; one that drafts by rule is
followed as far as it is right.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spsbench.loop.types import Context, Draft, Noise, Purpose, Scores, Step, Verdict
from spsbench.methods.build import LoadedStand
from spsbench.methods.resolve import warp as warp_of
from spsbench.models.cache import Loaded
from spsbench.settings.cell import Cell


class Slot(NamedTuple):
    """A drafted token's law beside the target's."""

    overlap: float  # chance that it would be kept
    likeliest: int  # token of the draft's law
    same: bool  # whether that is the target's likeliest, too


@dataclass
class Led(Noise):
    """Noise and schedule at once: uniforms that draw the tokens `wanted`, one after the other."""

    wanted: Sequence[int]
    laws: list[Tensor] = field(default_factory=list)
    _u: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))

    def uniform(self, purpose: Purpose, n: int) -> Tensor:
        """[n] numbers that are set as the laws become known."""
        self._u = torch.full((max(n, 1),), 0.5, dtype=torch.float64)
        return self._u[:n]

    def go_on(self, law: Tensor) -> Tensor:
        """Note the law of the next slot, and lead its draw; end where it cannot be led."""
        i = len(self.laws)
        self.laws.append(law)
        cdf = law.double().cpu().cumsum(-1)
        token = self.wanted[i]
        end, mass = float(cdf[token]), float(law[token])
        if i < len(self._u):
            self._u[i] = (end - mass / 2) / float(cdf[-1])
        return torch.tensor(mass > 0, device=law.device)


@torch.inference_mode()
def along(
    cell: Cell, loaded: Loaded, prompt: Sequence[int], text: Sequence[int], depth: int
) -> list[list[Slot]]:
    """For each place of `text` the slots of a draft of `depth` tokens, fewer at its end.

    The target is fed as in rounds that keep everything, so that its passes, and the hidden states
    that it hands on, are those of its engine.
    """
    stand = LoadedStand(cell, loaded)
    drafter, warp = stand.drafter(), warp_of(cell)
    target = stand.target(drafter.layers)
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
    found: list[list[Slot]] = []
    last: Step | None = None
    for place in range(len(text)):
        here = [*prompt, *text[:place]]
        k = min(depth, len(text) - place)
        led = Led(text[place : place + k])
        draft = drafter.draft(Context(here, warp, last, None), k, led, led.go_on)
        found.append(seen(draft, led, q[place : place + k], text[place : place + k]))
        row = {n: states[place : place + 1] for n, states in hidden.items()}
        last = kept_nothing(Scores(q[place : place + 1], row))
    return found


def seen(draft: Draft, led: Led, q: Tensor, text: Sequence[int]) -> list[Slot]:
    """The slots of one draft, as far as it followed the text."""
    if (led.laws and draft.probs is not None) or not len(draft.tokens):
        p = led.laws[: len(q)]
        return [
            Slot(
                float(torch.minimum(law, own).sum()),
                int(law.argmax()),
                bool(law.argmax() == own.argmax()),
            )
            for law, own in zip(p, q, strict=False)
        ]
    slots = []
    for token, own, right in zip(draft.tokens.tolist(), q, text, strict=False):
        slots.append(Slot(float(own[token]), token, token == int(own.argmax())))
        if token != right:
            break
    return slots


def kept_nothing(scores: Scores) -> Step:
    """A round in which nothing was drafted: the pending token alone was fed."""
    none: Any = torch.empty(0, dtype=torch.int64)
    zero = torch.zeros((), dtype=torch.int64)
    return Step(Draft(none, None), scores, Verdict(none, zero, zero))
