"""The text that every Python carries: the sources of its standard library, pinned by hash."""

from __future__ import annotations

import hashlib
import json
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from spsbench.tasks.corpora.splits import Split

MANIFEST = Path(__file__).with_name("stdlib.manifest.json")

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


class CorpusMismatchError(RuntimeError):
    """This Python's library is not the one of the manifest."""


@dataclass(frozen=True, slots=True)
class Module:
    """One source file: its path under the library's folder, its text and its split."""

    path: str
    text: str
    split: Split

    @property
    def sha256(self) -> str:
        """Hash of the text in UTF-8."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def library() -> Path:
    """Folder of the running Python's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def modules(root: Path | None = None) -> Iterator[Module]:
    """Every source file under `root` (default: this Python's library), in order of its path."""
    root = library() if root is None else root
    for file in sorted(root.rglob("*.py"), key=lambda file: file.relative_to(root).as_posix()):
        path = file.relative_to(root)
        name = path.as_posix()
        skipped = any(fnmatch(name, pattern) for pattern in SKIPPED_FILES)
        if skipped or SKIPPED_FOLDERS.intersection(path.parts):
            continue
        text = file.read_text(encoding="utf-8", errors="strict")
        if text.strip():
            yield Module(name, text, "heldout" if name in HELDOUT else "train")


def manifest(root: Path | None = None) -> dict[str, dict[str, str]]:
    """What the committed manifest holds: path -> hash and split."""
    return {m.path: {"sha256": m.sha256, "split": m.split} for m in modules(root)}


def load(*, pinned: bool = True, root: Path | None = None) -> list[Module]:
    """All modules; with `pinned`, only if they are byte for byte those of the manifest.

    Raises:
        CorpusMismatchError: the library differs from the manifest.
    """
    found = list(modules(root))
    if not pinned:
        return found
    stored = json.loads(MANIFEST.read_text(encoding="utf-8"))
    wanted = {path: entry["sha256"] for path, entry in stored["files"].items()}
    here = {module.path: module.sha256 for module in found}
    differing = sorted(
        path for path in wanted.keys() | here.keys() if wanted.get(path) != here.get(path)
    )
    if differing:
        raise CorpusMismatchError(
            f"the standard library is not that of Python {stored['python']}: {len(differing)} of "
            f"{len(wanted)} files differ, the first is {differing[0]}; "
            "--unpinned trains on what is there"
        )
    return found
