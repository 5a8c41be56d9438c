"""Plug-ins: find the class that a spec names, check it, and make it with its arguments.

A plug-in is a class, of this package, of another one or in a file. Its arguments are the parameters
of its `open` after the first, or, where it has no `open` of its own, those of its constructor. One
that is not ours is a subclass of the base class of its kind; its errors name it. A file is read
once, hashed, and run as a module, without bytecode: one that changes twice in a second is never
mistaken for its older self. What it imports is not in its hash.
"""

import errno
import hashlib
import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from traceback import walk_tb
from types import ModuleType, NoneType
from typing import Any, get_args

from spsbench.errors import (
    DataError,
    MismatchError,
    MissingError,
    PlugInError,
    SpsError,
    UsageError,
    did_you_mean,
    first_line,
    is_out_of_memory,
)
from spsbench.registry import BASES, BUILT_IN, Kind, attribute_at, entries, find
from spsbench.spec import K_MAX, Scalar, Spec

BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
SHARE, INSIDE = (0, 1), (1e-9, 1 - 1e-9)  # ranges of a number from 0 to 1, or between them
COST = (0, 1e9)
MOST = (1, K_MAX)  # range of a schedule's largest K
DIGITS = 12  # in the hash of a file
FEW = 100  # characters of a path in a message
_FILES: dict[str, str] = {}  # name of a module -> its file, as it was named


def make(kind: Kind, spec: Spec, *site: Any) -> Any:
    """Make the plug-in that `spec` names, by its `open` with `site` and its arguments.

    Without a site the constructor makes it. Raises UsageError for an unknown one, unknown or
    wrong arguments, or a ValueError of the plug-in; PlugInError for one of others that fails or
    lacks what its kind has; else SpsError as `plug_in`.
    """
    maker = plug_in(kind, spec)
    options = arguments(kind, spec, maker)
    with in_name_of(kind, spec):
        part = (maker.open if site else maker)(*site, **options)
    if kind in BASES and not is_ours(kind, spec):
        base = attribute_at(BASES[kind])
        if base not in type(part).__mro__:
            raise _no_subclass(kind, spec, f"opened as {part!r:.60}")
        if lack := [n for n in inspect.get_annotations(base) if not hasattr(part, n)]:
            raise _no_subclass(kind, spec, f"has no {', '.join(lack)}")
    return part


@contextmanager
def in_name_of(kind: Kind, spec: Spec) -> Iterator[None]:
    """Turn what a plug-in raises in this block into an error that names the plug-in.

    A ValueError, which is about its arguments, becomes a UsageError, and any other a PlugInError
    that also names the line of the plug-in's code. An SpsError passes as it is, and so do other
    errors of our own plug-ins and of memory that ran out.
    """
    try:
        yield
    except SpsError:
        raise
    except ValueError as error:
        raise UsageError(f"{spec}: {error}") from error
    except Exception as error:  # other people's code
        if is_ours(kind, spec) or is_out_of_memory(error):
            raise
        if spec.path:
            module = next((name for name in reversed(_FILES) if _FILES[name] == spec.path), "")
        else:
            module = find(kind, spec.name).where.partition(":")[0]
        why = f"{type(error).__name__}: {first_line(error)}{place_in(module, error)}"
        raise PlugInError(f"{full_name(kind, spec)} failed: {why}") from error


def full_name(kind: Kind, spec: Spec) -> str:
    """Return `drafter repeat:times=2 (mypackage.repeat:Repeat)`; for a file without brackets."""
    word = kind.removesuffix("s")
    return f"{word} {spec}" if spec.path else f"{word} {spec} ({find(kind, spec.name).where})"


def is_ours(kind: Kind, spec: Spec) -> bool:
    """Return whether a plug-in of this kind and name comes with this package."""
    return any(entry.kind == kind and entry.name == spec.name for entry in BUILT_IN)


def plug_in(kind: Kind, spec: Spec) -> Any:
    """Import and return the class that `spec` names, or the function of a reporter.

    Raises UsageError for no plug-in of that name or no such class in its file, PlugInError for one
    that is not ours and cannot be imported or is of another kind, and SpsError for a file that is
    missing, cannot be imported, or has changed.
    """
    if spec.path is not None:
        part = class_in(spec)
        _check_class(kind, spec, part)
        return part
    try:
        entry = find(kind, spec.name)
    except KeyError as error:
        meant = did_you_mean(spec.name, (entry.name for entry in entries(kind)))
        raise UsageError(f"{error.args[0]}.{meant} See them with `sps list`") from error
    if entry in BUILT_IN:
        return entry.load()
    try:
        part = entry.load()
    except Exception as error:  # other people's code
        raise PlugInError(
            f"{full_name(kind, spec)} cannot be imported ({type(error).__name__}: "
            f"{first_line(error)}): expected a plug-in {entry.summary}. Mend or remove that package"
        ) from error
    _check_class(kind, spec, part)
    return part


def _check_class(kind: Kind, spec: Spec, part: Any) -> None:
    """Raise PlugInError unless `part` is callable (a reporter) or a concrete subclass."""
    if kind not in BASES:  # a reporter: a function, or a class of such
        if not callable(part):
            raise PlugInError(
                f"{full_name(kind, spec)} cannot be called: expected a function of a Report"
            )
        return
    if not isinstance(part, type) or attribute_at(BASES[kind]) not in part.__mro__:
        raise _no_subclass(kind, spec, f"is no {kind.removesuffix('s')}")
    if lack := sorted(getattr(part, "__abstractmethods__", ())):
        raise _no_subclass(kind, spec, f"has no {', '.join(lack)}")


