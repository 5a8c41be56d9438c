"""Files that cannot be read, and what a command says of them."""

import os

import pytest

from spsbench.errors import Exit

QUICK = ("pipe", "nested")
SLOW = ("endless", "cut off", "folder", "loop")
KINDS = (*QUICK, *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW))
CODES = {Exit.USAGE, Exit.DATA, Exit.MISSING, Exit.CANNOT_CREATE, Exit.CANNOT_WRITE}


def put(path, kind):
    """A bad input of a kind at `path`."""
    content = "[" * 20_000 if kind == "nested" else '{"id": "a", "prompt": [1'
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_text(content)


def refused(ran):
    assert ran.code in CODES, ran
    last = ran.err.splitlines()[-1]
    assert last.startswith("error: ")
    assert "internal" not in last
    assert "Traceback" not in ran.err
