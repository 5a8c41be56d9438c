"""Distributions of a model's weights at the tokens of a server's texts, as columns of `laws`.

The package's own forward pass scores the weights without a cache; this module maps listed tokens to
ids, and loads no torch. If an engine lists tokens by text, two ids may share a text: such ids are
in no column, and a text is used up to and including its first ambiguous token, which causes no
selection bias.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile

import numpy as np

from spsbench.audit.statistical.betting import Floats
from spsbench.errors import DataError
from spsbench.extensions.check.columns import BY_ID, END, Columns, columns, is_whole
from spsbench.extensions.check.cuts import WHOLE, Cut, cut_law
from spsbench.foreign import UNLISTED
from spsbench.serving.engines import Answer, Stated

WIDTH = 32  # likeliest tokens that are columns; the end of a text is one more
APART = 0.5  # median nats between stated and scored that rounding cannot explain
AGREE = 0.6  # share of equal greedy tokens expected of the same model
LOST = 0.15  # mean nats that its own choice may have over the server's


@dataclass(frozen=True)
class Weights:
    """A model scored on this machine.

    Args:
        name: the name given by the user.
        score: (prompt, tokens) -> [n, V] logits at each of `tokens`.
        encode: text of a prompt -> ids.
        chat: text of one user's message -> ids of the whole template.
        texts: [V] text of each id; None for an id without text.
        ends: ids that end a text.
        bos: the id that begins a text, if the tokenizer has one.
    """

    name: str
    score: Callable[[Sequence[int], Sequence[int]], Floats]
    encode: Callable[[str], list[int]]
    chat: Callable[[str], list[int]]
    texts: Sequence[str | None]
    ends: frozenset[int]
    bos: int | None = None

    @cached_property
    def ids(self) -> Mapping[str, int]:
        """Return the ids of the texts that belong to a single token."""
        counts = Counter(self.texts)
        return {
            text: i
            for i, text in enumerate(self.texts)
            if text and counts[text] == 1 and is_whole(text) and i not in self.ends
        }

    def tokens(self, answer: Answer) -> list[int]:
        """Return the ids of an answer up to the first ambiguous token."""
        if answer.ids is not None:
            return list(answer.ids)
        return [self.ids[key] for key in takewhile(self.ids.__contains__, answer.keys)]

    def columns(
        self,
        prompt: Sequence[int],
        answer: Answer,
        temperature: float,
        draft: "Weights | None" = None,
        cut: Cut = WHOLE,
    ) -> Columns:
        """Score an answer and sort the distributions into columns; with those `draft` prefers.

        A place where rounding may move the edge of the cut has no columns.
        """
        ids = self.tokens(answer)
        listed = len(answer.ids if answer.ids is not None else answer.keys)
        ended = answer.finish == "stop" and not (ids and ids[-1] in self.ends)
        # One more position: the ambiguous token, or the end that the engine does not list.
        more = len(ids) < listed or (ended and len(ids) == listed)
        fed = [*ids, 0] if more else ids
        law, settled = cut_law(self.score(prompt, fed), temperature, cut)
        n = len(law)
        sure = self._sure(answer.ids is not None, law.shape[1])
        end = [i for i in self.ends if i < law.shape[1]]
        best = np.argsort(-np.where(sure, law, -1.0), axis=1)[:, :WIDTH]

        def listed_mass(law: Floats) -> Floats:
            mass = np.take_along_axis(law, best, 1) * np.take_along_axis(sure[None], best, 1)
            return np.hstack([mass, law[:, end].sum(1, keepdims=True)])

        mass, drafted = listed_mass(law), None
        if draft is not None:
            logits = draft.score(prompt, fed)[:, : law.shape[1]]
            other = listed_mass(cut_law(logits, temperature, cut)[0])
            unlisted = other.sum(1, keepdims=True) < mass.sum(1, keepdims=True)
            drafted = np.hstack([other > mass, unlisted])
        keys = [[*(f"#{i}" for i in row), END] for row in best.tolist()]
        column_of = np.full(n, mass.shape[1])
        for i, token in enumerate(ids[:n]):
            if token in self.ends:
                column_of[i] = mass.shape[1] - 1
            elif token in best[i] and sure[token] and law[i, token] > 0:
                column_of[i] = best[i].tolist().index(token)
        if ended and listed < n:
            column_of[listed] = mass.shape[1] - 1
        mass[~settled], column_of[~settled] = 0.0, mass.shape[1]
        tokens = [f"#{i}" for i in ids] + [END] * (n - len(ids))
        return Columns(keys, mass, column_of, tokens[:n], drafted)

    def _sure(self, by_id: bool, size: int) -> np.ndarray:
        sure = np.full(size, by_id)
        sure[[i for i in self.ids.values() if i < size]] = True
        sure[[i for i in self.ends if i < size]] = False
        return sure

    def restated(self, stated: Sequence[Stated], n: int) -> Columns:
        """Convert an engine's stated distributions to columns by id, like those of `columns`."""
        rows = [
            [(key if BY_ID.fullmatch(key) else f"#{self.ids[key]}", lp) for key, lp in row
             if BY_ID.fullmatch(key) or key in self.ids]
            for row in stated[:n]
        ]  # fmt: skip
        return columns(rows, [""] * len(rows), max(map(len, rows), default=1))

    def prompt(self, text: str, answer: Answer, *, chat: bool) -> tuple[list[int], str]:
        """Return the prompt ids used by the server, and a remark on them.

        Raises:
            DataError: the server's count differs from the tokenizer's, and it lists no ids.
        """
        encoded = self.chat(text) if chat else self.encode(text)
        theirs, count = answer.prompt_ids, answer.prompt_tokens
        added = [self.bos, *encoded] if self.bos is not None else encoded
        begun = "a second BOS" if encoded[:1] == [self.bos] else "a BOS"
        remark = f"the server puts {begun} before the prompt (id {self.bos})"
        if theirs is not None and list(theirs) != encoded:
            other = "the server's prompt has other ids than the tokenizer's"
            return list(theirs), remark if list(theirs) == added else other
        if theirs is not None or count in (None, len(encoded)):
            return encoded, ""
        if count == len(added):
            return added, f"{remark}, as the number of its tokens says"
        raise DataError(
            f"{count} tokens of a prompt on the server, {len(encoded)} by the tokenizer "
            f"({self.name}): expected the same. Name the model that the server runs"
        )

    def log_probs(self, prompt: Sequence[int], ids: Sequence[int]) -> Floats:
        """Return [n, V] the logarithms of the probabilities at each of `ids`."""
        logits = self.score(prompt, ids)
        shifted = logits - logits.max(1, keepdims=True)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(1, keepdims=True)))

    def check_same(self, prompts: Sequence[Sequence[int]], greedy: Sequence[Answer]) -> float:
        """Reject weights of another model; return the median difference in nats.

        Each text is judged alone and the median of the texts decides, since a server's bug may
        spoil a text.

        Raises:
            DataError: the model or its tokens differ from the server's.
        """
        measured = [self._apart(*pair) for pair in zip(prompts, greedy, strict=True)]
        same, lost, apart = np.median(measured, axis=0).tolist()
        if apart > APART:
            raise self._another(f"its greedy tokens are {apart:.2g} nats apart on the median")
        if same < AGREE or lost > LOST:
            raise self._another(
                f"it chooses {same:.0%} of the server's greedy tokens, and gives them {lost:.2g} "
                "nats less than its own on the mean"
            )
        return float(apart)

    def _apart(self, prompt: Sequence[int], greedy: Answer) -> tuple[float, float, float]:
        """Return the share of equal tokens, the nats lost by the others, and the nats apart."""
        ids = self.tokens(greedy)
        listed = len(greedy.ids if greedy.ids is not None else greedy.keys)
        if any(i >= len(self.texts) for i in ids) or (listed and len(ids) < min(4, listed)):
            raise self._another("its tokens are not in the vocabulary")
        if not ids:
            return 1.0, 0.0, 0.0
        scored = self.log_probs(prompt, ids)
        chosen = scored[np.arange(len(ids)), ids]
        pairs = zip(greedy.own, chosen.tolist(), strict=False)
        apart = [abs(stated - logprob) for stated, logprob in pairs if stated > UNLISTED]
        return (
            float(np.mean(scored.argmax(1) == ids)),
            float((scored.max(1) - chosen).mean()),
            float(np.median(apart)) if apart else 0.0,
        )

    def _another(self, why: str) -> DataError:
        return DataError(
            f"weights of another model than the server's ({self.name}: {why}): expected the model "
            "that it runs. Name it with `weights`, or leave that out"
        )
