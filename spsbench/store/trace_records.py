"""What drafts would have been worth along a text: numbers by position, a few bytes each.

A file of them is self-contained: it says what the texts are of (`Head`) and what drafted
(`DraftOf`), and every number is as it was computed, in single precision. A token takes 11 bytes,
and a draft of it 24 more (a draft by rule: 3).
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spsbench.metrics.intervals import Floats
from spsbench.settings.records import Key

VERSION = 1
NARROW = "<f4"


class Head(NamedTuple):
    """What the texts are: everything that changes an acceptance. Flat, so that it is compared."""

    identity: Mapping[str, Any]
    version: int = VERSION

    def differing(self, other: "Head") -> list[str]:
        """`field: <mine>, there <theirs>`, for each field that differs."""
        names = sorted(self.identity.keys() | other.identity.keys())
        pairs = ((n, self.identity.get(n), other.identity.get(n)) for n in names)
        return [f"{n}: {mine!r}, there {theirs!r}" for n, mine, theirs in pairs if mine != theirs]


@dataclass(frozen=True, kw_only=True)
class DraftOf:
    """One that drafts: what it is, and how far its trace can be trusted."""

    name: str
    identity: Mapping[str, Any] = field(default_factory=dict)
    sampled: bool  # from a law of the text alone; else by rule
    exact: bool = True  # False: what it drafts also depends on rounds that the trace does not know
    most: int = 0  # tokens that a draft by rule was asked for; a replay of more is none


@dataclass(frozen=True, kw_only=True, eq=False)
class Written:
    """One text of the target, L tokens."""

    key: Key
    prompt_tokens: int
    budget: int  # tokens that it could have had
    finish: str
    q: Floats  # [L] of each token that came out
    entropy: Floats  # [L] of the target's law, in nats


@dataclass(frozen=True, kw_only=True, eq=False)
class Drawn:
    """A sampled draft along a text; entropy and peak are of the law before it is made greedy."""

    p: Floats  # [L] of each token that came out
    overlap: Floats  # [L] sum_x min(p, q)
    entropy: Floats  # [L] in nats
    peak: Floats  # [L] the greatest probability
    agrees: NDArray[np.bool_]  # [L] is its likeliest token the target's?
    reach: int | None = None  # positions after which its own context is full
    stops: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict)  # schedule -> [L] slots


@dataclass(frozen=True, kw_only=True, eq=False)
class Proposed:
    """A draft by rule along a text."""

    proposed: NDArray[np.uint8]  # [L] tokens
    hits: NDArray[np.uint8]  # [L] that the text goes on with


Along = Drawn | Proposed


def head_values(head: Head) -> dict[str, Any]:
    """Plain values."""
    return {"head": dict(head.identity), "version": head.version}


def draft_values(draft: DraftOf) -> dict[str, Any]:
    """Plain values."""
    return {
        "draft": draft.name,
        "identity": dict(draft.identity),
        "sampled": draft.sampled,
        "exact": draft.exact,
        "most": draft.most,
    }


def text_values(text: Written) -> dict[str, Any]:
    """Plain values."""
    return {
        "text": list(text.key),
        "prompt_tokens": text.prompt_tokens,
        "budget": text.budget,
        "finish": text.finish,
        "q": packed(text.q),
        "entropy": packed(text.entropy),
    }


def along_values(key: Key, name: str, along: Along) -> dict[str, Any]:
    """Plain values."""
    at = {"along": list(key), "by": name}
    if isinstance(along, Proposed):
        return at | {"proposed": bits(along.proposed), "hits": bits(along.hits)}
    columns = {n: packed(getattr(along, n)) for n in ("p", "overlap", "entropy", "peak")}
    return at | {
        **columns,
        "agrees": bits(along.agrees),
        "reach": along.reach,
        "stops": {name: bits(slots) for name, slots in along.stops.items()},
    }


def read_head(values: Mapping[str, Any]) -> Head:
    """The inverse of `head_values`."""
    return Head(dict(values["head"]), int(values["version"]))


def read_draft(values: Mapping[str, Any]) -> DraftOf:
    """The inverse of `draft_values`."""
    return DraftOf(
        name=values["draft"],
        identity=values["identity"],
        sampled=values["sampled"],
        exact=values["exact"],
        most=values["most"],
    )


def read_text(values: Mapping[str, Any]) -> Written:
    """The inverse of `text_values`."""
    cell, sample, repeat = values["text"]
    return Written(
        key=(cell, sample, repeat),
        prompt_tokens=values["prompt_tokens"],
        budget=values["budget"],
        finish=values["finish"],
        q=unpacked(values["q"]),
        entropy=unpacked(values["entropy"]),
    )


def read_along(values: Mapping[str, Any]) -> Along:
    """The inverse of `along_values`."""
    if "hits" in values:
        return Proposed(proposed=small(values["proposed"]), hits=small(values["hits"]))
    columns = {n: unpacked(values[n]) for n in ("p", "overlap", "entropy", "peak")}
    return Drawn(
        **columns,
        agrees=small(values["agrees"]).astype(np.bool_),
        reach=values["reach"],
        stops={name: small(slots) for name, slots in values["stops"].items()},
    )


def packed(values: Floats) -> str:
    """[L] numbers as base64 of single precision."""
    return base64.b64encode(values.astype(NARROW).tobytes()).decode("ascii")


def unpacked(text: str) -> Floats:
    """The inverse of `packed`."""
    return np.frombuffer(base64.b64decode(text, validate=True), NARROW).astype(np.float64)


def bits(values: NDArray[Any]) -> str:
    """[L] small whole numbers as base64 of bytes."""
    return base64.b64encode(values.astype(np.uint8).tobytes()).decode("ascii")


def small(text: str) -> NDArray[np.uint8]:
    """The inverse of `bits`."""
    return np.frombuffer(base64.b64decode(text, validate=True), np.uint8)


def columns(along: Along) -> NDArray[Any]:
    """One of the columns, all of which are as long.

    Raises:
        ValueError: they are not.
    """
    every = (
        (along.proposed, along.hits)
        if isinstance(along, Proposed)
        else (
            along.p,
            along.overlap,
            along.entropy,
            along.peak,
            along.agrees,
            *along.stops.values(),
        )
    )
    if len({len(each) for each in every}) != 1:
        raise ValueError("columns of unlike length")
    return every[0]
