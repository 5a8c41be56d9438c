"""What makes a training, and a file of texts, the same one again."""

from collections.abc import Mapping
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from spsbench.settings.commands import DraftTraining, HeadTraining
from spsbench.settings.models import ModelSpec
from spsbench.spec import Spec
from spsbench.store.provenance import digest

FREE = (
    *("patience", "worth", "costs", "cost_seconds", "texts", "save_as", "minutes"),
    *("recompute", "parallel", "store_features"),
)
"""May be another on resume: none of them changes what a step does, but for rounding."""

LATER = ("not_from", "on_policy")
"""Were not noted at first: a training without them has the usual value."""

OF_TEXTS = (
    *("prompts", "count", "together", "tokens", "prompt_tokens"),
    *("temperature", "top_p", "seed"),
)
PRODUCTS = "products"


def identity(
    target: ModelSpec,
    asked: DraftTraining | HeadTraining,
    files: str,
    loss: Spec,
    numbers: str,
) -> dict[str, Any]:
    """Everything that a step depends on.

    Args:
        files: digest of the target's.
        loss: that is lowered.
        numbers: that products are computed in.
    """
    found: dict[str, Any] = {"target": str(target), "files": files, "loss": str(loss)}
    found[PRODUCTS] = numbers
    for each in fields(asked):
        if each.name not in (*FREE, "loss"):
            value = getattr(asked, each.name)
            found[each.name] = str(value) if isinstance(value, Path) else value
    found |= {name: getattr(target, name) for name in ("device", "dtype", "attention")}
    if asked.steps is None:
        found["minutes"] = asked.minutes
    for name in ("torch", "transformers"):
        found[f"version.{name}"] = ".".join(version(name).split(".")[:2])
    return found


def usual(asked: DraftTraining | HeadTraining) -> dict[str, Any]:
    """Of the fields that were not always noted."""
    return {each.name: each.default for each in fields(asked) if each.name in LATER}


def of_texts(
    target: ModelSpec,
    asked: DraftTraining | HeadTraining,
    files: Mapping[str, str],
    vocab: int,
    chat: bool,
    numbers: str,
) -> dict[str, Any]:
    """What the texts of a target depend on; and what others must share to learn from them."""
    own = {name: value for name, value in files.items() if "token" in name or "vocab" in name}
    return {
        "target": str(target),
        "files": digest(dict(files)),
        "tokenizer": digest(own),
        "vocab": vocab,
        "chat": chat,
        "numbers": numbers,
        **{name: getattr(asked, name) for name in OF_TEXTS},
    }
