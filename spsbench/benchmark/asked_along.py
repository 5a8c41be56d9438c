"""A draft by rule, asked at every position of a finished text."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Context, Draft, Drafter, Purpose, Scores, Step, Verdict
from spsbench.planning.forecast.traces import Proposed


def proposed(
    drafter: Drafter,
    prompt: Sequence[int],
    tokens: Sequence[int],
    rows: Tensor,
    warp: Warp,
    most: int,
) -> tuple[Proposed, bool]:
    """What it proposes and how far it hits; whether that is not all that there is to say.

    Rounds before are those of auto-regressive sampling: `rows` [L, V] are the logits they had. A
    drafter that looks at them would have seen others in rounds with drafts; one that draws at
    random would have proposed something else another time.
    """
    text, start = [*prompt, *tokens], len(prompt)
    watch = Watch()
    noise = WatchedNoise(watch)
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


def first_laws(
    drafter: Drafter, prompt: Sequence[int], tokens: Sequence[int], rows: Tensor, warp: Warp, k: int
) -> Tensor | None:
    """[n, V] the law of the first slot of a draft of `k` after each position of a text.

    n may be less than there are tokens: there its context is full. None: it is silent now and then.
    """
    text, start = [*prompt, *tokens], len(prompt)
    ends = len(text) if drafter.limit is None else min(len(text), drafter.limit)
    watch, found = Watch(), []
    drafter.begin(prompt, Scores(rows[:0], {}))
    last: Step | None = None
    for t in range(max(ends - start, 0)):
        draft = drafter.draft(
            Context(text[: start + t], warp, last), k, PhiloxStream(0).round(t), always
        )
        if draft.probs is None or len(draft.tokens) == 0:
            return None
        found.append(draft.probs[0])
        last = watch.step(rows[t : t + 1], tokens[t])
    return torch.stack(found) if found else None


class WatchedNoise:
    """Noise that tells when it is asked for; each position has its own."""

    def __init__(self, watch: "Watch") -> None:
        self._watch = watch

    def round(self, index: int) -> "WatchedRound":
        """That of a round."""
        return WatchedRound(self._watch, index)


class WatchedRound:
    """One round of it."""

    def __init__(self, watch: "Watch", index: int) -> None:
        self._watch, self._noise = watch, PhiloxStream(0).round(index)

    def uniform(self, purpose: Purpose, n: int) -> Tensor:
        """[n] numbers."""
        self._watch.looked |= n > 0
        return self._noise.uniform(purpose, n)


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
        if name in Step._fields:
            watch = super().__getattribute__("watch")
            if watch is not None:
                watch.looked = True
        return super().__getattribute__(name)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.draft, self.scores, self.verdict, self.kept))


def always(p: Tensor) -> Tensor:
    """Draft on."""
    return torch.ones((), dtype=torch.bool)