def _no_subclass(kind: Kind, spec: Spec, wrong: str) -> PlugInError:
    module, _, name = BASES[kind].partition(":")
    return PlugInError(
        f"{full_name(kind, spec)} {wrong}: expected a {kind.removesuffix('s')}. Subclass {name} of "
        f"{__package__}{module}"
    )


def arguments(kind: Kind, spec: Spec, maker: Any) -> dict[str, Scalar]:
    """Return the arguments of `spec` by name, without defaults; an int for a float becomes one.

    Raises UsageError for an argument that `maker` does not have, of another type, or out of its
    range in the maker's `ranges`, and for one without a default that is missing.
    """
    declared = parameters(maker)
    typed: dict[str, Scalar] = {}
    for name, value in spec.args:
        if name not in declared:
            names = ", ".join(declared) or "no arguments"
            raise UsageError(f"{spec}: {spec.name} has no {name!r}: expected {names}")
        annotation = declared[name].annotation
        kinds = [kind for kind in get_args(annotation) or (annotation,) if isinstance(kind, type)]
        if float in kinds and int not in kinds and type(value) is int:
            try:
                value = float(value)
            except OverflowError as error:
                raise UsageError(f"{spec}: {name} has too many digits: expected a float") from error
        if kinds and type(value) not in kinds:
            words = " or ".join(kind.__name__ for kind in kinds if kind is not NoneType)
            raise UsageError(f"{spec}: {name} is {value!r}: expected {words}")
        typed[name] = value
    ranges: Mapping[str, tuple[float, float]] = getattr(maker, "ranges", {})
    for name, (least, most) in ranges.items():  # so that a size is refused before a model is loaded
        number = typed.get(name)
        if isinstance(number, int | float) and not least <= number <= most:
            raise UsageError(f"{spec}: {name} is {number}: expected {least} to {most}")
    for name, parameter in declared.items():
        if parameter.default is parameter.empty and parameter.kind in BY_NAME and name not in typed:
            raise UsageError(
                f"{full_name(kind, spec)}: expected a value for {name}. Write "
                f"{spec.name}:{name}=..., or, in the plug-in, give it a default or take it from "
                "the site in open()"
            )
    return typed


def parameters(maker: Any) -> Mapping[str, inspect.Parameter]:
    """Return, by name, the parameters that a spec may set: those of `open` but the first.

    Where there is no `open`, or it takes any keyword, they are the constructor's but `lm`.
    """
    if hasattr(maker, "open"):
        of_open = dict(_signature(maker.open))
        if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in of_open.values()):
            return dict(list(of_open.items())[1:])
    return {name: value for name, value in _signature(maker).items() if name != "lm"}


@cache
def _signature(maker: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(maker, eval_str=True).parameters
    except (NameError, TypeError, SyntaxError):  # annotations in text that names nothing here
        return inspect.signature(maker).parameters


def fix_spec(spec: Spec) -> Spec:
    """Return `spec`; if it names a file and has no source yet, with the file's hash as its source.

    Raises MissingError without such a file, and DataError where it cannot be read.
    """
    if spec.path is None or spec.source:
        return spec
    return replace(spec, source=hash_source(read_source(spec.path)))


def class_in(spec: Spec) -> Any:
    """Return the class that `FILE.py:CLASS` names, from the file, which runs unless it ran before.

    Raises MissingError or DataError where the file cannot be read or imported, MismatchError where
    it has another hash than `spec.source`, and UsageError where it has no such class.
    """
    file, _, name = spec.name.partition(":")
    source = read_source(file)
    now = hash_source(source)
    if spec.source and spec.source != now:
        raise MismatchError(
            f"{file} has changed: expected the source {spec.source}, found {now}. Restore it, or "
            "make a new run"
        )
    module = import_file(file, source)
    if name not in vars(module):
        raise UsageError(f"no {name} ({file}): expected a class of that name. Check the name")
    return vars(module)[name]


def file_of(module: str) -> str | None:
    """Return the file of a module of `import_file`, by the user's name for it; None for others."""
    return _FILES.get(module)


def import_file(file: str, source: bytes) -> ModuleType:
    """Run `source`, the content of `file`, as a module, and return it; DataError: it fails.

    A path with one content runs once: the module stays in `sys.modules`, its hash in its name.
    """
    path = Path(file).expanduser().absolute()
    name = f"{path.stem}_{hash_source(str(path).encode() + source)}"
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
    """Return `, line 12`, the last of file `path` in a traceback; empty: none, or a SyntaxError."""
    if isinstance(error, SyntaxError):
        return ""
    lines = [at for frame, at in walk_tb(error.__traceback__) if frame.f_code.co_filename == path]
    return f", line {lines[-1]}" if lines else ""


def place_in(module: str, error: BaseException) -> str:
    """Return ` (rule.py, line 12)`, where `error` was last in a plug-in's module; "": nowhere."""
    path = str(getattr(sys.modules.get(module), "__file__", None) or "")
    line = line_in(path, error)
    return f" ({Path(path).name}{line})" if line else ""


def read_source(file: str) -> bytes:
    """Return the content of a plug-in's file; `~` is expanded.

    Raises MissingError without the file, and DataError for one that cannot be read, or is none.
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


def hash_source(source: bytes) -> str:
    """Return the first 12 hexadecimal digits of the SHA-256 of a source."""
    return hashlib.sha256(source).hexdigest()[:DIGITS]
