"""The folder of a head: its config, and its tensors by their names."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spsbench.checkpoints.config import in_transformers, read_config
from spsbench.checkpoints.weights import TensorHeader, read_headers, regular_file, safetensors_files
from spsbench.errors import DataError, MissingError, UsageError
from spsbench.hardware.environment import bound_spinning
from spsbench.untrusted import cut, is_finite_number

PICKLES = ("pytorch_model*.bin", "*.pt", "*.bin")
MANY = 1 << 10  # heads, layers or tokens of a block: more are believed of no config
WORDS = ("speculator", "eagle", "medusa", "dflash", "dspark", "mtp", "blockwise", "falcon", "mimo")
"""In the `model_type` of heads, and of targets that transformers has not."""


@dataclass(frozen=True, slots=True)
class Files:
    """The contents of a head's folder that can be known without reading a weight."""

    folder: Path
    config: Mapping[str, Any]
    headers: Mapping[str, TensorHeader]
    paths: tuple[Path, ...]  # that hold them: safetensors, or pickles where there are none
    overrides: Mapping[str, Any] = field(default_factory=dict)  # a user's answers

    @property
    def where(self) -> str:
        """Return the path of the config, for messages."""
        return str(self.folder / "config.json")

    @property
    def kind(self) -> str:
        """Return the first of the config's `architectures`; "" if it has no list of them."""
        named = self.config.get("architectures")
        return str(named[0]) if isinstance(named, list) and named else ""

    @property
    def target(self) -> str | None:
        """Return the target's name, as a config of speculators or Medusa states it; else None."""
        about: Any = self.config.get("speculators_config")
        named = about.get("verifier") if isinstance(about, Mapping) else None
        if isinstance(named, Mapping):
            name = named.get("name_or_path")
        else:
            name = self.config.get("base_model_name_or_path")
        return name if isinstance(name, str) and name else None


def open_files(folder: Path, overrides: Mapping[str, Any] | None = None) -> Files:
    """Read the config and the tensor headers of a folder; no weight is kept, no pickle's code run.

    `overrides` do not change the config. Pickles are read only without safetensors. MissingError:
    no tensors; DataError: one in two files, or a bad file. The config raises as `read_config`.
    """
    config = read_config(folder)
    paths = safetensors_files(folder)
    headers: dict[str, TensorHeader] = {}
    if not paths:
        paths = next(filter(None, (sorted(folder.glob(pattern)) for pattern in PICKLES)), [])
    if not paths:
        raise MissingError(
            f"no tensors ({folder}): expected *.safetensors for the drafter. Check `draft`"
        )
    for path in paths:
        if path.suffix == ".safetensors":
            more = read_headers([path])
        else:
            tensors = load_pickle(path, "meta")
            more = {name: TensorHeader(str(t.dtype), tuple(t.shape)) for name, t in tensors.items()}
        if twice := sorted(more.keys() & headers.keys()):
            raise DataError(f"{twice[0]} twice ({path}): expected each tensor in one file")
        headers.update(more)
    return Files(folder, config, headers, tuple(paths), overrides or {})


def load_pickle(path: Path, device: str) -> dict[str, Any]:
    """Return name -> tensor, on `device`, of a file that `torch.save` wrote; no code in it is run.

    DataError: it cannot be read so, or holds anything but tensors by name.
    """
    bound_spinning()  # OpenMP reads it when torch is imported: here for heads in pickles, few
    import torch

    try:
        regular_file(path)
        state = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # an unpickler may raise anything
        raise DataError(
            f"{path.name} cannot be read ({path}): expected tensors by name, as torch.save writes "
            "them. Convert it to safetensors"
        ) from error
    if not isinstance(state, dict) or not all(
        isinstance(t, torch.Tensor) and t.layout is torch.strided for t in state.values()
    ):
        raise DataError(
            f"{path.name} holds more than tensors ({path}): expected tensors by name. Convert "
            "it to safetensors"
        )
    return {str(name): tensor.detach() for name, tensor in state.items()}


def read_size(
    config: Mapping[str, Any],
    key: str,
    where: str,
    default: int | None = None,
    most: int = 1 << 28,
    least: int = 1,
) -> int:
    """Return the integer config[key], or `default`; DataError: none, or outside least to most."""
    value = config.get(key)
    if value is None and default is not None:
        return default
    if type(value) is not int or not least <= value <= most:
        named = f"no {key}" if value is None else f"{key} is {cut(repr(value), 40)}"
        raise DataError(
            f"{named} ({where}): expected an integer from {least} to {most}. Fetch the head again"
        )
    return value


def positive(value: object, key: str, where: str) -> float:
    """Return the config's `value` at `key` as a float; DataError: no finite number above 0."""
    if not is_finite_number(value) or value <= 0:
        raise DataError(
            f"{key} is {cut(repr(value), 40)} ({where}): expected a number above 0. Fetch the "
            "head again"
        )
    return float(value)


def hidden_states(text: Any, drafter: str) -> tuple[int, ...]:
    """Parse numbers of hidden states as a user writes them, `2-16-29` or 2; () of an empty text.

    UsageError: anything else, None too, and a number of more digits than `MANY` has.
    """
    parts = str(text).split("-") if text != "" else []
    if not all(part.isdecimal() and len(part) <= len(str(MANY)) for part in parts):
        raise UsageError(
            f"{drafter}:features={text}: expected hidden states such as 2-16-29. Count them as "
            "transformers does, 0 being the embeddings"
        )
    return tuple(map(int, parts))


def read_object(config: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    """Return the object at `key` of a config; DataError: none is there."""
    value = config.get(key)
    if not isinstance(value, Mapping):
        raise DataError(f"{key} is {value!r} ({where}): expected an object. Check `draft`")
    return value


def check_kind(config: Mapping[str, Any], where: str) -> None:
    """Raise DataError for a `model_type` of neither heads nor transformers; none at all passes."""
    if (kind := config.get("model_type")) is None:
        return
    is_known_kind = isinstance(kind, str) and (
        any(word in kind.lower() for word in WORDS) or in_transformers(kind)
    )
    if not is_known_kind:
        raise DataError(
            f"model_type is {cut(repr(kind), 40)} ({where}): expected one that is known, such "
            "as llama, qwen3 or medusa. Fetch the head again"
        )
