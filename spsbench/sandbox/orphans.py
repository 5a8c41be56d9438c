"""Processes that outlive their parent: they come to this process, and are seen off.

bubblewrap ends before the init process inside, which takes a while to take its namespaces down.
Whoever adopts that one must wait for it, and in a container the first process may not: then every
program would leave an entry in the process table.
"""

import ctypes
import functools
import os
import threading

SET_CHILD_SUBREAPER = 36

_adopted: set[int] = set()
_lock = threading.Lock()


@functools.cache
def adopt() -> None:
    """From now on the orphans among this process's descendants are its children."""
    ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def see_off(pid: int) -> None:
    """Note an orphan, which dies by itself, and take leave of those that have died."""
    with _lock:
        _adopted.add(pid)
        _adopted.difference_update([each for each in _adopted if _gone(each, os.WNOHANG)])


def wait() -> None:
    """Until all that were noted have gone."""
    with _lock:
        for pid in _adopted:
            _gone(pid, 0)
        _adopted.clear()


def _gone(pid: int, how: int) -> bool:
    try:
        return os.waitpid(pid, how)[0] == pid
    except ChildProcessError:  # somebody else's after all
        return True
