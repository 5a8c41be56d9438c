"""Distributions of a model's weights at the tokens of a server's texts, as columns of `bets`.

The package's own forward pass scores the weights without a cache; this module maps listed tokens to
ids, and loads no torch. If an engine lists tokens by text, two ids may share a text: such ids are
in no column, and a text is used up to its first ambiguous token, included: no selection bias.

vLLM and SGLang cut by top-k and top-p after the temperature, engines on llama.cpp before it. Where
rounding may move a token across the edge, no bet is made: this depends on the prefix alone.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from typing import Any

import numpy as np

from spsbench.audit.statistical.betting import Bits, Floats
from spsbench.audit.statistical.positions import distributions_of
from spsbench.audit.statistical.processed import process_logits
from spsbench.errors import DataError
from spsbench.extensions.check.columns import BY_ID, END, Columns, as_columns, is_whole
from spsbench.serving.engines import Answer, Stated
from spsbench.settings.cell import WarpSettings
from spsbench.settings.processors import Processors

NATS = 1e-3  # two logarithms this near may change places at the edge of top-k
MASS = 1e-3  # what rounding at the edge may move without being felt
WIDTH = 32  # likeliest tokens that are columns; the end of a text is one more


@dataclass(frozen=True, slots=True)
class Cut:
    """Top-k and top-p of sampled texts; 0 and 1 are off."""

    top_k: int = 0
    top_p: float = 1.0
    first: bool = False  # before the temperature
    rounding: float = 0.0  # mass by which another kernel may differ

    @property
    def moved(self) -> float:
        """Return the mass that the edge may move at a place that is bet on."""
        return 2 * self.rounding + MASS if self.top_k or self.top_p < 1 else 0.0


def cut_probs(logits: Floats, temperature: float, cut: Cut) -> tuple[Floats, Bits]:
    """Return distributions [n, V] under `cut`, and [n] whether rounding cannot move the edge."""
    probs = distributions_of(logits, WarpSettings(temperature)).probs
    sure = np.ones(len(logits), np.bool_)
    if not cut.moved or not len(probs):
        return probs, sure
    at = 1.0 if cut.first else temperature  # what the cut looks at
    warped = distributions_of(logits, WarpSettings(at, cut.top_k, cut.top_p))
    if 0 < cut.top_k < probs.shape[1]:
        falling = -np.sort(-warped.scaled, axis=1)
        last, beyond = falling[:, cut.top_k - 1], falling[:, cut.top_k]
        mass = np.exp(beyond) / np.exp(falling[:, : cut.top_k]).sum(1)
        sure &= (last - beyond > NATS + cut.rounding) | (mass < MASS)
    before = warped.mass  # mass of the likelier tokens, where top-p cuts
    near = (abs(before - cut.top_p) <= cut.rounding + 1e-6) & (before > 0)
    uncut = distributions_of(logits, WarpSettings(temperature=at, top_k=cut.top_k)).probs
    sure &= (uncut * near).sum(1) <= cut.moved
    probs = np.where(warped.probs > 0, probs, 0.0)
    return probs / probs.sum(1, keepdims=True), sure


@dataclass(frozen=True)
class LocalModel:
    """A model scored on this machine."""

    name: str  # as the user gave it
    score: Callable[[Sequence[int], Sequence[int]], Floats]  # (prompt, n tokens) -> [n, V] logits
    encode: Callable[[str], list[int]]  # text of a prompt -> ids
    chat: Callable[[str], list[int]]  # text of one user's message -> ids of the whole template
    texts: Sequence[str | None]  # [V] text of each id; None for an id without text
    ends: frozenset[int]  # ids that end a text
    bos: int | None = None  # the id that begins a text, if the tokenizer has one
    processors: Processors | None = None  # `under` them texts are scored

    def under(self, processors: Processors | None) -> "LocalModel":
        """Return these weights, scoring under `processors` on top of any before; None: `self`."""

        def score(prompt: Sequence[int], tokens: Sequence[int]) -> Floats:
            logits = self.score(prompt, tokens)
            texts = ([*prompt, *tokens[:at]] for at in range(len(logits)))
            return process_logits(logits, texts, len(prompt), processors)

        return self if processors is None else replace(self, score=score)

    @cached_property
    def ids(self) -> Mapping[str, int]:
        """Return text -> id, for whole characters that one token alone has, no special or end."""
        counts = Counter(self.texts)
        return {
            text: i
            for i, text in enumerate(self.texts)
            if text and counts[text] == 1 and is_whole(text) and i not in self.ends
        }

    def tokens(self, answer: Answer) -> list[int]:
        """Return the ids of an answer: as told, else of its keys up to the first ambiguous one."""
        if answer.ids is not None:
            return list(answer.ids)
        return [self.ids[key] for key in takewhile(self.ids.__contains__, answer.keys)]

    def columns(
        self,
        prompt: Sequence[int],
        answer: Answer,
        temperature: float,
        draft: "LocalModel | None" = None,
        cut: Cut = Cut(),  # frozen
    ) -> Columns:
        """Score an answer after `prompt` at a temperature, and return its places as columns.

        The columns are the likeliest tokens, and one for all that end a text. An ambiguous token,
        or an end that the engine does not list, is the last place. Where rounding may move the edge
        of the cut there are no columns. `drafted` are those that `draft` finds likelier, if given.
        """
        ids = self.tokens(answer)
        listed = len(answer.ids if answer.ids is not None else answer.keys)
        ended = answer.finish == "stop" and not (ids and ids[-1] in self.ends)
        # One more position: the ambiguous token, or the end that the engine does not list.
        more = len(ids) < listed or (ended and len(ids) == listed)
        fed = [*ids, 0] if more else ids
        probs, stable = cut_probs(self.score(prompt, fed), temperature, cut)
        n = len(probs)
        end = [i for i in self.ends if i < probs.shape[1]]
        sure = np.full(probs.shape[1], answer.ids is not None)
        sure[[i for i in self.ids.values() if i < len(sure)]] = True
        sure[end] = False
        best = np.argsort(-np.where(sure, probs, -1.0), axis=1)[:, :WIDTH]

        def listed_mass(probs: Floats) -> Floats:
            mass = np.take_along_axis(probs, best, 1) * np.take_along_axis(sure[None], best, 1)
            return np.hstack([mass, probs[:, end].sum(1, keepdims=True)])

        mass, drafted = listed_mass(probs), None
        if draft is not None:
            logits = draft.score(prompt, fed)[:, : probs.shape[1]]
            other = listed_mass(cut_probs(logits, temperature, cut)[0])
            unlisted = other.sum(1, keepdims=True) < mass.sum(1, keepdims=True)
            drafted = np.hstack([other > mass, unlisted])
        keys = [[*(f"#{i}" for i in row), END] for row in best.tolist()]
        column_of = np.full(n, mass.shape[1])
        for i, token in enumerate(ids[:n]):
            if token in self.ends:
                column_of[i] = mass.shape[1] - 1
            elif token in best[i] and sure[token] and probs[i, token] > 0:
                column_of[i] = best[i].tolist().index(token)
        if ended and listed < n:
            column_of[listed] = mass.shape[1] - 1
        mass[~stable], column_of[~stable] = 0.0, mass.shape[1]
        tokens = [f"#{i}" for i in ids] + [END] * (n - len(ids))
        return Columns(keys, mass, column_of, tokens[:n], drafted)

    def restated(self, stated: Sequence[Stated], n: int) -> Columns:
        """Return the first `n` rows by id as columns, the rest emitted; keys of no id drop out."""
        rows = [
            [(key if BY_ID.fullmatch(key) else f"#{self.ids[key]}", lp) for key, lp in row
             if BY_ID.fullmatch(key) or key in self.ids]
            for row in stated[:n]
        ]  # fmt: skip
        return as_columns(rows, [""] * len(rows))

    def prompt(self, text: str, answer: Answer, *, chat: bool) -> tuple[list[int], str]:
        """Return the prompt ids used by the server, and a remark if they are not the tokenizer's.

        They are the answer's own, else the tokenizer's, after one BOS more if the answer counts it;
        DataError: it counts others. Without a count they stay. `chat`: `text` is a user's message.
        """
        encoded = self.chat(text) if chat else self.encode(text)
        theirs, count = answer.prompt_ids, answer.prompt_tokens
        begun = "a second BOS" if encoded[:1] == [self.bos] else "a BOS"
        remark = f"the server puts {begun} before the prompt (id {self.bos})"
        remarks = {tuple(encoded): ""}
        remarks |= {} if self.bos is None else {(self.bos, *encoded): remark}
        if theirs is not None:
            other = "the server's prompt has other ids than the tokenizer's"
            return list(theirs), remarks.get(tuple(theirs), other)
        for ids, line in remarks.items():
            if count in (None, len(ids)):
                return list(ids), line and f"{line}, as the number of its tokens says"
        raise DataError(
            f"{count} tokens of a prompt on the server, {len(encoded)} by the tokenizer "
            f"({self.name}): expected the same. Name the model that the server runs"
        )

    def another(self, why: str) -> DataError:
        """Return the error of weights of another model than the server's."""
        return DataError(
            f"weights of another model than the server's ({self.name}: {why}): expected the model "
            "that it runs. Name it with `weights`, or leave that out"
        )


