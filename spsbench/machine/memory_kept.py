"""Memory that is given back to the system and asked for again, page by page, costs time."""

import ctypes
import sys

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # malloc.h of glibc
LARGEST = (1 << 31) - 1


def keep_memory() -> bool:
    """Let this process keep what it frees, where the C library is glibc; whether it will.

    A law over 49,152 tokens at 1,024 places is 200 MB: without this every product of such a size
    is first cleared by the kernel. Two to three times as long was seen (`docs/train.md`).
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(option(MMAP_MAX, 0)) and bool(option(TRIM_THRESHOLD, LARGEST))
