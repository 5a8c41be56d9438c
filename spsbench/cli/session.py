"""Loaded models on the command line: prompts become tokens, surprises become notes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypedDict

import torch
from transformers import PreTrainedModel

from spsbench.build import resolve
from spsbench.cli.notes import note, say
from spsbench.engines.choice import choice_of
from spsbench.errors import DataError
from spsbench.loading import Loaded, Shelf
from spsbench.model_limits import context_of
from spsbench.models.loader import encode, encode_chat, hidden_settings
from spsbench.results import Cell


class Message(TypedDict):
    """One message of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Session:
    """A resolved cell and its models."""

    cell: Cell
    loaded: Loaded

    def continuation(self, text: str) -> list[int]:
        """Tokens of a text to continue."""
        return encode(self.loaded.tokenizer, text)

    def conversation(self, messages: Sequence[Message]) -> list[int]:
        """Tokens of a conversation, up to where the answer begins."""
        return encode_chat(self.loaded.tokenizer, list(messages))

    def engines(self) -> dict[str, str]:
        """How each model is run, and why."""
        models = {"target": self.loaded.target, "draft": self.loaded.draft}
        found = {name: choice_of(model) for name, model in models.items() if model is not None}
        return {name: str(choice or self.cell.engine) for name, choice in found.items()}

    def fitted(self, prompt: list[int], truncate: bool) -> list[int]:
        """`prompt`, if it fits the target's context with what is to come.

        Raises:
            DataError: it does not, and may or can not be truncated.
        """
        context, wanted = context_of(self.loaded.target), self.cell.max_new_tokens
        if context is None or len(prompt) + wanted <= context:
            return prompt
        asked = f"the prompt has {len(prompt)} tokens and {wanted} are to be generated"
        if wanted >= context:
            raise DataError(
                f"{asked}: expected fewer new tokens, the target's context holds {context} in all. "
                "Lower --max-new-tokens"
            )
        if not truncate:
            raise DataError(
                f"{asked}: expected at most {context} in all, the target's context. "
                "Lower --max-new-tokens, or drop the oldest tokens with --truncate left"
            )
        dropped = len(prompt) + wanted - context
        note(f"dropped the oldest {dropped} of {len(prompt)} prompt tokens to fit the context")
        return prompt[dropped:]


def open_session(cell: Cell, *, offline: bool, allow_pickle: bool, threads: int | None) -> Session:
    """Check and load the models of `cell`, and say what the user should know of them."""
    if threads is not None:
        torch.set_num_threads(threads)
    cell = resolve(cell)
    shelf = Shelf(offline=offline, allow_pickle=allow_pickle, threads=threads, say=say)
    session = Session(cell, shelf.load(cell))
    for line in surprises(session.loaded):
        note(line)
    return session


def surprises(loaded: Loaded) -> Iterator[str]:
    """What a pair of models brings that one would not expect."""
    target, draft = loaded.target, loaded.draft
    if draft is not None:
        yield from surprises_of_pair(target, draft)
    rows = target.config.get_text_config().vocab_size
    if loaded.vocab_size < rows:
        padding = rows - loaded.vocab_size
        yield f"{padding} of the target's {rows} logits are no tokens and never drawn"
    if hidden := hidden_settings(loaded.folder):
        ignored = ", ".join(f"{name}={value}" for name, value in hidden.items())
        yield f"ignored from the target's generation_config: {ignored}"
    if not loaded.eos:
        yield "the target has no end-of-text token: only --max-new-tokens and --stop end the text"


def surprises_of_pair(target: PreTrainedModel, draft: PreTrainedModel) -> Iterator[str]:
    """What makes a draft model less useful than it looks."""
    sizes = [model.num_parameters() for model in (target, draft)]
    if sizes[1] >= sizes[0]:
        yield (
            f"the draft model ({sizes[1]:,} parameters) is not smaller than the target "
            f"({sizes[0]:,}): it will not be faster"
        )
    limits = [context_of(model) for model in (target, draft)]
    if limits[1] is not None and (limits[0] is None or limits[1] < limits[0]):
        of_target = limits[0] if limits[0] is not None else "unlimited"
        yield (
            f"the draft model's context is {limits[1]} tokens, the target's {of_target}: "
            "beyond it the target goes on alone"
        )
