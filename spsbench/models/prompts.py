"""Prompts as token ids: texts, ids and conversations, cut to a context."""

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from spsbench.engines.eager import context_of, logits_width
from spsbench.errors import DataError, UsageError
from spsbench.loop.decoder import EnginePrompt as EnginePrompt
from spsbench.loop.text import PromptError, to_token_ids
from spsbench.models.cache import Loaded
from spsbench.models.tokenizers import encode_chat, encode_text
from spsbench.settings.cell import Cell

log = logging.getLogger(__name__)

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""A text to continue, its token ids, or the messages of a conversation with role and content."""


def prompts_in_batch(prompt: Any) -> list[Any] | None:
    """Return the prompts of a list of texts, of lists of ids or of chats; None: one, as [] is."""
    several = isinstance(prompt, list | tuple) and len(prompt) > 0
    return [*prompt] if several and all(isinstance(p, str | list | tuple) for p in prompt) else None


def is_chat(prompt: Prompt, chat: bool) -> bool:
    """Return whether a prompt needs the chat template: messages, or text under `chat`."""
    return chat or (not isinstance(prompt, str) and _messages(prompt) is not None)


def ids_of(
    loaded: Any, prompt: Prompt, *, chat: bool, system: str | None
) -> list[int] | EnginePrompt:
    """Return a prompt's token ids; messages, and text under `chat`, go through the chat template.

    `system` is a message before them. An engine that has the models elsewhere (`loaded` is an
    `Outline`) gets an EnginePrompt of a text, with its ids if a tokenizer is here, and of messages
    if none is. UsageError: an empty text, or `system` without a chat. DataError: the prompt is no
    text, ids or messages, the template fails, or an id is none of the target's, if that is here.
    """
    messages = _messages(prompt) if not isinstance(prompt, str) else None
    if isinstance(prompt, str) and chat:
        messages = [{"role": "user", "content": prompt}]
    if messages is not None:
        start = [{"role": "system", "content": system}] if system else []
        instead = "Leave `chat` out" if chat else "Give the prompt as a text, without `chat`"
        if loaded.tokenizer is None:
            return EnginePrompt([*start, *messages])
        messages = [*start, *map(_parse_arguments, messages)]
        return encode_chat(loaded.tokenizer, messages, instead=instead)
    if isinstance(prompt, str) and not prompt:
        raise UsageError(
            "the prompt is empty: expected text, or token ids. Give at least one character"
        )
    if system is not None:
        raise UsageError("`system` without `chat`: expected both or none")
    here = isinstance(loaded, Loaded)
    if isinstance(prompt, str):
        ids = loaded.tokenizer and encode_text(loaded.tokenizer, prompt)
        return ids if here else EnginePrompt(prompt, ids)
    return to_token_ids(
        cast("Sequence[int]", prompt), logits_width(loaded.target) if here else None
    )


def _messages(prompt: Any) -> list[dict[str, Any]] | None:
    """Return a prompt with a message in it as checked copies; None: a text, or another list.

    PromptError: bytes, a mapping, or a list with an entry that `_message` refuses.
    """
    if isinstance(prompt, (Mapping, bytes)):
        raise PromptError(
            f"the prompt is of type {type(prompt).__name__}: expected text, a list of token ids, "
            "or a list of messages. Put it in a list, or decode it"
        )
    if not isinstance(prompt, Sequence) or not any(
        isinstance(message, Mapping) for message in prompt
    ):
        return None
    return [_message(message, f"message {at} of the prompt") for at, message in enumerate(prompt)]


def _message(message: Any, where: str) -> dict[str, Any]:
    """Return a copy of a message of OpenAI's API; PromptError: no role, content or JSON.

    The content is text, in place of null or of a list of texts, joined; calls stay as they are.
    """
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise PromptError(f"{where} is none: expected role and content. Give it both")
    if "content" not in message and not message.get("tool_calls"):
        raise PromptError(f"{where} has no content: expected role and content. Give it both")
    content = message.get("content")
    parts = [""] if content is None else content if isinstance(content, list) else [content]
    texts: list[Any] = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    if isinstance(content, Mapping) or not all(isinstance(text, str) for text in texts):
        raise PromptError(f"{where} has content that is no text: expected text, or parts of text")
    try:
        copy: dict[str, Any] = json.loads(json.dumps({**message, "content": "".join(texts)}))
    except (TypeError, ValueError, RecursionError) as error:
        raise PromptError(f"{where} is no JSON ({error}): expected values of JSON") from error
    return copy


def _parse_arguments(message: dict[str, Any]) -> dict[str, Any]:
    """Parse in place the arguments of calls that are JSON, others stay; return `message`."""
    for call in message.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            with suppress(ValueError, RecursionError):
                function["arguments"] = json.loads(function["arguments"])
    return message


def fit_prompt(
    cell: Cell, loaded: Any, prompt: list[int] | EnginePrompt, truncate: bool
) -> list[int] | EnginePrompt:
    """Return `prompt`, its oldest tokens cut with a note if `truncate`; DataError: it is too long.

    The target's context must hold prompt and new tokens; new tokens that fill it alone are refused
    in any case. An engine elsewhere checks its own.
    """
    if cell.elsewhere or isinstance(prompt, EnginePrompt):
        return prompt  # the engine refuses what does not fit
    context, new_tokens = context_of(loaded.target), cell.max_new_tokens
    if context is None or len(prompt) + new_tokens <= context:
        return prompt
    needs = f"the prompt has {len(prompt)} tokens and {new_tokens} are to be generated"
    if new_tokens >= context:
        raise DataError(
            f"{needs}: expected fewer new tokens, the target's context holds {context} in all. "
            "Lower `max_new_tokens`"
        )
    if not truncate:
        raise DataError(
            f"{needs}: expected at most {context} in all, the target's context. "
            "Lower `max_new_tokens`, or drop the oldest tokens with `truncate` left"
        )
    dropped = len(prompt) + new_tokens - context
    log.info(
        f"note: dropped the oldest {dropped} of {len(prompt)} prompt tokens to fit the context"
    )
    return prompt[dropped:]
