"""Whether transformers can share the weights of a model over ranks, and why not."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spsbench.errors import DataError

DIVIDED = ("num_attention_heads", "num_key_value_heads", "intermediate_size")
"""What every rank has an equal part of."""


def check_shareable(kind: Any, config: Any, ranks: int, folder: Path) -> None:
    """Refuse what cannot be divided by `ranks`; no weights are read.

    Args:
        kind: the class of the model; None for packed weights and parts of larger models.
        config: of the model, as transformers reads it.
        ranks: two or more.
        folder: for the message.

    Raises:
        DataError: it has no plan, or heads that do not divide.
    """
    name = type(config).__name__.removesuffix("Config")
    if kind is None:
        raise DataError(
            f"{name} with packed weights, or within a larger model, cannot be shared by ranks "
            f"({folder}): expected plain weights. Leave --parallel out"
        )
    if not getattr(config, "base_model_tp_plan", None):
        raise DataError(
            f"transformers has no plan to share {name} by ranks ({folder}): expected a model with "
            "one, such as Llama, Mistral, Qwen or Gemma. Leave --parallel out"
        )
    check_divided({field: getattr(config, field, None) for field in DIVIDED}, ranks, folder)


def check_divided(config: Mapping[str, Any], ranks: int, folder: Path) -> None:
    """Refuse heads that do not divide by `ranks`.

    Args:
        config: of the model, as a mapping.
        ranks: two or more.
        folder: for the message.

    Raises:
        DataError: a number of `DIVIDED` is no multiple of them.
    """
    for field in DIVIDED:
        count = config.get(field)
        if isinstance(count, int) and count % ranks:
            raise DataError(
                f"{field} is {count} ({folder}): expected a multiple of the {ranks} ranks. "
                "Choose another number with --parallel tp:N"
            )
