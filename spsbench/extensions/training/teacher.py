"""The target as a teacher: hidden states and distributions of a batch, without gradients."""

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from spsbench.extensions.training.losses import Laws, StudentLaw
from spsbench.extensions.training.students.student import Batch, Prediction, TeacherOutput
from spsbench.loop.drafter_context import TargetParts


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
