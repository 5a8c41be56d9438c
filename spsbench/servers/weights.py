"""The laws of a model's weights at the tokens of a server's texts, in the columns of `laws`.

The weights are scored by the package's own forward pass without a cache; this module only maps what
a server lists to ids, so it loads no torch itself. Where an engine lists tokens by their text, two
ids may share one: such ids are in no column, and a text is used up to and with its first token that
is ambiguous, which selects nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from spsbench.audit.statistical.betting import Floats
from spsbench.errors import DataError
from spsbench.servers.engines import Answer, Stated
from spsbench.servers.laws import END, Columns

WIDTH = 32  # likeliest tokens that are columns; the end of a text is one more
APART = 0.5  # nats between stated and scored, on the median, that no rounding explains
AGREE = 0.6  # share of greedy tokens that the same model chooses


@dataclass(frozen=True)
class Weights:
    """A model that is scored here.

    Args:
        name: as the user gave it.
        score: (prompt, tokens) -> [n, V] logits at each of `tokens`.
        encode: text of a prompt -> ids.
        chat: text of one user's message -> ids of the whole template.
        texts: [V] text of each id; None for one that has none of its own.
        ends: ids that end a text.
        bos: the id that begins one, if the tokenizer has one.
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
        """Ids of the texts that only one token has."""
        found: dict[str, int] = {}
        twice: set[str] = set()
        for i, text in enumerate(self.texts):
            if text and "\ufffd" not in text and i not in self.ends:
                twice |= {text} & found.keys()
                found[text] = i
        return {text: i for text, i in found.items() if text not in twice}

    def tokens(self, answer: Answer) -> list[int] | None:
        """Return the ids of an answer up to the first that is ambiguous; None without any."""
        if answer.ids is not None:
            return list(answer.ids)
        if not answer.keys:
            return None
        found = []
        for key in answer.keys:
            if key not in self.ids:
                break
            found.append(self.ids[key])
        return found

    def columns(self, prompt: Sequence[int], answer: Answer, temperature: float) -> Columns:
        """Score an answer and sort the laws into columns."""
        ids = self.tokens(answer) or []
        listed = len(answer.ids if answer.ids is not None else answer.keys)
        ended = answer.finish == "stop" and not (ids and ids[-1] in self.ends)
        # One place more: the ambiguous token, or the end that the engine does not list.
        more = len(ids) < listed or (ended and len(ids) == listed)
        logits = self.score(prompt, [*ids, 0] if more else ids)
        n = len(logits)
        law = np.exp((logits - logits.max(1, keepdims=True)) / temperature)
        law /= law.sum(1, keepdims=True)
        sure = self._sure(answer.ids is not None, law.shape[1])
        end = [i for i in self.ends if i < law.shape[1]]
        best = np.argsort(-np.where(sure, law, -1.0), axis=1)[:, :WIDTH]
        mass = np.take_along_axis(law, best, 1) * np.take_along_axis(sure[None], best, 1)
        mass = np.hstack([mass, law[:, end].sum(1, keepdims=True)])
        keys = [[*(f"#{i}" for i in row), END] for row in best.tolist()]
        own = np.full(n, mass.shape[1])
        for i in range(n):
            at = np.flatnonzero(best[i] == ids[i]) if i < len(ids) else best[:0, 0]
            if (i < len(ids) and ids[i] in self.ends) or (i == listed and ended):
                own[i] = mass.shape[1] - 1
            elif len(at) and sure[ids[i]]:
                own[i] = int(at[0])
        tokens = [f"#{i}" for i in ids] + [END] * (n - len(ids))
        return Columns(keys, mass, own, tokens[:n])

    def _sure(self, by_id: bool, size: int) -> np.ndarray:
        sure = np.ones(size, np.bool_) if by_id else np.zeros(size, np.bool_)
        if not by_id:
            sure[[i for i in self.ids.values() if i < size]] = True
        sure[[i for i in self.ends if i < size]] = False
        return sure

    def restated(self, stated: Sequence[Stated], n: int) -> Columns:
        """Bring what an engine states into columns by id, to compare it with `columns`."""
        rows = [
            [(key if key.startswith("#") else f"#{self.ids[key]}", lp) for key, lp in row
             if key.startswith("#") or key in self.ids]
            for row in stated[:n]
        ]  # fmt: skip
        width = max((len(row) for row in rows), default=1) or 1
        mass = np.zeros((len(rows), width))
        for i, row in enumerate(rows):
            mass[i, : len(row)] = np.exp([lp for _, lp in row])
        keys = [[key for key, _ in row] for row in rows]
        return Columns(keys, mass, np.full(len(rows), width), [""] * len(rows))

    def prompt(self, text: str, answer: Answer, *, chat: bool) -> tuple[list[int], str]:
        """Return the ids that the server has put before its answer, and a remark on them.

        Raises:
            DataError: it counts other tokens than the tokenizer, and does not say which.
        """
        own = self.chat(text) if chat else self.encode(text)
        theirs, count = answer.prompt_ids, answer.prompt_tokens
        added = [self.bos, *own] if self.bos is not None else own
        twice = self.bos is not None and own[:1] == [self.bos]
        begun = "a second BOS" if twice else "a BOS"
        remark = f"the server puts {begun} before the prompt (id {self.bos})"
        if theirs is not None:
            if list(theirs) == own:
                return own, ""
            other = "the server's prompt has other ids than the tokenizer's"
            return list(theirs), remark if list(theirs) == added else other
        if count in (None, len(own)):
            return own, ""
        if count == len(added):
            return added, f"{remark}, as the number of its tokens says"
        raise DataError(
            f"{count} tokens of a prompt on the server, {len(own)} by the tokenizer "
            f"({self.name}): expected the same. Name the model that the server runs"
        )

    def check_same(self, prompt: Sequence[int], greedy: Answer) -> float:
        """Refuse weights of another model; return the median difference in nats.

        Raises:
            DataError: they are of another model than the server's, or their tokens are.
        """
        ids = self.tokens(greedy) or []
        listed = len(greedy.ids if greedy.ids is not None else greedy.keys)
        size = len(self.texts)
        if any(i >= size for i in ids) or (listed and len(ids) < min(4, listed)):
            raise self._another("its tokens are not in the vocabulary")
        logits = self.score(prompt, ids) if ids else np.zeros((0, size))
        shifted = logits - logits.max(1, keepdims=True)
        scored = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
        apart = [
            abs(own - float(row[i]))
            for own, row, i in zip(greedy.own, scored, ids, strict=False)
        ]  # fmt: skip
        if apart and (median := float(np.median(apart))) > APART:
            raise self._another(f"its greedy tokens are {median:.2g} nats apart on the median")
        same = float(np.mean(logits.argmax(1) == np.array(ids[: len(logits)]))) if ids else 1.0
        if same < AGREE:
            raise self._another(f"it chooses {same:.0%} of the server's greedy tokens")
        return float(np.median(apart)) if apart else 0.0

    def _another(self, why: str) -> DataError:
        return DataError(
            f"weights of another model than the server's ({self.name}: {why}): expected the model "
            "that it runs. Name it with --weights, or leave that out"
        )
