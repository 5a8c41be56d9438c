"""The folder of a head: its config, and what its tensors are called and how large they are."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spsbench.errors import DataError, MissingError
from spsbench.models.description import read_config
from spsbench.models.heads.pickled import pickled_headers
from spsbench.models.weights import TensorHeader, read_headers

PICKLES = ("pytorch_model*.bin", "*.pt", "*.bin")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What can be known of a folder without reading a weight."""

    folder: Path
    config: Mapping[str, Any]
    headers: Mapping[str, TensorHeader]
    files: tuple[Path, ...]  # that hold them: safetensors, or pickles where there are none
    answers: Mapping[str, Any] = field(default_factory=dict)  # what a user said of it

    @property
    def pickled(self) -> bool:
        """Whether it takes a pickle to read the weights."""
        return self.files[0].suffix != ".safetensors"

    @property
    def config_path(self) -> str:
        """For messages."""
        return str(self.folder / "config.json")

    @property
    def kind(self) -> str:
        """The first of its `architectures`, as far as it names one."""
        named = self.config.get("architectures")
        return str(named[0]) if isinstance(named, list) and named else ""

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a tensor of the file.

        Raises:
            DataError: it is not there.
        """
        if name not in self.headers:
            raise DataError(f"no tensor {name} ({self.folder}): expected it. Check --draft")
        return self.headers[name].shape


def checkpoint(folder: Path, answers: Mapping[str, Any] | None = None) -> Checkpoint:
    """Look into a folder; a pickle is looked at without being run.

    Raises:
        MissingError: no config.json, or no tensors.
        DataError: a damaged file, or a tensor that two files have.
    """
    config = read_config(folder)
    files = sorted(folder.glob("*.safetensors"))
    headers: dict[str, TensorHeader] = {}
    if not files:
        files = next((found for each in PICKLES if (found := sorted(folder.glob(each)))), [])
    if not files:
        raise MissingError(
            f"no tensors ({folder}): expected *.safetensors for the drafter. Check --draft"
        )
    for path in files:
        safe = path.suffix == ".safetensors"
        own = read_headers([path]) if safe else pickled_headers(path)
        if twice := sorted(own.keys() & headers.keys()):
            raise DataError(f"{twice[0]} twice ({path}): expected each tensor in one file")
        headers.update(own)
    return Checkpoint(folder, config, headers, tuple(files), answers or {})
