"""Records of a trace: acceptance data of drafts along a text, a few bytes a position.

A file of traces is self-contained: it records the sources of the texts (`Head`) and the drafts
(`DraftOf`), and every number as computed, in single precision. A token takes 11 bytes, and a draft
of it 23 more (a deterministic draft: 3).
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
    """The source of the texts: everything that changes an acceptance. Flat, for comparison."""

    identity: Mapping[str, Any]
    version: int = VERSION
    chat: bool = False  # prompts are in the target's template
    system: str = ""

    def differing(self, other: "Head") -> list[str]:
        """Return `field: <mine>, there <theirs>` for each field that differs."""
        mine, theirs = (
            {**head.identity, "work.chat": head.chat, "work.system": head.system}
            for head in (self, other)
        )
        names = sorted(mine.keys() | theirs.keys())
        pairs = ((n, mine.get(n), theirs.get(n)) for n in names)
        return [f"{n}: {value!r}, there {there!r}" for n, value, there in pairs if value != there]


@dataclass(frozen=True, kw_only=True)
class DraftOf:
    """The identity of a draft, and how exact its trace is."""

    name: str
    identity: Mapping[str, Any] = field(default_factory=dict)
    sampled: bool  # sampled from a distribution of the text alone; else deterministic
    exact: bool = True  # False: the draft also depends on rounds outside the trace
    most: int = 0  # tokens requested from a deterministic draft; replays are limited to it


@dataclass(frozen=True, kw_only=True, eq=False)
class Written:
    """One text of the target, L tokens."""

    key: Key
    prompt_tokens: int
    budget: int  # most tokens allowed
    finish: str
    q: Floats  # [L] probability of each generated token
    entropy: Floats  # [L] of the target's distribution, in nats


@dataclass(frozen=True, kw_only=True, eq=False)
class Drawn:
    """A sampled draft along a text; entropy and peak are of the distribution before greedy warp."""

    p: Floats  # [L] probability of each generated token
    overlap: Floats  # [L] sum_x min(p, q)
    entropy: Floats  # [L] in nats
    peak: Floats  # [L] the greatest probability
    agrees: NDArray[np.bool_]  # [L] whether its likeliest token is the target's
    reach: int | None = None  # positions after which the draft's own context is full
    stops: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict)  # schedule -> [L] slots


@dataclass(frozen=True, kw_only=True, eq=False)
class Proposed:
    """A deterministic draft along a text."""

    proposed: NDArray[np.uint8]  # [L] number of tokens
    hits: NDArray[np.uint8]  # [L] length of the prefix that equals the text


Along = Drawn | Proposed
DRAWN_FLOATS = ("p", "overlap", "entropy", "peak")


def head_values(head: Head) -> dict[str, Any]:
    """Return plain values."""
    return {
        "head": dict(head.identity),
        "version": head.version,
        "chat": head.chat,
        "system": head.system,
    }


def draft_values(draft: DraftOf) -> dict[str, Any]:
    """Return plain values."""
    return {
        "draft": draft.name,
        "identity": dict(draft.identity),
        "sampled": draft.sampled,
        "exact": draft.exact,
        "most": draft.most,
    }


def text_values(text: Written) -> dict[str, Any]:
    """Return plain values."""
    return {
        "text": list(text.key),
        "prompt_tokens": text.prompt_tokens,
        "budget": text.budget,
        "finish": text.finish,
        "q": packed(text.q),
        "entropy": packed(text.entropy),
    }


def along_values(key: Key, name: str, along: Along) -> dict[str, Any]:
    """Return plain values."""
    at = {"along": list(key), "by": name}
    if isinstance(along, Proposed):
        return at | {"proposed": bits(along.proposed), "hits": bits(along.hits)}
    return at | {
        **{name: packed(getattr(along, name)) for name in DRAWN_FLOATS},
        "agrees": bits(along.agrees),
        "reach": along.reach,
        "stops": {name: bits(slots) for name, slots in along.stops.items()},
    }


def read_head(values: Mapping[str, Any]) -> Head:
    """Return a head: the inverse of `head_values`."""
    chat, system = values["chat"], values["system"]
    if not isinstance(chat, bool) or not isinstance(system, str):
        raise ValueError(f"chat is {chat!r}")
    return Head(dict(values["head"]), int(values["version"]), chat, system)


def read_draft(values: Mapping[str, Any]) -> DraftOf:
    """Return a draft: the inverse of `draft_values`."""
    return DraftOf(
        name=values["draft"],
        identity=values["identity"],
        sampled=values["sampled"],
        exact=values["exact"],
        most=values["most"],
    )


def read_text(values: Mapping[str, Any]) -> Written:
    """Return a text: the inverse of `text_values`."""
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
    """Return a draft along a text: the inverse of `along_values`."""
    if "hits" in values:
        return Proposed(proposed=small(values["proposed"]), hits=small(values["hits"]))
    return Drawn(
        **{name: unpacked(values[name]) for name in DRAWN_FLOATS},
        agrees=small(values["agrees"]).astype(np.bool_),
        reach=values["reach"],
        stops={name: small(slots) for name, slots in values["stops"].items()},
    )


def packed(values: Floats) -> str:
    """Return [L] numbers as base64 of single precision."""
    return base64.b64encode(values.astype(NARROW).tobytes()).decode("ascii")


def unpacked(text: str) -> Floats:
    """Return [L] numbers: the inverse of `packed`."""
    return np.frombuffer(base64.b64decode(text, validate=True), NARROW).astype(np.float64)


def bits(values: NDArray[Any]) -> str:
    """Return [L] small whole numbers as base64 of bytes."""
    return base64.b64encode(values.astype(np.uint8).tobytes()).decode("ascii")


def small(text: str) -> NDArray[np.uint8]:
    """Return [L] small whole numbers: the inverse of `bits`."""
    return np.frombuffer(base64.b64decode(text, validate=True), np.uint8)


def columns(along: Along) -> NDArray[Any]:
    """Return one of the columns, after a check that all have the same length.

    Raises:
        ValueError: the lengths differ.
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
    if len({len(column) for column in every}) != 1:
        raise ValueError("columns of unlike length")
    return every[0]
