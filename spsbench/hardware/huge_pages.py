"""Memory in huge pages: reading small ones, a processor stops at each to look up where it is."""

import mmap
from contextlib import suppress


def huge_mapping(size: int) -> mmap.mmap:
    """`size` bytes of zeros of this process's own, in huge pages where the system has them.

    Shared mappings would get none.

    Raises:
        OSError: the system promises no more memory than it has.
    """
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # not Linux, or a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
