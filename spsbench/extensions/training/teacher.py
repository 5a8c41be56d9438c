"""The target as a teacher: hidden states and distributions of a batch, without gradients.

`Features` keeps hidden states on disk, and `CachedTeacher` is a teacher that reads them.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from spsbench.errors import DataError, MismatchError, OutOfMemoryError, WriteError
from spsbench.extensions.training.batches import FLOAT32, products, together
from spsbench.extensions.training.generation import Text
from spsbench.extensions.training.losses import Laws, StudentLaw
from spsbench.extensions.training.students.student import Batch, Prediction, TeacherOutput
from spsbench.hardware.files import in_words
from spsbench.loop.drafter_context import TargetParts
from spsbench.models.config import read_object
from spsbench.store.atomic import replace_file
from spsbench.store.manifest import differences


class Teacher:
    """A loaded target that computes hidden states and logits over batches.

    Args:
        model: a transformers model, without gradients.
        vocab: number of tokens; logits beyond are padding.
    """

    def __init__(self, model: PreTrainedModel, vocab: int) -> None:
        self.model, self.vocab = model, vocab
        self.parts = TargetParts.of(model, vocab)

    @property
    def layers(self) -> int:
        """Return the number of layers of the target."""
        return int(
            getattr(self.parts.config, "num_hidden_layers", None) or self.parts.config.n_layer
        )

    @property
    def width(self) -> int:
        """Return the width of the target's hidden states."""
        return int(getattr(self.parts.config, "hidden_size", None) or self.parts.config.n_embd)

    @torch.no_grad()
    def teach(self, batch: Batch) -> TeacherOutput:
        """Return hidden states and logits over a batch; padding is at the ends of texts."""
        out = self.model(input_ids=batch.ids, use_cache=False, output_hidden_states=True)
        return TeacherOutput(out.hidden_states, out.logits[..., : self.vocab])


def student_law(
    guess: Prediction, batch: Batch, ids: Tensor | None, vocab: int, temperature: float = 1.0
) -> StudentLaw:
    """Return the student's distribution at the rows of a prediction, over its own vocabulary.

    Args:
        guess: logits of the student.
        batch: texts of the rows.
        ids: tokens of the student's columns; None: all.
        vocab: number of tokens of the target.
        temperature: temperature of the student's logits.
    """
    tokens = batch.next_tokens[guess.rows]
    if ids is not None:
        place = torch.full((vocab,), -1, device=ids.device)
        place[ids] = torch.arange(len(ids), device=ids.device)
        tokens = place[tokens]
    log_p = (guess.logits.float() / temperature).log_softmax(-1)
    return StudentLaw(log_p=log_p, tokens=tokens)


class TargetLaw:
    """The target's distribution at the continuation rows of a batch, computed once for all depths.

    Args:
        batch: texts of the rows.
        lesson: output of the target over the batch.
        ids: tokens of the student's columns; None: all.
        warp: maps logits [N, V] to probabilities; None: temperature 1.
    """

    def __init__(
        self,
        batch: Batch,
        lesson: TeacherOutput,
        ids: Tensor | None,
        warp: Callable[[Tensor], Tensor] | None,
    ) -> None:
        self._place = batch.in_continuation.cumsum(0) - 1
        logits = lesson.logits.flatten(0, 1)[batch.in_continuation]
        q = logits.float().softmax(-1) if warp is None else warp(logits)
        self._q = q if ids is None else q[:, ids]
        self._log_q = self._q.log()

    def beside(self, student: StudentLaw, guess: Prediction) -> Laws:
        """Return the student's distribution at the rows of `guess` together with the target's."""
        at = self._place[guess.rows]
        return Laws(
            log_p=student.log_p, tokens=student.tokens, q=self._q[at], log_q=self._log_q[at]
        )


HEAD = "head.json"
LARGE = 1 << 20
TOGETHER = 8  # texts in a forward pass of the target
CLOSE = 1e-3  # tolerance between head(hidden state) and the model's logits, relative to the largest


