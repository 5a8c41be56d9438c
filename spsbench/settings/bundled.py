"""The models that come with the package; nothing heavy is imported here."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

_MODELS = Path(__file__).parents[1] / "models"

BUNDLED: Mapping[str, Path] = MappingProxyType(
    {name: _MODELS / name for name in ("nano", "nano-draft")}
)
"""Name -> folder of each bundled model."""

DEFAULT_DRAFT: Mapping[str, str] = MappingProxyType({"nano": "nano-draft"})
"""Bundled target -> the bundled draft model that was made for it."""
