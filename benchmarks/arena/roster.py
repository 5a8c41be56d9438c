"""The engines by name, and those that are measured when nobody says which."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from arena.process import Engine
from spsbench.registry import entries

CONTENDERS = "arena.contenders"
HF = Engine("hf", f"{CONTENDERS}.hf:Hf")
CACHELESS = Engine("cacheless", f"{CONTENDERS}.cacheless:Cacheless")
PEERS = {
    "openvino-plain": f"{CONTENDERS}.openvino:OpenVino:plain",
    "openvino": f"{CONTENDERS}.openvino:OpenVino:speculative",
    "llamacpp": f"{CONTENDERS}.llamacpp:LlamaCpp",
}
QUANTISED = ("int8", "int4")  # after an @, of both models
TAKE_THEM = ("fast", "eager", "openvino-plain", "openvino", "llamacpp")


def roster(
    names: Sequence[str], peers_python: str | None, quantised: Sequence[str] = ()
) -> list[Engine]:
    """The engines called `names`; none named: all that there are. Then the `quantised` ones.

    Another name is one of our engines, `fast` or `eager`, with its arguments if it has any.
    `fast@int8` is an engine over weights of 8 bits, in a format of its own.

    Raises:
        ValueError: no such engine or format, or a peer without an interpreter that has it.
    """
    known = {entry.name for entry in entries("engines")}
    chosen = list(names) or list(defaults(known, peers_python))
    able = [name for name in ("fast", *(PEERS if peers_python else ())) if name in TAKE_THEM]
    chosen += [f"{name}@{weights}" for weights in quantised for name in able]
    return [_with_weights(name, known, peers_python) for name in chosen]


def _with_weights(name: str, known: set[str], peers_python: str | None) -> Engine:
    plain, mark, weights = name.partition("@")
    engine = _engine(plain, known, peers_python)
    if mark and (weights not in QUANTISED or plain.partition(":")[0] not in TAKE_THEM):
        each = ", ".join(f"{one}@{kind}" for one in TAKE_THEM for kind in QUANTISED)
        raise ValueError(f"no engine {name!r}: expected one of {each}")
    return replace(engine, name=name, weights=weights)


def defaults(known: set[str], peers_python: str | None) -> Iterator[str]:
    """Ours first, so that a repeat begins with it and the next one ends with it."""
    yield from (name for name in ("fast", "eager") if name in known)
    yield from (HF.name, CACHELESS.name)
    if peers_python:
        yield from PEERS


def _engine(name: str, known: set[str], peers_python: str | None) -> Engine:
    for engine in (HF, CACHELESS):
        if engine.name == name:
            return engine
    if name in PEERS:
        if peers_python is None:
            raise ValueError(f"{name}: expected --peers-python, an interpreter that has it")
        return Engine(name, PEERS[name], peers_python, converts=True)
    if name.partition(":")[0] not in known:
        rest = ", ".join([*sorted(known), HF.name, CACHELESS.name, *PEERS])
        raise ValueError(f"no engine {name!r}: expected one of {rest}")
    return Engine(name, f"{CONTENDERS}.ours:Ours:{name}", sys.executable)
