"""Byte counts for people."""


def in_words(size: float) -> str:
    """A number of bytes for people: `6.4 GB`."""
    for unit in ("bytes", "KB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
