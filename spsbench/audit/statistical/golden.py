"""Golden acceptance: what a pair of target and head is expected to keep, kept in a file.

Made once by the readable engine in float32. Any other way to run the same pair must come near it
depth by depth; a head that is fed the wrong layer, or whose vocabulary is mapped wrongly, still
gives right text and keeps next to nothing, which only such a comparison shows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from spsbench.audit.statistical.acceptance import Slot
from spsbench.errors import DataError

SCHEMA = 1
NEAR = 0.02  # of acceptance at a depth, over all texts: rounding to half precision is below it
FAINT = 0.05  # acceptance at depth 1 below which a head is hardly one for this target


@dataclass(frozen=True, slots=True)
class Passage:
    """A text of the target, and what was drafted at each of its places."""

    name: str
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    slots: tuple[tuple[Slot, ...], ...]


class Depth(NamedTuple):
    """What is expected at a depth, given that all before it were right."""

    depth: int  # 1 = the first drafted token
    acceptance: float  # mean overlap of the laws
    agreement: float  # share of places where both laws have the same likeliest token
    places: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """Expected acceptance of a pair, and how it was measured."""

    target: str
    head: str
    kind: str  # of the head, as it was told from its files
    drafter: str
    digests: Mapping[str, str]  # of the files of both, where they lie here
    sampling: Mapping[str, Any]
    run: Mapping[str, str]  # dtype and engine
    passages: tuple[Passage, ...]

    @property
    def depths(self) -> list[Depth]:
        """Over all texts."""
        deepest = max((len(s) for p in self.passages for s in p.slots), default=0)
        return [self._at(depth) for depth in range(deepest)]

    def _at(self, depth: int) -> Depth:
        found = [s[depth] for p in self.passages for s in p.slots if len(s) > depth]
        n = len(found)
        overlap, same = sum(s.overlap for s in found), sum(s.same for s in found)
        return Depth(depth + 1, overlap / n, same / n, n)

    @property
    def kept(self) -> float:
        """Tokens that a draft of full depth is expected to have kept."""
        total, chance = 0.0, 1.0
        for each in self.depths:
            chance *= each.acceptance
            total += chance
        return total

    def to_json(self) -> dict[str, Any]:
        """For a file; `depths` and `kept` are there to be read, and computed anew."""
        values = asdict(self)
        for passage in values["passages"]:
            passage["slots"] = [
                [[round(slot.overlap, 9), slot.likeliest, slot.same] for slot in slots]
                for slots in passage["slots"]
            ]
        depths = [each._asdict() for each in self.depths]
        return {"schema": SCHEMA, "kept": self.kept, "depths": depths, **values}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: str) -> "Golden":
        """The inverse of `to_json`.

        Raises:
            DataError: another file.
        """
        try:
            if values["schema"] != SCHEMA:
                raise KeyError("schema")
            passages = tuple(
                Passage(
                    each["name"],
                    tuple(each["prompt"]),
                    tuple(each["tokens"]),
                    tuple(tuple(Slot(*slot) for slot in slots) for slots in each["slots"]),
                )
                for each in values["passages"]
            )
            names = ("target", "head", "kind", "drafter", "digests", "sampling", "run")
            return cls(**{name: values[name] for name in names}, passages=passages)
        except (KeyError, TypeError) as error:
            raise DataError(
                f"no golden acceptance of schema {SCHEMA} ({where}): expected what `sps verify "
                "head` has written. Name another file with --golden"
            ) from error


class Parting(NamedTuple):
    """Where a run of the pair parts from what is expected of it."""

    depth: int
    expected: float
    found: float
    passage: str  # the text in which the gap is widest at that depth
    place: int  # tokens of the text before it
    slots: tuple[Slot, Slot]  # expected, found


def parting(golden: Golden, now: Golden) -> Parting | None:
    """The first depth at which acceptance is another, and the place of the widest gap there."""
    for one, two in zip(golden.depths, now.depths, strict=False):
        if abs(one.acceptance - two.acceptance) > NEAR:
            return widest(golden, now, one, two)
    shorter = len(now.depths) < len(golden.depths)
    return widest(golden, now, golden.depths[0], now.depths[0]) if shorter and now.depths else None


def widest(golden: Golden, now: Golden, one: Depth, two: Depth) -> Parting:
    """The place where the overlaps of a depth are furthest apart."""
    at = one.depth - 1
    pairs = [
        (abs(a[at].overlap - b[at].overlap), passage.name, place, (a[at], b[at]))
        for passage, other in zip(golden.passages, now.passages, strict=True)
        for place, (a, b) in enumerate(zip(passage.slots, other.slots, strict=True))
        if len(a) > at and len(b) > at
    ]
    _, name, place, slots = max(pairs, key=lambda pair: pair[0])
    return Parting(one.depth, one.acceptance, two.acceptance, name, place, slots)


def by_depth(rates: Sequence[float]) -> list[float]:
    """Acceptance at each depth, from shares of drafts that were kept up to it.

    Other engines report the latter: of all drafts those whose token i was kept, so all before it.
    """
    before = [1.0, *rates]
    return [now / then if then > 0 else 0.0 for then, now in zip(before, rates, strict=False)]
