"""The target as a teacher: hidden states and laws of a batch, without gradients."""

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from spsbench.loop.site import TargetParts
from spsbench.train.losses.laws import Laws
from spsbench.train.students.student import Batch, Guess, Lesson


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
    def teach(self, batch: Batch) -> Lesson:
        """What it computes over a batch: padding at the ends changes nothing before it."""
        out = self.model(input_ids=batch.ids, use_cache=False, output_hidden_states=True)
        return Lesson(out.hidden_states, out.logits[..., : self.vocab])


def laws_of(
    guess: Guess,
    batch: Batch,
    lesson: Lesson,
    ids: Tensor | None,
    warp: Callable[[Tensor], Tensor] | None = None,
    temperature: float = 1.0,
) -> Laws:
    """Both laws at the rows of a guess, over the tokens that the student knows.

    Args:
        guess: logits of the student.
        batch: where they are.
        lesson: the target's.
        ids: the tokens of the student's columns; None: all.
        warp: of the target's logits; None: at temperature 1.
        temperature: of the student's logits.
    """
    logits = lesson.logits.flatten(0, 1)[guess.rows]
    q = logits.float().softmax(-1) if warp is None else warp(logits)
    tokens = batch.next_tokens[guess.rows]
    if ids is not None:
        q = q[:, ids]
        place = torch.full((lesson.logits.shape[-1],), -1, device=ids.device)
        place[ids] = torch.arange(len(ids), device=ids.device)
        tokens = place[tokens]
    log_p = (guess.logits.float() / temperature).log_softmax(-1)
    return Laws(log_p, q, q.log(), tokens)
