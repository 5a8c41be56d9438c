"""The readable engine: any decoder-only Hugging Face model over transformers' `DynamicCache`."""

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate, pairwise
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from spsbench.engines.experts import count_experts_in, counts_experts, mean_experts, watch_experts
from spsbench.engines.quantization.layers import dequantise
from spsbench.engines.session.joint import JointCache, SequenceSlice, attending
from spsbench.engines.session.longrope import open_at_border
from spsbench.engines.session.masks import Masks, PassInputs, windows_of
from spsbench.engines.session.states import gather, keeps_states, one_by_one
from spsbench.errors import DataError, SpsError
from spsbench.loop.batch import Fed
from spsbench.loop.sampling import send
from spsbench.loop.tree import additive_mask, node_positions
from spsbench.loop.types import LM, Engine, Scores


def context_of(model: PreTrainedModel) -> int | None:
    """Return the tokens that fit the context of `model`; None = unlimited."""
    limit: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return limit


def logits_width(model: PreTrainedModel) -> int:
    """Return the rows of the logits of `model`: the vocabulary and its padding."""
    rows: int = model.config.get_text_config().vocab_size
    return rows


def slides(model: PreTrainedModel) -> bool:
    """Return whether `model` has sliding windows; configurations without have None or 0."""
    return bool(getattr(model.config.get_text_config(), "sliding_window", None))


PREFILL_CHUNK = 512  # tokens; bounds the activations of a long prompt


class UnsupportedModelError(ValueError):
    """A model whose cache cannot be rolled back, so drafts cannot be rejected."""


