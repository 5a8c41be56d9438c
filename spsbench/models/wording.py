"""Other people's errors, and byte counts, in words that fit on one line."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message, shortened; its kind when it has none."""
    lines = str(error).strip().splitlines()
    return lines[0][:300].rstrip(".:") if lines else type(error).__name__


def in_words(size: float) -> str:
    """A number of bytes for people: `6.4 GB`."""
    for unit in ("bytes", "KB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
