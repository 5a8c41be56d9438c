"""The target as a teacher: hidden states and laws of a batch, without gradients."""

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
from spsbench.hardware.files import in_words
from spsbench.loop.drafter_context import TargetParts
from spsbench.models.config import read_object
from spsbench.store.atomic import replace_file
from spsbench.store.manifest import differences
from spsbench.training.batches import FLOAT32, products, together
from spsbench.training.generation import Text
from spsbench.training.losses import Laws, StudentLaw
from spsbench.training.students.student import Batch, Prediction, TeacherOutput


class Teacher:
    """A loaded target.

    Args:
        model: of transformers, without gradients.
        vocab: tokens; rows of the logits beyond are padding.
    """

    def __init__(self, model: PreTrainedModel, vocab: int) -> None:
        self.model, self.vocab = model, vocab
        head = model.get_output_embeddings()

        def logits(hidden: Tensor) -> Tensor:
            rows: Tensor = head(hidden)
            return rows[..., :vocab]

        self.parts = TargetParts(
            config=model.config.get_text_config(),
            vocab_size=vocab,
            device=model.device,
            dtype=model.dtype,
            embed=model.get_input_embeddings(),
            head=logits,
        )

    @property
    def layers(self) -> int:
        """Of the target."""
        return int(
            getattr(self.parts.config, "num_hidden_layers", None) or self.parts.config.n_layer
        )

    @property
    def width(self) -> int:
        """Of its hidden states."""
        return int(getattr(self.parts.config, "hidden_size", None) or self.parts.config.n_embd)

    @torch.no_grad()
    def teach(self, batch: Batch) -> TeacherOutput:
        """What it computes over a batch: padding at the ends changes nothing before it."""
        out = self.model(input_ids=batch.ids, use_cache=False, output_hidden_states=True)
        return TeacherOutput(out.hidden_states, out.logits[..., : self.vocab])


def student_law(
    guess: Prediction, batch: Batch, ids: Tensor | None, vocab: int, temperature: float = 1.0
) -> StudentLaw:
    """The student's law at the rows of a guess, over the tokens that it knows.

    Args:
        guess: logits of the student.
        batch: where they are.
        ids: the tokens of the student's columns; None: all.
        vocab: tokens of the target.
        temperature: of the student's logits.
    """
    tokens = batch.next_tokens[guess.rows]
    if ids is not None:
        place = torch.full((vocab,), -1, device=ids.device)
        place[ids] = torch.arange(len(ids), device=ids.device)
        tokens = place[tokens]
    log_p = (guess.logits.float() / temperature).log_softmax(-1)
    return StudentLaw(log_p=log_p, tokens=tokens)


def with_law(
    told: StudentLaw,
    guess: Prediction,
    lesson: TeacherOutput,
    ids: Tensor | None,
    warp: Callable[[Tensor], Tensor] | None = None,
) -> Laws:
    """What was foretold beside the target's law; `warp` is of its logits, None: temperature 1."""
    logits = lesson.logits.flatten(0, 1)[guess.rows]
    q = logits.float().softmax(-1) if warp is None else warp(logits)
    if ids is not None:
        q = q[:, ids]
    return Laws(log_p=told.log_p, tokens=told.tokens, q=q, log_q=q.log())


# The target's hidden states over a training's texts, on disk while it learns.

HEAD = "head.json"
LARGE = 1 << 20
TOGETHER = 8  # texts in a pass of the target
CLOSE = 1e-3  # of the largest logit: what a head over a hidden state may differ by from the model


class Features:
    """Hidden states of texts, layer by layer.

    Args:
        folder: of the files.
        teacher: whose.
        texts: all of a training.
        layers: hidden states that are kept, as transformers numbers them; the last among them.
        of: which target it is.
        numbers: that products are computed in.
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
        """On disk."""
        return self.tokens * self._row * len(self._layers)

    @property
    def _row(self) -> int:
        return self._width * self._teacher.parts.dtype.itemsize

    def check_room(self) -> None:
        """Refuse what the disk cannot hold.

        Raises:
            OutOfMemoryError: it has less.
        """
        there = sum(path.stat().st_size for path in self._paths.values() if path.exists())
        free = shutil.disk_usage(self.folder.parent).free + there
        if self.bytes > free:
            raise OutOfMemoryError(
                f"hidden states of {self.tokens:,} tokens need {in_words(self.bytes)}, "
                f"{in_words(free)} are free ({self.folder}): expected room. Leave out "
                "--store-features, or name another place with --out"
            )

    def write(self) -> None:
        """Have the target compute those that are not there.

        Raises:
            DataError: a target whose logits are not its head over its last hidden state.
            MismatchError: there are those of another training.
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
        """Map them, to be read."""
        dtype = self._teacher.parts.dtype
        for layer, path in self._paths.items():
            flat = torch.from_file(str(path), False, self.tokens * self._width, dtype=dtype)
            self._rows[layer] = flat.view(self.tokens, self._width)

    def of(self, batch: Batch) -> dict[int, Tensor] | None:
        """[B, T, D] of each layer, 0 beyond the ends; None where a text is none of them."""
        ids, lengths = batch.ids.tolist(), batch.lengths.tolist()
        texts = [tuple(row[:length]) for row, length in zip(ids, lengths, strict=True)]
        if any(text not in self._starts for text in texts):
            return None
        found = {}
        for layer, rows in self._rows.items():
            made = rows.new_zeros(*batch.ids.shape, self._width)
            for number, text in enumerate(texts):
                start = self._starts[text]
                made[number, : len(text)] = rows[start : start + len(text)]
            found[layer] = made.to(batch.ids.device)
        found[-1] = found[self._layers[-1]]
        return found

    @property
    def _paths(self) -> dict[int, Path]:
        return {layer: self.folder / f"layer-{layer}.bin" for layer in self._layers}

    def _append(self) -> None:
        """Go on after the last whole batch that all the files have."""
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
                lesson = self._seen(texts, first=at == 0)
                for layer, file in files.items():
                    for row, text in enumerate(texts):
                        kept = lesson.hidden[layer][row, : len(text)].to(dtype).cpu().contiguous()
                        file.write(kept.view(torch.uint8).numpy().tobytes())

    def _seen(self, texts: Sequence[tuple[int, ...]], first: bool) -> TeacherOutput:
        device = self._teacher.parts.device
        batch = together([([], list(text)) for text in texts], device)
        with torch.no_grad(), products(device, self._numbers):
            lesson = self._teacher.teach(batch)
            made = self._teacher.parts.head(lesson.hidden[self._layers[-1]]) if first else None
        if made is not None:
            off = (made - lesson.logits).abs().max()
            if not float(off) <= CLOSE * float(lesson.logits.abs().max()):
                raise DataError(
                    f"{type(self._teacher.model).__name__} does more than its head over its last "
                    f"hidden state (off by {float(off):.2g}): expected a target whose logits can "
                    "be had from it. Leave out --store-features"
                )
        return lesson


class Remembering(Teacher):
    """A teacher that reads what it has computed; other texts it computes."""

    def __init__(self, teacher: Teacher, features: Features) -> None:
        self.model, self.vocab, self.parts = teacher.model, teacher.vocab, teacher.parts
        self._teacher, self._features = teacher, features

    @torch.no_grad()
    def teach(self, batch: Batch) -> TeacherOutput:
        """As `Teacher.teach`."""
        found = self._features.of(batch)
        if found is None:
            return self._teacher.teach(batch)
        return TeacherOutput(found, self.parts.head(found[-1]))
