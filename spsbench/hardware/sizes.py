"""Byte counts and seconds for people, and the size of model folders."""

from pathlib import Path


def in_words(size: float) -> str:
    """A number of bytes for people: `6.4 GB`."""
    for unit in ("bytes", "KB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def clock(seconds: float) -> str:
    """`1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


def folder_size(folder: Path) -> int | None:
    """Bytes of the files in `folder`; None when it holds no model."""
    if not (folder / "config.json").is_file():
        return None
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
