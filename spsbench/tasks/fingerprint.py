"""A short name for prompts: it changes when any of them does."""

import hashlib
from collections.abc import Iterable


def fingerprint(texts: Iterable[str]) -> str:
    """First 8 hex digits of the digest of the texts."""
    return digest_of(texts)[:8]


def digest_of(texts: Iterable[str]) -> str:
    """The SHA-256 of the texts, each with its length before it."""
    digest = hashlib.sha256()
    for text in texts:
        content = text.encode()
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest()
