"""Logits processors: what the text so far does to a row of logits, before the warp.

They apply in the order of transformers' own, with vLLM's two penalties where transformers has none:
bias, repetition penalty (Keskar et al. 2019, arXiv 1909.05858, section 4.1), frequency and presence
penalty, then bans: n-grams that would repeat, bad words, an end that comes too soon; then what the
caller brings.

A target under processors is a language model of its own, whose distribution depends on the path:
each drafted token counts for those after it, in a tree for its own children. So rows of target and
draft are changed by their own paths, and every rule is exact over the q and p that come out. Each
processor changes a token's logit by that logit and the text alone, and leaves -inf as it is. So a
mask before them and one after them give the same row: a constraint composes in either order.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spsbench.loop.constraint import DeadEndError, Path
from spsbench.loop.sampling import Numbers, send
from spsbench.loop.types import Draft, Scores
from spsbench.settings.processors import Processors


class TextProcessors:
    """The processors of one text, with counts of its tokens that grow as it does.

    Drafted tokens are counted along their paths only, so that nothing is to be taken back when they
    are rejected.
    """

    def __init__(self, processors: Processors, start: int) -> None:
        self._by, self._start = processors, start
        self._ids, self._values = (
            torch.tensor([pair[part] for pair in processors.biases]) for part in (0, 1)
        )
        self._longest = max(map(len, processors.words), default=1)
        self._dead: list[bool] = []  # whether all tokens are banned in a row; empty: in none
        self._restart()

    def _restart(self) -> None:
        self._text: list[int] = []
        self._columns: dict[int, int] = {}  # token of the text -> its column in `_counts`
        self._counts: Numbers = np.zeros((2, 64), np.int64)  # tokens, and how often in the answer
        self._after: dict[Any, set[int]] = {}  # n - 1 tokens -> those that came after them

    def rows(self, logits: Tensor, text: Sequence[int], paths: Sequence[Path]) -> Tensor:
        """Return [n, V] logits under the processors, a copy in float32 (float64 stays).

        Row i follows `text`, prompt and answer so far, and the tokens `paths[i]`; token ids of V
        and more are ignored. A row in which every token is banned keeps its `logits`, unpenalised,
        and is noted for `check`. The tokens by which `text` extends the text of the call before are
        counted; if it does not extend that text, counts begin anew.
        """
        self._follow(text)
        by, width = self._by, logits.shape[-1]
        x = logits.to(torch.float64 if logits.dtype == torch.float64 else torch.float32, copy=True)
        if by.biases:
            in_row = self._ids < width
            x[:, send(self._ids[in_row], x.device)] += send(self._values[in_row].to(x), x.device)
        if (by.repetition, by.frequency, by.presence) != (1, 0, 0):
            self._penalise(x, paths)
        banned = [(row, t) for row, path in enumerate(paths) for t in self._bans(path) if t < width]
        self._dead = []
        if banned:
            x[tuple(send(torch.tensor(banned).T, x.device))] = -torch.inf
        if by.further is not None and paths:
            ids = ((*text, *path) for path in paths)
            x = torch.stack([by.further(*pair) for pair in zip(ids, x, strict=True)])
        if banned or by.further is not None:
            dead = x.amax(-1) == -torch.inf
            if bool(dead.any()):
                x, self._dead = torch.where(dead[:, None], logits.to(x), x), dead.tolist()
        return x

    def along(self, logits: Tensor, text: Sequence[int]) -> Tensor:
        """Return `rows` of [n, V] logits, the last after `text`, each other after a token less."""
        first = len(text) - len(logits) + 1
        paths = [tuple(text[first:end]) for end in range(first, len(text) + 1)]
        return self.rows(logits, text[:first], paths)

    def scores(self, scores: Scores, text: Sequence[int], draft: Draft) -> Scores:
        """Return the target's scores of a draft after `text`, each row under its own path."""
        return scores._replace(logits=self.rows(scores.logits, text, draft.paths))

    def check(self, kept: Sequence[int], text: Sequence[int]) -> None:
        """Raise DeadEndError if all tokens were banned in a row that emits a token of this round.

        These are rows of the last `rows`: row 0, which follows `text`, and row node + 1 of each of
        the `kept` nodes.
        """
        for tokens, row in enumerate((0, *(node + 1 for node in kept))):
            if self._dead and self._dead[row]:
                at = len(text) + tokens
                raise DeadEndError(
                    f"all tokens are banned after {at - self._start} tokens of output (position "
                    f"{at}): expected one that may follow. Lower `no_repeat_ngram` or "
                    "`min_new_tokens`, or take out some of `bad_words`"
                )

    def _penalise(self, x: Tensor, paths: Sequence[Path]) -> None:
        """Penalise [n, V] in place at tokens of the text, and row i at those of `paths[i]` too."""
        width, counts = x.shape[-1], self._counts[:, : len(self._columns)]
        ids, times = send(torch.from_numpy(counts[:, counts[0] < width]), x.device)
        penalised = self._penalised(x[:, ids], times)
        drafted = [
            (row, token, self._times(token) + path.count(token))
            for row, path in enumerate(paths)
            for token in {*path}
            if token < width
        ]
        if not drafted:
            x[:, ids] = penalised
            return
        row, token, times = send(torch.tensor(drafted).T, x.device)
        at_paths = self._penalised(x[row, token], times)
        x[:, ids] = penalised
        x[row, token] = at_paths

    def _times(self, token: int) -> int:
        """Return how often the answer so far has a token."""
        column = self._columns.get(token)
        return 0 if column is None else int(self._counts[1, column])

    def _penalised(self, x: Tensor, times: Tensor) -> Tensor:
        """Return penalised logits of tokens in the text; `times`: how often the answer has each."""
        by = self._by
        if by.repetition != 1:
            scaled = torch.where(x < 0, x * by.repetition, x / by.repetition)
            x = torch.where(times > 0, scaled, x) if by.of_answer else scaled
        if by.frequency or by.presence:
            x = x - by.frequency * times.to(x) - by.presence * (times > 0).to(x)
        return x

    def _bans(self, path: Path) -> set[int]:
        """Return the ids of the tokens that may not follow the text and `path`.

        They are EOS ids before the answer has its least number of tokens, the last token of a bad
        word whose others come before, and tokens that would repeat an n-gram.
        """
        by, length, banned = self._by, len(self._text), set[int]()
        if length - self._start + len(path) < by.least:
            banned |= by.eos
        tail = (*self._text[max(0, length - self._longest + 1) :], *path)
        for *before, last in by.words:
            if not before or tail[-len(before) :] == tuple(before):
                banned.add(last)
        if by.ngram:
            n = by.ngram - 1
            tail = (*self._text[max(0, length - n) :], *path)
            key = tail[len(tail) - n :] if len(tail) >= n else None
            banned |= self._after.get(key, set())
            ends = range(n, len(tail))
            banned |= {tail[end] for end in ends if tail[end - n : end] == key}
        return banned

    def _follow(self, text: Sequence[int]) -> None:
        """Count tokens and n-grams by which `text` extends the counted text; else count all."""
        if list(text[: len(self._text)]) != self._text:
            self._restart()
        n = self._by.ngram - 1
        for at, token in enumerate(text[len(self._text) :], start=len(self._text)):
            column = self._columns.setdefault(token, len(self._columns))
            if column == self._counts.shape[1]:
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)], 1)
            self._counts[0, column] = token
            self._counts[1, column] += at >= self._start
            if n >= 0 and at >= n:
                self._after.setdefault(tuple(self._text[at - n :]), set()).add(token)
            self._text.append(token)
