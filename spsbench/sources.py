"""Plug-ins in files: the source is read once, hashed, and run as a module.

No bytecode is kept, so that a file that changes twice in a second is never mistaken for its older
self. What the file imports is not in its hash.
"""

import errno
import hashlib
import os
import sys
from dataclasses import replace
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import Any

from spsbench.errors import DataError, MismatchError, MissingError, UsageError, first_line
from spsbench.spec import Spec

DIGITS = 12  # of the hash of a file
FEW = 100  # characters of a path in a message
_FILES: dict[str, str] = {}  # name of a module -> its file, as it was named


def fixed(spec: Spec) -> Spec:
    """Return `spec`, with the hash of its file if it names one.

    Raises:
        MissingError, DataError: no such file, or one that cannot be read.
    """
    if spec.path is None or spec.source:
        return spec
    return replace(spec, source=hashed(read(spec.path)))


def class_in(spec: Spec) -> Any:
    """Return the class that `FILE.py:CLASS` names.

    Raises:
        MissingError, DataError: no such file, or one that cannot be imported.
        MismatchError: it is not the source any more that `spec` was fixed to.
        UsageError: nothing of that name is in it.
    """
    file, _, name = spec.name.partition(":")
    source = read(file)
    now = hashed(source)
    if spec.source and spec.source != now:
        raise MismatchError(
            f"{file} has changed: expected the source {spec.source}, found {now}. Restore it, or "
            "make a new run"
        )
    module = imported(file, source)
    if name not in vars(module):
        raise UsageError(f"no {name} ({file}): expected a class of that name. Check the name")
    return vars(module)[name]


def file_of(module: str) -> str | None:
    """Return the file of a module that was read here, by the name that the user gave."""
    return _FILES.get(module)


def imported(file: str, source: bytes) -> ModuleType:
    """Import the module in a file, once per source."""
    path = Path(file).expanduser().absolute()
    name = f"{path.stem}_{hashed(str(path).encode() + source)}"
    if name in _FILES:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:  # other people's code
        del sys.modules[name]
        raise DataError(
            f"{file[:FEW]} cannot be imported ({type(error).__name__}: {first_line(error)}"
            f"{line_in(str(path), error)}): expected a plug-in. Mend the file"
        ) from error
    _FILES[name] = file
    return module


def line_in(path: str, error: BaseException) -> str:
    """Return the line of the file in which an error came up, if the error does not show it."""
    if isinstance(error, SyntaxError):
        return ""
    lines = [at for frame, at in walk_tb(error.__traceback__) if frame.f_code.co_filename == path]
    return f", line {lines[-1]}" if lines else ""


def place_in(module: str, error: BaseException) -> str:
    """Return ` (rule.py, line 12)`, the last line of a plug-in's module that an error came through.

    Empty where the error shows none.
    """
    path = str(getattr(sys.modules.get(module), "__file__", None) or "")
    line = line_in(path, error)
    return f" ({Path(path).name}{line})" if line else ""


def module_of(spec: Spec) -> str | None:
    """Return the module of a plug-in that is named by its file, if the file was imported."""
    return next((name for name, file in reversed(_FILES.items()) if file == spec.path), None)


def read(file: str) -> bytes:
    """Read the source of a plug-in.

    Raises:
        MissingError, DataError: no such file, or one that cannot be read.
    """
    path = Path(os.path.expanduser(file))
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise OSError(errno.EINVAL, "neither a file nor a folder")  # it may have no end
        return path.read_bytes()
    except FileNotFoundError as error:
        raise MissingError(
            f"no file {file[:FEW]}: expected a Python file. Write FILE.py:CLASS"
        ) from error
    except (OSError, ValueError) as error:
        raise DataError(
            f"{file[:FEW]} cannot be read ({getattr(error, 'strerror', error)}): expected a Python "
            "file. Check the path"
        ) from error


def hashed(source: bytes) -> str:
    """Return the shortened hash of a source."""
    return hashlib.sha256(source).hexdigest()[:DIGITS]
