"""From a spec to a plug-in: names are looked up, arguments checked against the constructor's."""

import inspect
from collections.abc import Mapping
from typing import Any

from spsbench.errors import UsageError
from spsbench.registry import Kind, find
from spsbench.results import Scalar, Spec

# Constructor parameters that are given, not named in a spec.
INJECTED = frozenset(
    {
        *("lm", "target", "drafter", "verifier", "schedule"),
        *("target_model", "draft_model", "k", "vocab_size"),
        *("lookup", "tokenizer", "assistant_tokenizer"),
    }
)


def part(kind: Kind, spec: Spec, given: Mapping[str, Any]) -> Any:
    """The plug-in that `spec` names, made with its arguments and those of `given` that it takes."""
    maker = plug_in(kind, spec)
    takes = inspect.signature(maker).parameters
    injected = {name: value for name, value in given.items() if name in takes}
    try:
        return maker(**injected, **arguments(spec, maker))
    except ValueError as error:
        raise UsageError(f"{spec}: {error}") from error


def plug_in(kind: Kind, spec: Spec) -> Any:
    """The class that `spec` names."""
    try:
        return find(kind, spec.name).load()
    except KeyError as error:
        raise UsageError(f"{error.args[0]}. See them with `sps list`") from error


def arguments(spec: Spec, maker: Any) -> dict[str, Scalar]:
    """The arguments of `spec`, checked against the constructor's names and types."""
    parameters = inspect.signature(maker).parameters
    known = {name: p for name, p in parameters.items() if name not in INJECTED}
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
