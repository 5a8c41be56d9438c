"""A draft by rule, asked at every position of a finished text."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spsbench.forecast.traces import Proposed
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Context, Draft, Drafter, Scores, Step, Verdict


def proposed(
    drafter: Drafter,
    prompt: Sequence[int],
    tokens: Sequence[int],
    rows: Tensor,
    warp: Warp,
    most: int,
) -> tuple[Proposed, bool]:
    """What it proposes and how far it hits; whether it looked at the rounds before.

    Those are rounds of auto-regressive sampling: `rows` [L, V] are the logits they had. A drafter
    that looks would have seen others in rounds with drafts, so that what it says is not exact.
    """
    text, start = [*prompt, *tokens], len(prompt)
    noise, watch = PhiloxStream(0), Watch()
    drafter.begin(prompt, Scores(rows[:0], {}))
    counts, hits = [], []
    last: Step | None = None
    for t, token in enumerate(tokens):
        context = Context(text[: start + t], warp, last)
        found = drafter.draft(context, most, noise.round(t), always).tokens.tolist()
        ahead = tokens[t : t + len(found)]
        pairs = enumerate(zip(found, ahead, strict=False))
        counts.append(len(found))
        hits.append(next((i for i, (a, b) in pairs if a != b), len(ahead)))
        last = watch.step(rows[t : t + 1], token)
    columns = np.array(counts, np.uint8), np.array(hits, np.uint8)
    return Proposed(proposed=columns[0], hits=columns[1]), watch.looked


class Watch:
    """The rounds before, as auto-regressive sampling has them; notes whether anybody looks."""

    def __init__(self) -> None:
        self.looked = False

    def step(self, logits: Tensor, token: int) -> Step:
        """The round that made `token`."""
        none = torch.empty(0, dtype=torch.int64)
        verdict = Verdict(none, torch.tensor(token), torch.tensor(0))
        return WatchedStep(Draft(none, None), Scores(logits, {}), verdict).under(self)


class WatchedStep(Step):
    """A round that tells when it is looked at."""

    watch: Watch | None = None

    def under(self, watch: Watch) -> "WatchedStep":
        """Tell `watch`."""
        self.watch = watch
        return self

    def __getattribute__(self, name: str) -> Any:
        if name in ("draft", "scores", "verdict"):
            watch = super().__getattribute__("watch")
            if watch is not None:
                watch.looked = True
        return super().__getattribute__(name)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.draft, self.scores, self.verdict))


def always(p: Tensor) -> Tensor:
    """Draft on."""
    return torch.ones((), dtype=torch.bool)
