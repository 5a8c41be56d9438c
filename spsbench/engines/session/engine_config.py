"""The configuration that an engine's `prepare` chooses for a model, kept for its sessions."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from msgspec import Meta, ValidationError, convert
from torch import nn

from spsbench.engines.replay import ModelReplay
from spsbench.errors import DataError
from spsbench.hardware.files import in_words


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Configuration of an engine for a model, kept with a run and reused on resume."""

    engine: str  # fast, or eager where fast cannot be
    reason: str = ""  # why it is eager, or why nothing is packed
    linears: int = 0
    packed: Mapping[str, str] = field(default_factory=dict)  # rows x columns -> layout
    packed_linears: int = 0
    threads: Annotated[int, Meta(ge=1)] | None = None  # None: as many as torch uses
    beside: int = 0  # threads of others that were at work when these were chosen
    reading: str = ""  # how weights in panels are prefetched, by `Prefetch.name`
    cache: int = 0  # bytes of a token in the cache; 0 = not known
    row_bits: bool = False  # whether a token's logits have the same bits in a pass of any size

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "EngineConfig":
        """Return `to_json`'s inverse; unknown fields are ignored. DataError: types, no `engine`."""
        try:
            return convert(values, cls)
        except ValidationError as error:
            raise DataError(
                f"foreign choice of an engine ({error}): expected what sps wrote. Start the "
                "run anew"
            ) from error

    def of_cache(self, context: int | None) -> str:
        """Return the size of the cache in words; empty where it is not known."""
        if not self.cache:
            return ""
        whole = "" if context is None else f", {in_words(context * self.cache)} at {context}"
        return f"cache {in_words(self.cache)} a token{whole}"

    def __str__(self) -> str:
        if self.engine != "fast":
            return f"{self.engine}: {self.reason}"
        packed = f"{self.packed_linears} of {self.linears} linear layers packed"
        unpacked_count = self.linears - self.packed_linears
        unpacked = f"{unpacked_count} of a kind that no kernel takes" if unpacked_count else ""
        why = f" ({cause})" if (cause := self.reason or unpacked) else ""
        threads = "" if self.threads is None else f", threads {self.threads}"
        if self.threads is not None and self.beside:
            threads += f", {self.beside} busy elsewhere"
        return f"fast: {packed}{why}{threads}"


class Prepared(NamedTuple):
    """A model's configuration, and what runs its passes."""

    choice: EngineConfig
    replay: ModelReplay | None = None


_PREPARED: WeakKeyDictionary[nn.Module, Prepared] = WeakKeyDictionary()
_PLAIN = Prepared(EngineConfig(engine="fast", reason="not prepared"))


def get_prepared(model: nn.Module) -> Prepared:
    """Return the configuration and replay of `model`; the plain ones if it is not prepared."""
    return _PREPARED.get(model, _PLAIN)


def engine_config_of(model: nn.Module) -> EngineConfig | None:
    """Return the configuration of `model`; None where it was not prepared."""
    return _PREPARED[model].choice if model in _PREPARED else None


def set_engine_config(
    model: nn.Module, choice: EngineConfig, replay: ModelReplay | None = None
) -> EngineConfig:
    """Keep the configuration of `model` for every session over it, and return it."""
    _PREPARED[model] = Prepared(choice, replay)
    return choice


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Run the block with `count` threads inside torch's operators; None: as many as before it."""
    before = torch.get_num_threads()
    if count in (None, before):
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