class EagerLM:
    """A session with `model`: its own cache over shared weights.

    `model` is in eval mode, on its device. `vocab_size` are the rows of the logits that are tokens,
    by default all; the padding rows after them are dropped, which gives them probability 0 and
    rescales the rest. `layers` are the hidden states to return, as transformers numbers them (0 =
    the embeddings). `joins`: whether passes of several sessions can be made as one.
    """

    joins: ClassVar[bool] = True

    def __init__(
        self, model: PreTrainedModel, *, vocab_size: int | None = None, layers: Sequence[int] = ()
    ) -> None:
        self.model, self.device = model, model.device  # `model.device` searches on each access
        self.vocab_size = vocab_size or logits_width(model)
        self.limit = context_of(model)
        self.layers = tuple(layers)
        self.windows = windows_of(model)
        self._counts_experts = counts_experts(model)
        self._length = 0
        self._open()

    def _open(self) -> None:
        """Initialise the state of a subclass; the last step of the constructor."""
        self._cache: Any = DynamicCache()

    @property
    def length(self) -> int:
        """Return the number of tokens in the cache."""
        return self._length

    @torch.inference_mode()
    def append(self, tokens: Tensor, keep: int, parents: Tensor | None = None) -> Scores:
        """Feed and cache `tokens` [m]; return logits [keep, V] after the last `keep` <= m of them.

        The hidden states are layer -> [m, D]. Without tokens: logits [0, V] and no states. With
        `keep` 0: a prefill, fed in chunks. `parents` [N]: the last N tokens, cached ones included,
        are nodes 0 to N - 1 of a tree, each after the node of that number; -1: the text.
        ValueError: the context cannot hold the tokens.
        """
        self._check_limit(len(tokens))
        if len(tokens) == 0:
            return Scores(torch.empty(0, self.vocab_size, device=self.device), {})
        read: list[Any] = []
        while keep == 0 and len(tokens) > (chunk := self._chunk()):
            read.append(self._states(self._forward(tokens[:chunk], 0, None)))
            tokens = tokens[chunk:]
            self._expect(self._length + len(tokens))
        with watch_experts(self._counts_experts) as experts:
            out = self._forward(tokens, keep, parents)
        logits, hidden = out.logits[0], self._states(out)
        if read:
            parts = [*read, hidden]
            hidden = {n: torch.cat([part[n] for part in parts]) for n in self.layers}
        return Scores(
            logits[len(logits) - keep :, : self.vocab_size], hidden, mean_experts(experts)
        )

    def _chunk(self) -> int:
        """Return the most tokens that a prefill feeds in one pass."""
        return PREFILL_CHUNK

    def _expect(self, tokens: int) -> None:
        """Announce the final length of a long prompt; a growing cache reserves nothing."""

    def _states(self, out: Any) -> dict[int, Tensor]:
        """Return layer -> [m, D] of the requested layers."""
        return {layer: out.hidden_states[layer][0] for layer in self.layers}

    def _forward(self, tokens: Tensor, keep: int, parents: Tensor | None) -> Any:
        """Run a pass that caches `tokens`; return its output, with the last `keep` logits, or 1."""
        m, start = len(tokens), self.length if parents is None else None
        positions, masks = self._positions(m, parents), self._mask(m, parents)
        ids, rows = send(tokens, self.device), max(keep, 1)  # 0 would ask for all rows
        more = self.layers, start, keep == 0
        out = self._run(PassInputs(ids, positions, masks, self._cache, rows, *more))
        self._length += m
        return out

    def _run(self, inputs: PassInputs) -> Any:
        return inputs.of(self.model)

    def _positions(self, m: int, parents: Tensor | None) -> Tensor:
        """Return positions [m] of the next tokens; with `parents`, nodes stand at their depths."""
        if parents is None:
            return torch.arange(self._length, self._length + m, device=self.device)
        return send(node_positions(parents, m, self._length), self.device)

    def _mask(self, m: int, parents: Tensor | None) -> Masks:
        """Return the mask of the next `m` tokens; None, without `parents`: transformers' own."""
        if parents is None:
            return None
        mask = additive_mask(parents, m, self._length, self.model.dtype)
        if self.windows is None:
            return send(mask, self.device)
        near = send(self.windows.hide(mask, parents, m, self._length), self.device)
        return self.windows.masks(send(mask, self.device), near)

    def shares(self, fed: Fed) -> Hashable | None:
        """Return a key, equal for passes that `together` can make as one; None: this runs alone.

        Alone run prefills, empty and first passes, and models that attend in a way of their own, as
        a trial of two passes tells, once a model. ValueError: the context cannot hold the tokens.
        """
        m = len(fed.tokens)
        if not self.joins or fed.keep == 0 or m == 0 or self._length == 0:
            return None
        self._check_limit(m)
        if not attends_each(self.model, type(self)):
            return None
        return type(self), id(self.model), self.layers

    @torch.inference_mode()
    def together(self, passes: Sequence[Fed]) -> list[Scores]:
        """Make passes of several sessions, one key by `shares`, as one; return each one's scores.

        Any of them can be asked. Each one's cache grows; mean experts are those of the common pass.
        """
        ends = list(accumulate((len(fed.tokens) for fed in passes), initial=0))
        parts = [slice(*ends) for ends in pairwise(ends)]
        texts = [
            SequenceSlice(rows, fed.lm._cache, fed.lm._joint_mask(len(fed.tokens), fed.parents))
            for rows, fed in zip(parts, passes, strict=True)
        ]
        positions = [fed.lm._positions(len(fed.tokens), fed.parents) for fed in passes]
        ids = torch.cat([send(fed.tokens, self.device) for fed in passes])
        cache = JointCache(texts, {} if self.windows is None else self.windows.sliding)
        with watch_experts(self._counts_experts) as experts, self._sharing(cache):
            places = torch.cat(positions)
            out = self._run(PassInputs(ids, places, cache.mask, cache, ends[-1], self.layers))
        for fed in passes:
            fed.lm._length += len(fed.tokens)
        logits, states = out.logits[0, :, : self.vocab_size], self._states(out)
        return [
            Scores(
                logits[rows.stop - fed.keep : rows.stop],
                {n: part[rows] for n, part in states.items()},
                mean_experts(experts),
            )
            for rows, fed in zip(parts, passes, strict=True)
        ]

    def _sharing(self, cache: JointCache) -> AbstractContextManager[None]:
        """Run a common pass over the caches of several sessions."""
        return attending(self.model, cache)

    def _joint_mask(self, m: int, parents: Tensor | None) -> Masks:
        """Return the mask in a common pass, which transformers cannot make."""
        if parents is None and (m > 1 or self.windows is not None):
            parents = torch.arange(-1, m - 1)
        return self._mask(m, parents)

    def _check_limit(self, m: int) -> None:
        if self.limit is not None and self._length + m > self.limit:
            raise ValueError(
                f"{self._length} cached + {m} new tokens: the context holds {self.limit}"
            )

    @torch.inference_mode()
    def commit(self, length: int, path: Sequence[int] | None = None) -> None:
        """Keep the first `length` tokens and the nodes `path` after them; ValueError: too few."""
        path = path or ()
        if not 0 <= length <= self._length - len(path):
            raise ValueError(f"commit of {length} + {len(path)} tokens: {self._length} are cached")
        self._keep(length, [length + node for node in path])
        self._length = length + len(path)

    def _keep(self, length: int, nodes: list[int]) -> None:
        """Keep the cache's first `length` rows and, by their numbers from row 0 on, the `nodes`."""
        if length == 0:
            self._cache = DynamicCache()
        elif nodes:
            for layer in self._cache.layers:
                gather(layer, [*range(length), *nodes])
        elif length < self._length:
            self._cache.crop(length - self._length)


