"""A Falcon head, trained from scratch by glancing.

Source: Gao et al. 2024 (arXiv 2412.12639, section 3.2).
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spsbench.extensions.training.losses import feature, glanced
from spsbench.extensions.training.options import HeadTraining
from spsbench.extensions.training.students.eagle_unroll import UnrollCache
from spsbench.extensions.training.students.head_parts import (
    HeadStudent,
    HeadTarget,
    layer_config,
    layer_of,
)
from spsbench.extensions.training.students.student import (
    Batch,
    Moment,
    Prediction,
    TeacherOutput,
    select_continuation,
)
from spsbench.heads.falcon import FalconNetwork, FalconShape, State


class PredictedFeatures(NamedTuple):
    """Rows of a batch, and the features predicted for them."""

    rows: Tensor  # [N]
    features: Tensor  # [N, H]


def predict_features(
    network: FalconNetwork, features: Tensor, embedded: Tensor, depth: int
) -> Iterator[PredictedFeatures]:
    """Yield predicted features for each depth, for blocks that end at every position.

    Later blocks follow along the text. Keys and values of the text do not depend on where blocks
    begin, so they are computed once.

    Args:
        network: network of the head.
        features: [B, T, H] features of the target.
        embedded: [B, T, H] embedding of the token after each.
        depth: number of predicted tokens, a multiple of the block.
    """
    texts, length, _ = features.shape
    k, count, device = network.block, length - 1, features.device
    ends = torch.arange(k - 1, max(count, k - 1), device=device)

    def predicted(d: int, outputs: Tensor) -> PredictedFeatures:
        """Return features of the token d + 1 after the pending one, from [B, E, H].

        E counts the positions where the first block ends.
        """
        fits = max(min(len(ends), length - k - d), 0)
        first = torch.arange(texts, device=device)[:, None] * length
        return PredictedFeatures(
            (first + ends[:fits] + 1 + d).flatten(), outputs[:, :fits].flatten(0, 1)
        )

    x, state = _read(network, features[:, :-1], embedded[:, :-1], depth > k)
    place = torch.arange(count, device=device).repeat(texts)
    text = torch.arange(texts, device=device).repeat_interleave(count)
    cache = UnrollCache()
    context, same, slot_features = network.append_kv(x, place, cache), text[:, None] == text, []
    for slot in range(k):
        sees = same & (place <= place[:, None] + k - 1 - slot)
        outputs = network.predict(x, place, context, sees).view(texts, count, -1)
        slot_features.append(outputs[:, slot : slot + len(ends)])
        yield predicted(slot, slot_features[-1])
    fed = torch.stack(slot_features, 2)  # [B, E, k, H]
    state = _at(state, k - 1)
    rounds = texts * len(ends)
    round_of_row = torch.arange(rounds, device=device).repeat_interleave(k)
    whose = torch.arange(texts, device=device).repeat_interleave(len(ends))
    before = (whose[:, None] == text) & (place <= ends.repeat(texts)[:, None])
    sees, mine = before.repeat_interleave(k, 0), round_of_row[:, None] == round_of_row
    for block in range(1, -(-depth // k)):
        at = ends[:, None] + 1 + (block - 1) * k + torch.arange(k, device=device)  # [E, k]
        after = embedded[:, at.clamp(max=length - 1)]
        outputs, state = network.rows(_by_slot(fed), _by_slot(after), state)
        x, where = outputs.transpose(0, 1).flatten(0, 1), at.repeat(texts, 1).flatten()
        context, sees = network.append_kv(x, where, cache), torch.cat([sees, mine], 1)
        fed = network.predict(x, where, context, sees).view(texts, len(ends), k, -1)
        for slot in range(k):
            yield predicted(block * k + slot, fed[:, :, slot])


def aligned(
    network: FalconNetwork, features: Tensor, embedded: Tensor, offset: int, revealed: Tensor
) -> list[PredictedFeatures]:
    """Yield each slot's prediction for blocks at rows `offset`, `offset` + k ..., with glancing.

    A revealed slot holds its own answer, the feature and the token after it, which the other slots
    of the block can read. It predicts nothing, since it would learn to copy.

    Args:
        network: network of the head.
        features: as in `predict_features`.
        embedded: as in `predict_features`.
        offset: 0 to k - 1.
        revealed: [k, B * T] bool, by slot and by the row after the end of a block.
    """
    texts, length, _ = features.shape
    k, count, device = network.block, length - 1, features.device
    row = torch.arange(count, device=device)
    slot = (row - offset) % k
    end = row - slot + k - 1
    whole = (row >= offset) & (end < count)
    place = (end + 1).clamp(max=length - 1)
    is_revealed = (revealed.view(k, texts, length)[slot, :, place] & whole[:, None]).T  # [B, R]
    answer = (row + k).clamp(max=length - 1)
    features, embedded = (
        torch.where(is_revealed[..., None], values[:, answer], values[:, :-1])
        for values in (features, embedded)
    )
    x, _ = _read(network, features, embedded, False)
    at = row.repeat(texts)
    text = torch.arange(texts, device=device).repeat_interleave(count)
    upto = torch.where(whole, end, row).repeat(texts)
    sees = (text[:, None] == text) & (at <= upto[:, None])
    outputs = network.predict(x, at, network.append_kv(x, at, UnrollCache()), sees)
    tells = (whole & (row + k < length)).repeat(texts) & ~is_revealed.flatten()
    chosen = [(tells & (slot.repeat(texts) == s)).nonzero()[:, 0] for s in range(k)]
    return [PredictedFeatures((text * length + at + k)[mine], outputs[mine]) for mine in chosen]


def _read(
    network: FalconNetwork, features: Tensor, embedded: Tensor, every: bool
) -> tuple[Tensor, State]:
    """Return rows of the LSTM, [B * R, H] from [B, R, H], and with `every` the states after each.

    The states are [2, R, B, H].
    """
    features, embedded = features.transpose(0, 1), embedded.transpose(0, 1)
    rows, texts, _ = features.shape
    if not every:
        lstm_outputs, state = network.rows(features, embedded, network.start(texts))
        return lstm_outputs.transpose(0, 1).flatten(0, 1), state
    state, rows_out, states = network.start(texts), [], []
    for t in range(rows):
        one, state = network.rows(features[t : t + 1], embedded[t : t + 1], state)
        rows_out.append(one)
        states.append(state)
    outputs, cells = (torch.stack(part, 1) for part in zip(*states, strict=True))
    return torch.cat(rows_out).transpose(0, 1).flatten(0, 1), (outputs, cells)


def _at(state: State, first: int) -> State:
    """Return [2, B * E, H] states from row `first` on, of [2, R, B, H] states after each row."""
    outputs, cells = (
        part[:, first:].transpose(1, 2).flatten(1, 2) if part.ndim == 4 else part for part in state
    )
    return outputs, cells


def _by_slot(rows: Tensor) -> Tensor:
    """Return [k, B * E, H] from [B, E, k, H]."""
    return rows.flatten(0, 1).transpose(0, 1)


BLOCK = 2  # tokens per pass: the best of the paper's 2, 3 and 4 (table 5)
NOISE = 0.1  # amplitude of uniform noise on features: robustness to errors that add up


class FalconStudent(HeadStudent):
    """Head that learns its first block by glancing, and later ones as in drafting.

    The LSTM runs along the text. The feature is regressed as EAGLE's is, by the paper's weights.
    """

    drafter = "falcon"
    rate = 2e-3
    network: FalconNetwork
    network_class = FalconNetwork
    usual_depth = 2 * BLOCK
    renamed = ("stack.", "layers.")
    sizes = (("block", "block"), ("inner", "layer.inner"))
    regresses = 10.0  # the paper weighs the feature loss 1 and the token loss 0.1

    def shape_of(self, options: HeadTraining, target: HeadTarget) -> FalconShape:
        layer, block = layer_of(target.parts, options.inner, "falcon"), options.block or BLOCK
        self.depth = options.depth or 2 * block
        return FalconShape(layer=layer, block=block, recurrent=True, vocab=target.parts.vocab_size)

    def guesses(self, batch: Batch, lesson: TeacherOutput, depth: int) -> Iterator[Prediction]:
        features, embedded = self._read(batch, lesson)
        for predicted in islice(predict_features(self.network, features, embedded, depth), depth):
            yield self._guess(batch, lesson, predicted)

    def taught(self, batch: Batch, lesson: TeacherOutput, moment: Moment) -> Iterator[Prediction]:
        """Yield predictions with glancing in the first block only."""
        k = self.network.block
        draw = torch.Generator().manual_seed(moment.seed)
        revealed = self._reveal(batch, lesson, moment.done, draw)
        features, embedded = self._read(batch, lesson)
        noise = torch.rand(features.shape, generator=draw).to(features) - 0.5
        parts = [
            aligned(self.network, features + 2 * NOISE * noise, embedded, offset, revealed)
            for offset in range(k)
        ]
        for slot in range(min(k, self.depth)):
            mine = [part[slot] for part in parts]
            both = PredictedFeatures(
                torch.cat([t.rows for t in mine]), torch.cat([t.features for t in mine])
            )
            yield self._guess(batch, lesson, both)
        later = predict_features(self.network, features, embedded, self.depth)
        for predicted in islice(later, k, self.depth):
            yield self._guess(batch, lesson, predicted)

    @torch.no_grad()
    def _reveal(
        self, batch: Batch, lesson: TeacherOutput, done: float, draw: torch.Generator
    ) -> Tensor:
        """Return [k, B * T] bool: revealed slots, by slot and by the row after a block."""
        k, size = self.network.block, batch.ids.numel()
        likeliest = lesson.logits.argmax(-1).flatten()
        wrong = torch.zeros(k, size, dtype=torch.bool)
        has_prediction = torch.zeros(k, size, dtype=torch.bool)
        for slot, guess in enumerate(self.guesses(batch, lesson, k)):
            begins = (guess.rows - slot).cpu()
            has_prediction[slot, begins] = True
            wrong[slot, begins] = (guess.logits.argmax(-1) != likeliest[guess.rows]).cpu()
        places = has_prediction.all(0).nonzero()[:, 0]
        revealed = torch.zeros(k, size, dtype=torch.bool)
        revealed[:, places] = glanced(wrong[:, places].T, done, draw).T
        return revealed.to(batch.ids.device)

    def _read(self, batch: Batch, lesson: TeacherOutput) -> tuple[Tensor, Tensor]:
        """Return [B, T, H] features of the text and embeddings of the token after each."""
        dtype = next(self.network.parameters()).dtype
        after = torch.nn.functional.pad(batch.ids[:, 1:], (0, 1))
        embedded = self.network.embed(after.flatten(), self.target.embed).to(dtype)
        return lesson.hidden[-1].to(dtype), embedded.view(*batch.ids.shape, -1)

    def _guess(
        self, batch: Batch, lesson: TeacherOutput, predicted: PredictedFeatures
    ) -> Prediction:
        at, target_rows = select_continuation(batch, predicted.rows)
        mine = predicted.features[at]
        true = lesson.hidden[-1].flatten(0, 1)[target_rows].to(mine.dtype)
        extra = self.regresses * feature(mine, true)
        return Prediction(target_rows, self.network.scores(mine, self.target_head), extra)

    def config(self) -> dict[str, Any]:
        return {
            **layer_config(self.shape.layer, self.shape.vocab),
            "architectures": ["FalconDraftModel"],
            "base_model_name_or_path": self.target_name,
            "bias": True,
            "k_mask": self.shape.block,
            "recurrence": "text",
        }
