"""Memory that is given back to the system and asked for again, page by page, costs time."""

import ctypes
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
KEPT = 1 << 30
OWN = 32 << 20  # the most that glibc allows; larger ones come from the system each time


def keep_memory() -> bool:
    """Let this process keep what it frees, where the C library is glibc; whether it will.

    Pages that come anew from the system are cleared by it first: products of 10 MB took two to
    three times as long. Larger blocks than `OWN` still come and go, or what is between them would
    never be given back: without that bound a training grew to 19 GB.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(option(MMAP_THRESHOLD, OWN)) and bool(option(TRIM_THRESHOLD, KEPT))