KINDS: WeakKeyDictionary[PreTrainedModel, type[EagerLM]] = WeakKeyDictionary()
"""Kinds of session that some models need in every engine."""


class Eager(Engine):
    """Engine for any decoder-only model, run by transformers."""

    def session(
        self, model: PreTrainedModel, *, vocab_size: int | None = None, layers: Sequence[int] = ()
    ) -> LM:
        kind = KINDS.get(model, EagerLM)
        return open_at_border(lambda: kind(model, vocab_size=vocab_size, layers=layers), model)

    def prepare(self, model: PreTrainedModel, **options: Any) -> None:
        """Check that the cache of `model` rolls back; codes become the plain weights."""
        dequantise(model)
        count_experts_in(model)
        check_rollback(model)


@torch.inference_mode()
def check_rollback(
    model: PreTrainedModel, kind: Callable[[PreTrainedModel], LM] | None = None
) -> None:
    """Feed, reject and feed again a few tokens: the logits must be those of a cacheless pass.

    They may differ by `logits_tolerance`, by four times as much if they have the bits of a session
    that rejects nothing. `kind` opens sessions; None: as `eager` does. UnsupportedModelError: they
    differ by more, or the model fails. DataError: they are not finite. Other SpsErrors pass.
    """
    name = type(model).__name__
    lm, straight = ((kind or KINDS.get(model, EagerLM))(model) for _ in range(2))
    kept, rejected, again = ordinary(lm.vocab_size, 9).view(3, 3)
    try:
        lm.append(torch.cat([kept, rejected]), keep=1)
        lm.commit(len(kept))
        cached = torch.cat([lm.append(part, len(part)).logits for part in again.split(2)]).float()
        text = torch.cat([kept, again])
        if keeps_states(model.config):
            plain = one_by_one(model, text, len(again)).float()
        else:
            out = model(input_ids=text[None].to(model.device), use_cache=False)
            plain = out.logits[0, -len(again) :].float()
    except SpsError:
        raise
    except Exception as error:  # a foreign cache may raise anything
        raise UnsupportedModelError(f"{name}: its cache cannot be rolled back ({error})") from error
    plain = plain[:, : lm.vocab_size]
    if not bool(plain.isfinite().all()):
        raise DataError(
            f"the logits of {name} are not finite in {str(model.dtype).removeprefix('torch.')} "
            f"({model.config.name_or_path}): expected numbers within its range. Choose `dtype` "
            "float32 or bfloat16"
        )
    gap, allowed = float((cached - plain).abs().max()), logits_tolerance(plain)
    if allowed < gap and torch.equal(cached, straight.append(text, len(again)).logits.float()):
        allowed *= 4
    if not gap <= allowed:
        raise UnsupportedModelError(f"{name}: after a rollback its logits are off by {gap:.3g}")


_EACH: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()


def attends_each(model: PreTrainedModel, kind: type[EagerLM]) -> bool:
    """Return whether a common pass gives what each session's own gives: tried once a model."""
    if model not in _EACH:
        _EACH[model] = _try_each(model, kind)
    return _EACH[model]


@torch.inference_mode()
def _try_each(model: PreTrainedModel, kind: type[EagerLM]) -> bool:
    """Return if two sessions score together as alone, up to tolerance; False also if they raise."""
    tokens = ordinary(logits_width(model), 8)
    cuts = (tokens[:3], tokens[3:5]), (tokens[4:6], tokens[5:8])

    def open_passes() -> list[Fed]:
        sessions = []
        for past, fed in cuts:
            lm = kind(model)
            lm.append(past, keep=0)
            sessions.append(Fed(lm, fed, len(fed), None))
        return sessions

    try:
        alone = torch.cat([fed.lm.append(fed.tokens, fed.keep).logits for fed in open_passes()])
        passes = open_passes()
        joint = torch.cat([scores.logits for scores in passes[0].lm.together(passes)])
    except Exception:  # foreign code may raise anything
        return False
    return float((joint - alone).abs().max()) <= logits_tolerance(alone)


def logits_tolerance(logits: Tensor) -> float:
    """Return by how much logits may be apart: bf16 differs by less, a lost past by far more."""
    return max(1e-3, 0.05 * float(logits.abs().max()))


def ordinary(vocab: int, count: int) -> Tensor:
    """Return `count` ids spread over a vocabulary, away from special tokens at its ends."""
    return (2 * torch.arange(count) + 1) * vocab // (2 * count)