def load_weights(
    name: str, *, adapter: str | None = None, offline: bool = False, **sampling: Any
) -> LocalModel:
    """Load a model in float32, to score tokens by a plain forward pass without a cache.

    `adapter` is merged into it, `offline` downloads nothing, and `sampling` are options of logits
    processors that are on. SpsError: it cannot be loaded.
    """
    from spsbench.audit.statistical.forward import Scorer
    from spsbench.pair.load import load

    how: dict[str, Any] = {"engine": "eager", "dtype": "float32", "offline": offline}
    pair: Any = load(target=name, adapter=adapter, k=0, **how)
    cell, loaded = pair.configured()
    tokenizer = loaded.tokenizer

    def chat(text: str) -> list[int]:
        messages = [{"role": "user", "content": text}]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return list(tokenizer.encode(prompt, add_special_tokens=False))

    texts = tokenizer.batch_decode([[i] for i in range(loaded.vocab_size)])
    special = set(tokenizer.all_special_ids)
    return LocalModel(
        name=str(cell.target),
        score=Scorer(loaded.target, loaded.vocab_size, reload=False).logits,
        encode=lambda text: list(tokenizer.encode(text)),
        chat=chat,
        texts=[None if i in special else text for i, text in enumerate(texts)],
        ends=frozenset(loaded.eos),
        bos=tokenizer.bos_token_id,
        processors=Scorer.shared(cell.but(**sampling), loaded).processors,
    )
