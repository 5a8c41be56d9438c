"""The tokenizer and the sampling of a GGUF file, beside what transformers reads of them.

transformers' class for such vocabularies adds `<|endoftext|>` where it is missing (Llama 3,
Falcon 3, Tekken): an id for which the model has no row.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spsbench.checkpoints.config import TOKENIZER_LIMIT, read_object
from spsbench.models.gguf.header import Header
from spsbench.tables import read_table

_KEYS, _SAMPLING = "tokenizer.ggml.", "general.sampling."
TABLE = read_table(__file__, "keys.toml")
ENDS, HARMLESS, AS_GPT2 = (words.split() for words in TABLE["tokenizer"].values())
WARPS: Mapping[str, str] = TABLE["sampling"]


def sampling_settings(head: Header) -> dict[str, Any]:
    """Return a file's sampling by generation config's names, or whole keys; floats to 6 digits."""
    settings = {}
    for key, value in head.values.items():
        if key.startswith(_SAMPLING):
            name = WARPS.get(key.removeprefix(_SAMPLING), key)
            settings[name] = float(f"{value:.6g}") if isinstance(value, float) else value
    return settings


def generation_settings(head: Header) -> dict[str, Any]:
    """Return the generation config of a file: EOS ids, sampling, and keys that are not applied."""
    settings, values = sampling_settings(head), head.values
    if ends := {values[_KEYS + name] for name in ENDS if _KEYS + name in values}:
        settings["eos_token_id"] = sorted(ends)
    return settings | {key: x for key, x in values.items() if _changes_text(key, x, head)}


def _changes_text(key: str, value: Any, head: Header) -> bool:
    """Return whether a key of the tokenizer changes texts and is not applied by transformers."""
    prefix, name, kind = *key.rpartition(".")[::2], head.values.get(_KEYS + "model")
    if prefix + "." != _KEYS:
        return False
    if name == "pre":
        from transformers.integrations.gguf import gguf_tokenizer_mapping as mapping

        is_split = value in AS_GPT2 or value in mapping.GGUF_PRE_TOKENIZER_SPLITS
        return kind == "gpt2" and not is_split
    if name == "add_space_prefix":
        return not value and kind == "llama" and not head.architecture.startswith("gemma")
    harmless = name in HARMLESS or name in ENDS or name.startswith("fim_")
    return not harmless and value not in (False, 0, "")


def keep_listed(folder: Path, count: int) -> None:
    """Remove all ids from `count` on, and their roles, from the tokenizer's files in `folder`."""
    path, roles_path = folder / "tokenizer.json", folder / "tokenizer_config.json"
    rules = read_object(path, TOKENIZER_LIMIT)
    added, words = rules.get("added_tokens") or [], rules["model"].get("vocab") or {}
    beyond = {token["content"] for token in added if token["id"] >= count}
    if isinstance(words, dict):
        beyond |= {word for word, token in words.items() if token >= count}
        rules["model"]["vocab"] = {word: token for word, token in words.items() if token < count}
    if not beyond:
        return
    rules["added_tokens"] = [token for token in added if token["id"] < count]
    if rules["model"].get("unk_token") in beyond:
        rules["model"]["unk_token"] = None
    path.write_text(json.dumps(rules, ensure_ascii=False))
    roles = read_object(roles_path, TOKENIZER_LIMIT)
    roles.pop("added_tokens_decoder", None)
    kept = {name: _without(value, beyond) for name, value in roles.items()}
    roles_path.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n")


def _without(value: Any, beyond: set[str]) -> Any:
    """Return a setting of a tokenizer without the tokens `beyond`; None: it is one of them."""
    if isinstance(value, list):
        return [part for part in value if _without(part, beyond) is not None]
    text = value.get("content") if isinstance(value, dict) else value
    return None if isinstance(text, str) and text in beyond else value