class Features:
    """Hidden states of texts on disk, one file for each layer.

    Args:
        folder: folder of the files.
        teacher: the target.
        texts: all texts of a training.
        layers: indices of the kept hidden states, as in transformers; the last is among them.
        of: identity of the target, for the head of the folder.
        numbers: dtype of matrix products.
    """

    def __init__(
        self,
        folder: Path,
        teacher: Teacher,
        texts: Sequence[Text],
        layers: Sequence[int],
        of: Mapping[str, Any],
        numbers: str = FLOAT32,
    ) -> None:
        self._numbers = numbers
        self.folder, self._teacher, self._layers = folder, teacher, list(layers)
        self._texts = [tuple(prompt + text) for prompt, text in texts]
        starts = [0]
        for text in self._texts:
            starts.append(starts[-1] + len(text))
        self._starts = dict(zip(self._texts, starts, strict=False))
        self.tokens, self._width = starts[-1], teacher.width
        self._head = {
            **of,
            "texts": hashlib.sha256(json.dumps(self._texts).encode()).hexdigest(),
            "layers": self._layers,
            "tokens": self.tokens,
            "width": self._width,
            "products": numbers,
            "dtype": str(teacher.parts.dtype).removeprefix("torch."),
        }
        self._rows: dict[int, Tensor] = {}

    @property
    def bytes(self) -> int:
        """Return the size of the files in bytes."""
        return self.tokens * self._row * len(self._layers)

    @property
    def _row(self) -> int:
        return self._width * self._teacher.parts.dtype.itemsize

    def check_room(self) -> None:
        """Refuse files that exceed the free disk.

        Raises:
            OutOfMemoryError: too little disk is free.
        """
        existing_bytes = sum(path.stat().st_size for path in self._paths.values() if path.exists())
        free = shutil.disk_usage(self.folder.parent).free + existing_bytes
        if self.bytes > free:
            raise OutOfMemoryError(
                f"hidden states of {self.tokens:,} tokens need {in_words(self.bytes)}, "
                f"{in_words(free)} are free ({self.folder}): expected room. Leave out "
                "`store_features`, or name another place with `out`"
            )

    def write(self) -> None:
        """Compute and write the hidden states that are missing.

        Raises:
            DataError: the target's logits are not its head over its last hidden state.
            MismatchError: the folder has hidden states of another training.
            WriteError: no room.
        """
        path, head = self.folder / HEAD, self._head
        try:
            if path.exists():
                if lines := differences(head, read_object(path, LARGE)):
                    raise MismatchError.of(
                        f"other hidden states ({self.folder}): expected those of this training. "
                        "Remove the folder",
                        lines,
                    )
            else:
                self.folder.mkdir(parents=True, exist_ok=True)
                replace_file(path, (json.dumps(head, indent=1) + "\n").encode())
            self._append()
        except OSError as error:
            raise WriteError.of(error, self.folder) from error

    def open(self) -> None:
        """Map the files into memory for reading."""
        dtype = self._teacher.parts.dtype
        for layer, path in self._paths.items():
            flat = torch.from_file(str(path), False, self.tokens * self._width, dtype=dtype)
            self._rows[layer] = flat.view(self.tokens, self._width)

    def of(self, batch: Batch) -> dict[int, Tensor] | None:
        """Return layer -> [B, T, D], 0 beyond the ends, or None if a text is not stored.

        Key -1 is the last layer.
        """
        ids, lengths = batch.ids.tolist(), batch.lengths.tolist()
        texts = [tuple(row[:length]) for row, length in zip(ids, lengths, strict=True)]
        if any(text not in self._starts for text in texts):
            return None
        hidden = {}
        for layer, rows in self._rows.items():
            padded = rows.new_zeros(*batch.ids.shape, self._width)
            for number, text in enumerate(texts):
                start = self._starts[text]
                padded[number, : len(text)] = rows[start : start + len(text)]
            hidden[layer] = padded.to(batch.ids.device)
        hidden[-1] = hidden[self._layers[-1]]
        return hidden

    @property
    def _paths(self) -> dict[int, Path]:
        return {layer: self.folder / f"layer-{layer}.bin" for layer in self._layers}

    def _append(self) -> None:
        """Compute and append hidden states after the last batch that all files have."""
        ends = [0]  # bytes of a file after each batch
        for at in range(0, len(self._texts), TOGETHER):
            ends.append(ends[-1] + sum(map(len, self._texts[at : at + TOGETHER])) * self._row)
        sizes = [path.stat().st_size if path.exists() else 0 for path in self._paths.values()]
        done = max(n for n, end in enumerate(ends) if end <= min(sizes))
        dtype = self._teacher.parts.dtype
        with ExitStack() as stack:
            files = {}
            for layer, path in self._paths.items():
                path.touch()
                files[layer] = stack.enter_context(path.open("r+b"))
                files[layer].truncate(ends[done])
                files[layer].seek(ends[done])
            for at in range(done * TOGETHER, len(self._texts), TOGETHER):
                texts = self._texts[at : at + TOGETHER]
                lesson = self._teach(texts, first=at == 0)
                for layer, file in files.items():
                    for row, text in enumerate(texts):
                        states = lesson.hidden[layer][row, : len(text)].to(dtype).cpu().contiguous()
                        file.write(states.view(torch.uint8).numpy().tobytes())

    def _teach(self, texts: Sequence[tuple[int, ...]], first: bool) -> TeacherOutput:
        device = self._teacher.parts.device
        batch = together([([], list(text)) for text in texts], device)
        with torch.no_grad(), products(device, self._numbers):
            lesson = self._teacher.teach(batch)
            head_logits = (
                self._teacher.parts.head(lesson.hidden[self._layers[-1]]) if first else None
            )
        if head_logits is not None:
            off = (head_logits - lesson.logits).abs().max()
            if not float(off) <= CLOSE * float(lesson.logits.abs().max()):
                raise DataError(
                    f"{type(self._teacher.model).__name__} does more than its head over its last "
                    f"hidden state (off by {float(off):.2g}): expected a target whose logits can "
                    "be had from it. Leave out `store_features`"
                )
        return lesson


class CachedTeacher(Teacher):
    """A teacher that reads stored hidden states, and runs the target for other texts."""

    def __init__(self, teacher: Teacher, features: Features) -> None:
        self.model, self.vocab, self.parts = teacher.model, teacher.vocab, teacher.parts
        self._teacher, self._features = teacher, features

    @torch.no_grad()
    def teach(self, batch: Batch) -> TeacherOutput:
        """Return hidden states and logits over a batch, as `Teacher.teach`."""
        hidden = self._features.of(batch)
        if hidden is None:
            return self._teacher.teach(batch)
        return TeacherOutput(hidden, self.parts.head(hidden[-1]))
