"""A prompt as token ids: whole numbers that the model has, at least one."""

from collections.abc import Iterable, Sequence
from operator import index

from spsbench.errors import DataError


class PromptError(DataError, ValueError):
    """A prompt that cannot be continued."""


def token_ids(prompt: Sequence[int], rows: int | None = None) -> list[int]:
    """`prompt` as plain numbers; integers of numpy and torch count as such, floats do not.

    Args:
        rows: of the model's embedding; None = not checked.

    Raises:
        PromptError: no token at all, or one that is no id.
    """
    ids = [_token_id(token, at) for at, token in enumerate(_items(prompt))]
    if not ids:
        raise PromptError("the prompt has no tokens: expected at least one. Give a prompt")
    for at, token in enumerate(ids):
        if token < 0 or (rows is not None and token >= rows):
            last = "" if rows is None else f" to {rows - 1}"
            raise PromptError(
                f"token {at} of the prompt is {token}: expected an id from 0{last}. "
                "Encode the text with the model's own tokenizer"
            )
    return ids


def _items(prompt: Sequence[int]) -> Iterable[object]:
    try:
        return iter(prompt)
    except TypeError as error:
        raise PromptError(
            f"the prompt is of type {type(prompt).__name__}: expected text or a list of token ids. "
            "Put it in a list"
        ) from error


def _token_id(token: object, at: int) -> int:
    try:
        return index(token)  # type: ignore[arg-type]
    except (TypeError, RuntimeError) as error:  # of a tensor: what is no single integer
        shown = repr(token) if len(repr(token)) <= 40 else type(token).__name__
        raise PromptError(
            f"token {at} of the prompt is {shown}: expected an integer. "
            "Give one list of token ids, or text"
        ) from error
