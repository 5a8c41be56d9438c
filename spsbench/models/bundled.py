"""The models that come with the package; nothing heavy is imported here."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

_HERE = Path(__file__).parent

BUNDLED: Mapping[str, Path] = MappingProxyType(
    {name: _HERE / name for name in ("nano", "nano-draft")}
)
"""Name -> folder of each bundled model."""

DEFAULT_DRAFT: Mapping[str, str] = MappingProxyType({"nano": "nano-draft"})
"""Bundled target -> the bundled draft model that was made for it."""
