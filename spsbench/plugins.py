"""From a spec to a plug-in: looked up or read from its file, its arguments checked, and opened.

A plug-in is a class. Its arguments are the parameters of its `open` after the first, or, where it
has no `open` of its own, those of its constructor.
"""

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from spsbench.errors import DataError, MismatchError, MissingError, UsageError, first_line
from spsbench.registry import Kind, find
from spsbench.spec import Scalar, Spec

DIGITS = 12  # of the hash of a file
FEW = 100  # characters of a path in a message


def part(kind: Kind, spec: Spec, *site: Any) -> Any:
    """The plug-in that `spec` names, made with its arguments; opened at `site` if there is one.

    Raises:
        UsageError: unknown, unknown arguments, or arguments that it refuses.
    """
    maker = plug_in(kind, spec)
    make = maker.open if site else maker
    given = arguments(spec, maker)
    check_all_there(kind, spec, maker)
    try:
        return make(*site, **given)
    except ValueError as error:
        raise UsageError(f"{spec}: {error}") from error
    except TypeError as error:
        if not _raised_by_call(error):
            raise
        what = f"{kind.removesuffix('s')} {spec} ({path_of(kind, spec)}) cannot be made"
        todo = f"Give its arguments as {spec.name}:name=value"
        raise UsageError(f"{what}: {first_line(error)}. {todo}") from error


def path_of(kind: Kind, spec: Spec) -> str:
    """Where a plug-in is."""
    return spec.path or find(kind, spec.name).where


def _raised_by_call(error: TypeError) -> bool:
    """Whether the call itself did not fit, not something inside it."""
    trace = error.__traceback__
    return trace is not None and trace.tb_next is None


def check_all_there(kind: Kind, spec: Spec, maker: Any) -> None:
    """Every parameter without a default must have its value.

    Raises:
        UsageError: one has none.
    """
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    there = dict(spec.args)
    for name, each in parameters(maker).items():
        if each.kind in named and each.default is each.empty and name not in there:
            raise UsageError(
                f"{kind.removesuffix('s')} {spec} ({path_of(kind, spec)}): expected a value for "
                f"{name}. Write {spec.name}:{name}=..., or, in the plug-in, give it a default or "
                "take it from the site in `open`"
            )


def plug_in(kind: Kind, spec: Spec) -> Any:
    """The class that `spec` names.

    Raises:
        UsageError: no plug-in of that name.
        SpsError: a file that is missing, cannot be imported, or has changed.
    """
    if spec.path is not None:
        return _from_file(spec)
    try:
        return find(kind, spec.name).load()
    except KeyError as error:
        raise UsageError(f"{error.args[0]}. See them with `sps list`") from error


def fixed(spec: Spec) -> Spec:
    """`spec`; one that is named by its path with the hash of its file.

    Raises:
        MissingError, DataError: no such file, or one that cannot be read.
    """
    return spec if spec.path is None or spec.source else replace(spec, source=_hash(spec.path))


def arguments(spec: Spec, maker: Any) -> dict[str, Scalar]:
    """The arguments of `spec`, checked against the names and types of the plug-in's parameters."""
    known = parameters(maker)
    typed: dict[str, Scalar] = {}
    for name, value in spec.args:
        if name not in known:
            names = ", ".join(known) or "no arguments"
            raise UsageError(f"{spec}: {spec.name} has no {name!r}: expected {names}")
        wanted = known[name].annotation
        if wanted is float and type(value) is int:
            value = float(value)
        if isinstance(wanted, type) and type(value) is not wanted:
            raise UsageError(f"{spec}: {name} is {value!r}: expected {wanted.__name__}")
        typed[name] = value
    return typed


def parameters(maker: Any) -> Mapping[str, inspect.Parameter]:
    """What a spec may name."""
    if hasattr(maker, "open"):
        own = dict(inspect.signature(maker.open).parameters)
        if all(each.kind is not each.VAR_KEYWORD for each in own.values()):
            return dict(list(own.items())[1:])
    return inspect.signature(maker).parameters


def _from_file(spec: Spec) -> Any:
    file, _, name = spec.name.partition(":")
    now = _hash(file)
    if spec.source and spec.source != now:
        raise MismatchError(
            f"{file} has changed: expected the source {spec.source}, found {now}. Restore it"
        )
    module = _imported(Path(file), now)
    try:
        return getattr(module, name)
    except AttributeError as error:
        raise UsageError(f"no {name} in {file}: expected a class of that name") from error


def _imported(path: Path, digest: str) -> ModuleType:
    """The module in a file, once for each source; its own neighbours can be imported by it."""
    name = f"spsbench_file_{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise DataError(f"{path} cannot be imported: expected a Python file")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        found.loader.exec_module(module)
    except Exception as error:  # other people's code
        del sys.modules[name]
        raise DataError(
            f"{path} cannot be imported: {type(error).__name__}: {first_line(error)}"
        ) from error
    return module


def _hash(file: str) -> str:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:DIGITS]
    except FileNotFoundError as error:
        raise MissingError(
            f"no file {file[:FEW]}: expected a Python file, FILE.py:CLASS"
        ) from error
    except OSError as error:
        raise DataError(f"{file[:FEW]} cannot be read ({error.strerror})") from error
