"""The models that have names: those in the package, and those fetched into the user's cache."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from spsbench.hardware.cache_home import cache_home

_MODELS = Path(__file__).parents[1] / "models"

BUNDLED: Mapping[str, Path] = MappingProxyType(
    {
        name: _MODELS / name
        for name in ("nano", "nano-draft", "nano-eagle3", "nano-medusa", "nano-mlp")
    }
)
"""Name -> folder of each bundled model and head."""

DEFAULT_DRAFT: Mapping[str, str] = MappingProxyType({"nano": "nano-draft"})
"""Bundled target -> the bundled draft model that was made for it."""

DEFAULT_HEAD: Mapping[tuple[str, str], str] = MappingProxyType(
    {("nano", kind): f"nano-{kind}" for kind in ("eagle3", "medusa", "mlp")}
)
"""Bundled target and drafter -> the bundled head for both."""

FETCHED = ("smollm2",)
"""Names of the models that `sps models fetch` gets."""


def fetched_folder(name: str) -> Path:
    """Where the user's cache has the model, once it was fetched."""
    return cache_home() / "models" / name
