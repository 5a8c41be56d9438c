"""The target as a teacher: hidden states and laws of a batch, without gradients."""

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from spsbench.loop.drafter_context import TargetParts
from spsbench.training.losses.laws import Foretold, Laws
from spsbench.training.students.student import Batch, Guess, Lesson


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


def foretold(
    guess: Guess, batch: Batch, ids: Tensor | None, vocab: int, temperature: float = 1.0
) -> Foretold:
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
    return Foretold(log_p=log_p, tokens=tokens)


def with_law(
    told: Foretold,
    guess: Guess,
    lesson: Lesson,
    ids: Tensor | None,
    warp: Callable[[Tensor], Tensor] | None = None,
) -> Laws:
    """What was foretold beside the target's law; `warp` is of its logits, None: temperature 1."""
    logits = lesson.logits.flatten(0, 1)[guess.rows]
    q = logits.float().softmax(-1) if warp is None else warp(logits)
    if ids is not None:
        q = q[:, ids]
    return Laws(log_p=told.log_p, tokens=told.tokens, q=q, log_q=q.log())
