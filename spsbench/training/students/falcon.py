"""A head of Falcon, from nothing (Gao et al. 2024, arXiv 2412.12639, section 3.2)."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spsbench.loop.drafter_context import TargetParts
from spsbench.methods.drafters.falcon import FalconNetwork
from spsbench.models.heads.description import FalconShape
from spsbench.training.losses.feature import feature
from spsbench.training.losses.glancing import glanced
from spsbench.training.students.blocks import Told, aligned, foretold
from spsbench.training.students.layers import begun, head_of, layer_config, layer_of
from spsbench.training.students.student import Batch, Guess, Lesson, Moment, Student, wanted_rows
from spsbench.training.written.heads import write_head

BLOCK = 2  # tokens a pass: the best of the paper's 2, 3 and 4 (table 5)
NOISE = 0.1  # of features, uniform on both sides: against errors that add up


class FalconStudent(Student):
    """The first block learns by glancing; later ones, where `depth` asks for them, as they draft.

    The LSTM runs along the text. The feature is regressed as EAGLE's is, by the paper's weights.
    """

    drafter = "falcon"
    rate = 2e-3
    network: FalconNetwork
    regresses = 10.0  # the paper weighs the feature 1 and the law 0.1

    def __init__(
        self,
        target: TargetParts,
        name: str,
        *,
        depth: int | None,
        block: int | None,
        inner: int | None,
        seed: int,
    ) -> None:
        layer = layer_of(target, inner, "falcon")
        k = block or BLOCK
        self._rows = FalconShape(layer=layer, block=k, recurrent=True, vocab=target.vocab_size)
        self.network = FalconNetwork(self._rows, int(target.config.num_hidden_layers))
        begun(self.network, seed)
        self.network.to(target.device)
        self.target, self.depth, self.most, self._name = target, depth or 2 * k, 16, name
        self._their_head = head_of(target)

    def reads(self, layers: int) -> Sequence[int]:
        """The last one."""
        return (layers,)

    def guesses(self, batch: Batch, lesson: Lesson, depth: int) -> Iterator[Guess]:
        """Of every place, as in a round that begins there."""
        features, embedded = self._read(batch, lesson)
        for told in islice(foretold(self.network, features, embedded, depth), depth):
            yield self._guess(batch, lesson, told)

    def taught(self, batch: Batch, lesson: Lesson, moment: Moment) -> Iterator[Guess]:
        """Glancing at some answers of the first block; later blocks are not shown any."""
        k = self.network.block
        draw = torch.Generator().manual_seed(moment.seed)
        shown = self._shown(batch, lesson, moment.done, draw)
        features, embedded = self._read(batch, lesson)
        noise = torch.rand(features.shape, generator=draw).to(features) - 0.5
        parts = [
            aligned(self.network, features + 2 * NOISE * noise, embedded, offset, shown)
            for offset in range(k)
        ]
        for slot in range(min(k, self.depth)):
            mine = [part[slot] for part in parts]
            both = Told(torch.cat([t.rows for t in mine]), torch.cat([t.features for t in mine]))
            yield self._guess(batch, lesson, both)
        rest = foretold(self.network, features, embedded, self.depth)
        for told in islice(rest, k, self.depth):
            yield self._guess(batch, lesson, told)

    @torch.no_grad()
    def _shown(self, batch: Batch, lesson: Lesson, done: float, draw: torch.Generator) -> Tensor:
        """[k, B * T] bool, by slot and by the row after a block's end, whether it is shown."""
        k, size = self.network.block, batch.ids.numel()
        likeliest = lesson.logits.argmax(-1).flatten()
        wrong = torch.zeros(k, size, dtype=torch.bool)
        known = torch.zeros(k, size, dtype=torch.bool)
        for slot, guess in enumerate(self.guesses(batch, lesson, k)):
            begins = (guess.rows - slot).cpu()
            known[slot, begins] = True
            wrong[slot, begins] = (guess.logits.argmax(-1) != likeliest[guess.rows]).cpu()
        places = known.all(0).nonzero()[:, 0]
        shown = torch.zeros(k, size, dtype=torch.bool)
        shown[:, places] = glanced(wrong[:, places].T, done, draw).T
        return shown.to(batch.ids.device)

    def _read(self, batch: Batch, lesson: Lesson) -> tuple[Tensor, Tensor]:
        """[B, T, H] features of the text, and [B, T, H] embeddings of the token after each."""
        dtype = next(self.network.parameters()).dtype
        after = torch.nn.functional.pad(batch.ids[:, 1:], (0, 1))
        embedded = self.network.embed(after.flatten(), self.target.embed).to(dtype)
        return lesson.hidden[-1].to(dtype), embedded.view(*batch.ids.shape, -1)

    def _guess(self, batch: Batch, lesson: Lesson, told: Told) -> Guess:
        at, kept = wanted_rows(batch, told.rows)
        mine = told.features[at]
        true = lesson.hidden[-1].flatten(0, 1)[kept].to(mine.dtype)
        extra = self.regresses * feature(mine, true)
        return Guess(kept, self.network.scores(mine, self._their_head), extra)

    def write(self, folder: Path, dtype: torch.dtype) -> None:
        """By its authors' names, without a copy of the target's embeddings, and how it is run."""
        config: dict[str, Any] = {
            **layer_config(self._rows.layer, self._rows.vocab),
            "architectures": ["FalconDraftModel"],
            "base_model_name_or_path": self._name,
            "bias": True,
            "k_mask": self._rows.block,
            "recurrence": "text",
        }
        tensors = {
            name.replace("layer.", "layers.0.", 1): weight
            for name, weight in self.network.state_dict().items()
        }
        write_head(folder, config, tensors, dtype)

    def describe(self) -> dict[str, Any]:
        """Its sizes."""
        return {
            **super().describe(),
            "block": self._rows.block,
            "inner": self._rows.layer.inner,
        }
