"""From what a user gives as a prompt to token ids that fit."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

from spsbench.engines.limits import context_of, rows_of
from spsbench.errors import DataError, UsageError
from spsbench.loop.text import PromptError, token_ids
from spsbench.models.cache import Loaded
from spsbench.models.tokenizers import encode, encode_chat
from spsbench.settings.cell import Cell

log = logging.getLogger(__name__)

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]
"""A text to continue, its token ids, or the messages of a conversation with role and content."""


def is_chat(prompt: Prompt, chat: bool) -> bool:
    """Whether a prompt is put into the model's chat template: a text under `chat`, or messages."""
    return chat or (not isinstance(prompt, str) and _messages(prompt) is not None)


def ids_of(loaded: Loaded, prompt: Prompt, *, chat: bool, system: str | None) -> list[int]:
    """The tokens of a prompt; `chat` puts a text into the model's template.

    Raises:
        UsageError: a system message without a conversation, or an empty text.
        DataError: a model without a template, or token ids or messages that are none.
    """
    messages = _messages(prompt) if not isinstance(prompt, str) else None
    if isinstance(prompt, str) and chat:
        messages = [{"role": "user", "content": prompt}]
    if messages is not None:
        start = [{"role": "system", "content": system}] if system else []
        instead = "Leave --chat out" if chat else "Give the prompt as a text, without --chat"
        return encode_chat(loaded.tokenizer, [*start, *messages], instead=instead)
    if isinstance(prompt, str) and not prompt:
        raise UsageError(
            "the prompt is empty: expected text, or token ids. Give at least one character"
        )
    if system is not None:
        raise UsageError("--system without --chat: expected both or none")
    if isinstance(prompt, str):
        return encode(loaded.tokenizer, prompt)
    return token_ids(cast("Sequence[int]", prompt), rows_of(loaded.target))


def _messages(prompt: Any) -> list[dict[str, str]] | None:
    """`prompt` as a conversation, or None where it is none: token ids, maybe."""
    if isinstance(prompt, (Mapping, bytes)):
        raise PromptError(
            f"the prompt is of type {type(prompt).__name__}: expected text, a list of token ids, "
            "or a list of messages. Put it in a list, or decode it"
        )
    if not isinstance(prompt, Sequence) or not any(isinstance(each, Mapping) for each in prompt):
        return None
    for at, each in enumerate(prompt):
        if not isinstance(each, Mapping) or not {"role", "content"} <= each.keys():
            raise PromptError(
                f"message {at} of the prompt is none: expected role and content. Give it both"
            )
    return [{"role": str(each["role"]), "content": str(each["content"])} for each in prompt]


def fitted(
    cell: Cell,
    loaded: Loaded,
    prompt: list[int],
    truncate: bool,
) -> list[int]:
    """`prompt`, if it fits the target's context with what is to come.

    Raises:
        DataError: it does not, and may or can not be truncated.
    """
    context, wanted = context_of(loaded.target), cell.sampling.max_new_tokens
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
    log.info(
        f"note: dropped the oldest {dropped} of {len(prompt)} prompt tokens to fit the context"
    )
    return prompt[dropped:]
