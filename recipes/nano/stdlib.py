"""The sources of Python's standard library, pinned by hash, and which texts are held out."""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal

Split = Literal["train", "heldout"]

HELDOUT_SHARE = 0.1  # of the possible keys of generated texts

# The library that the bundled pair was trained on: `digest(modules())` of that Python.
PYTHON = "3.11.7"
DIGEST = "cf1a453e7549c1801a81678bd735082b6d4a191a55e519d24b7b0565f0a4b82c"

# Whole modules of several kinds: text, mathematics, data structures, file formats, network.
HELDOUT = frozenset(
    {
        *("calendar.py", "cmd.py", "codeop.py", "colorsys.py", "configparser.py", "csv.py"),
        *("fractions.py", "getopt.py", "graphlib.py", "heapq.py", "netrc.py"),
        *("pprint.py", "queue.py", "reprlib.py", "sched.py", "shlex.py"),
        *("smtplib.py", "statistics.py", "tarfile.py", "textwrap.py", "timeit.py", "wave.py"),
        *("json/__init__.py", "json/decoder.py", "json/encoder.py", "json/scanner.py"),
        *("json/tool.py", "wsgiref/simple_server.py"),
        *("asyncio/queues.py", "asyncio/locks.py", "email/charset.py", "logging/handlers.py"),
    }
)

SKIPPED_FOLDERS = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "encodings"}
)
# Files made by the build or by the distributor, and pure tables.
SKIPPED_FILES = (
    *("_sysconfigdata*", "sitecustomize.py", "usercustomize.py", "config-*/*"),
    *("html/entities.py", "msilib/schema.py", "msilib/sequence.py", "msilib/text.py"),
)


@dataclass(frozen=True, slots=True)
class Module:
    """One source file: its path under the library's folder, its text and its split."""

    path: str
    text: str
    split: Split

    @property
    def sha256(self) -> str:
        """Return the hash of the text in UTF-8."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def modules() -> Iterator[Module]:
    """Yield every source file of this Python's library, in order of its path."""
    root = Path(sysconfig.get_path("stdlib"))
    for file in sorted(root.rglob("*.py"), key=lambda file: file.relative_to(root).as_posix()):
        path = file.relative_to(root)
        name = path.as_posix()
        skipped = any(fnmatch(name, pattern) for pattern in SKIPPED_FILES)
        if skipped or SKIPPED_FOLDERS.intersection(path.parts):
            continue
        text = file.read_text(encoding="utf-8", errors="strict")
        if text.strip():
            yield Module(name, text, "heldout" if name in HELDOUT else "train")


def digest(modules: Iterable[Module]) -> str:
    """Return one hash of the path, the split and the text of every module."""
    lines = (f"{module.path} {module.split} {module.sha256}\n" for module in modules)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def load(*, pinned: bool = True) -> list[Module]:
    """Return all modules; with `pinned`, only if they are those the bundled pair was trained on.

    Raises:
        RuntimeError: the library has another digest.
    """
    library = list(modules())
    if pinned and digest(library) != DIGEST:
        raise RuntimeError(
            f"the standard library ({len(library)} modules) is not that of Python {PYTHON} as "
            "python.org builds it; --unpinned trains on what is there"
        )
    return library


def split_of(key: str) -> Split:
    """Return the split of a generated text by the hash of what it says, not of its wording."""
    share = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") / 2**32
    return "heldout" if share < HELDOUT_SHARE else "train"
