"""Adapters as a user names them: folders of PEFT, checked as far as no library is needed."""

import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from spsbench.checkpoints.config import CONFIG_LIMIT, expand_path, read_object, refuse_pointer
from spsbench.checkpoints.weights import read_headers
from spsbench.errors import DataError, MissingError

CONFIG, WEIGHTS, PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
MERGED = ("LORA", "LOHA", "LOKR", "OFT", "IA3")
"""Kinds of PEFT whose merged weights compute what the unmerged adapter computes."""
PARTIAL = ("alora_invocation_tokens", "arrow_config", "layer_replication")
"""Keys of a LoRA that acts on some tokens, by a router, or on repeated layers."""
NOT_SUMMED: Mapping[str, object] = {"use_dora": False, "modules_to_save": None, "bias": "none"}
"""Keys of a LoRA, and the values at which all that it does is to add to weights."""
FACTOR = re.compile(r"-?\d++(?:\.\d*+)?")


class Adapter(NamedTuple):
    """A checked folder of PEFT, and the factor on its changes."""

    folder: Path
    factor: float
    file: Path  # holds its weights
    base: str  # the model that it was trained for, by its own words

    def error(self, what: str, expected: str) -> DataError:
        """Return, without raising it, the DataError that `what` is wrong and what is `expected`."""
        return DataError(f"{what} ({self.folder}): expected {expected}")


def read_adapters(text: str, *, allow_pickle: bool = False) -> list[Adapter]:
    """Return the adapters that `text` names, in order, each checked by its files without a base.

    `text` is a folder of PEFT, or terms `FOLDER` and `FOLDER=FACTOR` joined by `+`; empty: [].
    MissingError: peft is not installed, or a folder lacks its config or weights. DataError: a kind
    that is not merged or does not add up, damaged files, or a pickle without `allow_pickle`.
    """
    if text and find_spec("peft") is None:
        raise MissingError(
            "peft is not installed: expected it for `adapter`. Run pip install 'spsbench[adapters]'"
        )
    terms = [text] if not text or expand_path(text).is_dir() else text.split("+")
    return [_read(term, allow_pickle, several=len(terms) > 1) for term in terms if term or text]


def adapter_files(text: str) -> dict[str, Path]:
    """Return `N/FILE` -> path of config and weights, pickles too, of adapter N; SpsError: unfit."""
    adapters = enumerate(read_adapters(text, allow_pickle=True))
    files = ((n, path) for n, one in adapters for path in (one.folder / CONFIG, one.file))
    return {f"{n}/{path.name}": path for n, path in files}


def _read(term: str, allow_pickle: bool, *, several: bool) -> Adapter:
    """Return the adapter that `FOLDER` or `FOLDER=FACTOR` names; check its config and headers.

    The factor is 1 unless given; `several`: changes of other adapters are added to this one's.
    MissingError: no config or no weights. DataError: a kind that is not merged, sizes that are no
    numbers, a factor or `several` with what does not add up, a bad file, or an untrusted pickle.
    """
    path, _, text = term.rpartition("=")
    has_factor = bool(path) and FACTOR.fullmatch(text)
    folder, factor = expand_path(path if has_factor else term), float(text) if has_factor else 1.0
    if not (folder / CONFIG).is_file():
        raise MissingError(
            f"no {CONFIG} ({folder}): expected the folder of a PEFT adapter, or several as "
            "A=0.7+B=0.3. Check the path"
        )
    config = read_object(folder / CONFIG, CONFIG_LIMIT)
    safe, pickle = folder / WEIGHTS, folder / PICKLE
    base = str(config.get("base_model_name_or_path") or "")
    adapter = Adapter(folder, factor, safe if safe.is_file() else pickle, base)
    kind = str(config.get("peft_type") or "unknown").upper()
    if kind not in MERGED:
        raise adapter.error(
            f"an adapter of kind {kind:.40}, which is not merged", f"one of {', '.join(MERGED)}"
        )
    if key := next((key for key in PARTIAL if config.get(key)), None):
        raise adapter.error(
            f"a LoRA with {key}, which is not merged", "one that acts on all tokens"
        )
    for key in ("r", "lora_alpha", "alpha", "rank_pattern", "alpha_pattern"):
        value = config.get(key)
        for number in value.values() if isinstance(value, dict) else [value]:
            if not isinstance(number, int | float | None):
                raise adapter.error(f"{key} has {number!r:.40} in {CONFIG}", "a number")
    adds = kind == "LORA" and all(config.get(n) in (v, None, []) for n, v in NOT_SUMMED.items())
    if not adds and (factor != 1 or several):
        raise adapter.error(
            "a factor, or another adapter, with what does not add up",
            f"LoRA without {', '.join(NOT_SUMMED)}. Name it alone",
        )
    if not adapter.file.is_file():
        raise MissingError(f"no {WEIGHTS} ({folder}): expected it. Copy the whole folder")
    refuse_pointer(adapter.file)
    if adapter.file == safe:
        read_headers([safe])
    elif not allow_pickle:
        raise adapter.error(
            f"only pickled weights, {PICKLE}",
            "safetensors, as a pickle can run code. Convert it, or trust it with `allow_pickle`",
        )
    return adapter
