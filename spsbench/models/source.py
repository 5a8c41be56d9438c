"""Where a cell's models come from: checkpoints, or bare shapes with random weights.

Equal sources give the same models, so a source is a key of what is loaded already.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from transformers import PreTrainedModel

from spsbench.engines.limits import rows_of
from spsbench.engines.quantization.layers import quantise
from spsbench.errors import DataError
from spsbench.models.folder import check_folder, locate
from spsbench.models.gguf.blocks import check_blocks, lay_blocks
from spsbench.models.loader import eos_ids, load_model, load_tokenizer
from spsbench.models.shapes import IdTokenizer, check_shape, locate_shape, model_of_shape
from spsbench.models.shares import load_shared
from spsbench.models.vocabulary import check_same, common_size, difference
from spsbench.settings.models import BLOCKS, ModelSpec


class Source(Protocol):
    """What it takes to get a model and its tokenizer; every step may raise an `SpsError`."""

    def locate(self, ref: ModelSpec) -> Path:
        """The checked folder of a model; no weights are read."""

    def tokenizer(self, folder: Path) -> Any:
        """Its tokenizer."""

    def difference(self, target: Any, draft: Any) -> str | None:
        """Where the tokenizer of a draft is not the target's; None if it is."""

    def check_same(self, target: Any, draft: Any) -> None:
        """Refuse a draft whose tokenizer is not the target's."""

    def model(self, folder: Path, *, mapped: bool = False) -> PreTrainedModel:
        """The model, on its device, in eval mode; `mapped`: of its files, until `lazy.settle`."""

    def vocab_size(self, target: PreTrainedModel, draft: PreTrainedModel, tokenizer: Any) -> int:
        """How many of their logits are tokens in both; padding rows are beyond."""

    def eos(self, model: PreTrainedModel, tokenizer: Any) -> frozenset[int]:
        """The ids that end a text."""


def source_of(spec: ModelSpec, *, seed: int, offline: bool, allow_pickle: bool) -> Source:
    """Where a model comes from; `seed` is that of random weights."""
    machine: dict[str, Any] = {
        "device": spec.device,
        "dtype": spec.dtype,
        "attention": spec.attention,
        "quantised": spec.quantised,
    }
    if spec.random:
        return Shapes(seed=seed, offline=offline, **machine)
    return Checkpoints(
        trust_remote_code=spec.trust_remote_code,
        allow_pickle=allow_pickle,
        offline=offline,
        ranks=spec.ranks,
        **machine,
    )


def rounded(model: PreTrainedModel, name: str | None, folder: Path) -> PreTrainedModel:
    """`model`, its linear layers in the format `name`; None: as they are.

    Raises:
        DataError: it has none that can be quantised, or blocks of another model.
    """
    if name == BLOCKS:
        lay_blocks(model, folder)
        return model
    if name is not None and not quantise(model, name):
        raise DataError(
            f"{type(model).__name__} has no linear layers of the stock kind ({folder}): expected "
            f"some for --weights {name}. Take the weights as they are"
        )
    return model


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """Trained models: bundled, in folders, or at a hub."""

    device: str
    dtype: str
    attention: str | None
    quantised: str | None
    trust_remote_code: bool
    allow_pickle: bool
    offline: bool
    ranks: int = 1

    @property
    def _permitted(self) -> dict[str, bool]:
        return {"trust_remote_code": self.trust_remote_code, "allow_pickle": self.allow_pickle}

    def locate(self, ref: ModelSpec) -> Path:
        """Its folder, checked as far as that goes without loading."""
        folder = locate(ref, offline=self.offline, **self._permitted)
        check_folder(folder, **self._permitted)
        if self.quantised == BLOCKS:
            check_blocks(folder)
        return folder

    def tokenizer(self, folder: Path) -> Any:
        """The tokenizer beside the weights."""
        return load_tokenizer(folder, trust_remote_code=self.trust_remote_code)

    def difference(self, target: Any, draft: Any) -> str | None:
        """Of vocabularies, rules and the tokens of some texts."""
        return difference(target, draft)

    def check_same(self, target: Any, draft: Any) -> None:
        """Compare vocabularies, rules and the tokens of some texts."""
        check_same(target, draft)

    def model(self, folder: Path, *, mapped: bool = False) -> PreTrainedModel:
        """The model with the weights of its folder; over several ranks, this one's share."""
        how: dict[str, Any] = {
            "device": self.device,
            "dtype": self.dtype,
            "attention": self.attention,
            **self._permitted,
        }
        if self.ranks > 1:
            return load_shared(folder, size=self.ranks, **how)
        return rounded(load_model(folder, mapped=mapped, **how), self.quantised, folder)

    def vocab_size(self, target: PreTrainedModel, draft: PreTrainedModel, tokenizer: Any) -> int:
        """As the tokenizer and both models have it."""
        return common_size(rows_of(target), rows_of(draft), tokenizer)

    def eos(self, model: PreTrainedModel, tokenizer: Any) -> frozenset[int]:
        """Every id that a config or the tokenizer names."""
        return eos_ids(model, tokenizer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Random weights in the shape of a `config.json`: for timing, their text means nothing."""

    device: str
    dtype: str
    attention: str | None
    quantised: str | None
    seed: int
    offline: bool

    def locate(self, ref: ModelSpec) -> Path:
        """The folder of the `config.json`, checked."""
        folder = locate_shape(ref, offline=self.offline)
        check_shape(folder)
        return folder

    def tokenizer(self, folder: Path) -> Any:
        """Numbers for ids."""
        return IdTokenizer()

    def difference(self, target: Any, draft: Any) -> str | None:
        """None: numbers are the same for all."""
        return None

    def check_same(self, target: Any, draft: Any) -> None:
        """Numbers are the same for all."""

    def model(self, folder: Path, *, mapped: bool = False) -> PreTrainedModel:
        """The model with weights drawn from the seed."""
        made = model_of_shape(
            folder,
            device=self.device,
            dtype=self.dtype,
            attention=self.attention,
            seed=self.seed,
        )
        return rounded(made, self.quantised, folder)

    def vocab_size(self, target: PreTrainedModel, draft: PreTrainedModel, tokenizer: Any) -> int:
        """The smaller of the two."""
        return min(rows_of(target), rows_of(draft))

    def eos(self, model: PreTrainedModel, tokenizer: Any) -> frozenset[int]:
        """None: a text without meaning has no end."""
        return frozenset()
