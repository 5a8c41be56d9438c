"""The tokenizer that transformers makes of a GGUF file, without tokens that the file does not list.

transformers' class for such vocabularies adds `<|endoftext|>` where it is missing (Llama 3,
Falcon 3, Tekken): an id for which the model has no row.
"""

import json
from pathlib import Path
from typing import Any

from spsbench.checkpoints.config import read_object

_LIMIT = 200 << 20  # bytes


def keep_listed(folder: Path, count: int) -> None:
    """Remove all ids from `count` on from a saved tokenizer, and the roles of their tokens."""
    path, roles_path = folder / "tokenizer.json", folder / "tokenizer_config.json"
    rules = read_object(path, _LIMIT)
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
    roles = read_object(roles_path, _LIMIT)
    roles.pop("added_tokens_decoder", None)
    kept = {name: _without(value, beyond) for name, value in roles.items()}
    roles_path.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n")


def _without(value: Any, beyond: set[str]) -> Any:
    """Return a setting of a tokenizer without some tokens."""
    if isinstance(value, list):
        return [part for part in value if _without(part, beyond) is not None]
    text = value.get("content") if isinstance(value, dict) else value
    return None if isinstance(text, str) and text in beyond else value
