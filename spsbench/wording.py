"""Other people's errors, and byte counts, in words that fit on one line."""

import sys

_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")


def first_line(error: BaseException) -> str:
    """The first line of an error's message, shortened."""
    lines = str(error).strip().splitlines() or ["no message"]
    return lines[0][:300].rstrip(".:")


def is_out_of_memory(error: BaseException) -> bool:
    """Of the host or of a device; torch is looked at only if it is loaded."""
    torch = sys.modules.get("torch")
    if isinstance(error, MemoryError) or (torch and isinstance(error, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _MEMORY)


def in_words(size: float) -> str:
    """A number of bytes for people: `6.4 GB`."""
    for unit in ("bytes", "KB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
