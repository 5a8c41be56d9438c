"""Records of results: one record per generation, one row in it per round.

Measurements only; every rate is computed from them in `metrics/rates.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

SCHEMA = 6
NANO = 9  # digits of a second that are kept: the resolution of clocks

Key = tuple[str, str, int]
"""The key that a run holds at most once: cell, sample, repeat."""


class Kind(NamedTuple):
    """The values that a measured number can have; without `whole` any finite number from 0."""

    expected: str
    whole: bool = False
    least: int = 0
    optional: bool = False  # None = not measured, or not applicable
    seconds: bool = False  # kept to the nanosecond


COUNT = Kind("a number from 0", whole=True)
SECONDS = Kind("seconds from 0", seconds=True)

ROUND: Mapping[str, Kind] = {
    "drafted": Kind("a number from -1", whole=True, least=-1),  # -1 = an engine does not tell
    "tested": Kind("a number from -1", whole=True, least=-1),
    "accepted": COUNT,
    "emitted": COUNT,
    "overlap": Kind("a sum of probabilities", optional=True),
    "seconds": SECONDS,
    "draft_seconds": SECONDS,
    "target_seconds": SECONDS,
    "processor_seconds": SECONDS._replace(optional=True),
}
"""Every measured number of a round (`RoundRecord`), in the order of its array on disk."""


class Measure(NamedTuple):
    """An optional measurement of a generation: a field of `Record`, its figure and its column.

    Checks of records, sums, summaries and reports derive from it.
    """

    field: str  # of `Record`; a list has one number a round
    expected: str
    figure: str  # in summaries: the ratio of sums, or the greatest value of all generations
    per: Literal["token", "round", "process", "machine"]  # process: the greatest; machine: seconds
    heading: str
    digits: int  # in tables
    kept: int | None = None  # digits on disk; None = all
    share: bool = False  # from 0 to 1
    inverse: bool = False  # the figure is what it is counted per, over the sum

    @property
    def listed(self) -> bool:
        """Return whether a record has one number a round."""
        return self.per == "round"


MEASURES = (
    Measure("distance", "a number from 0", "target_tv", "token", "TV to full", 4, share=True),
    Measure("experts", "a number from 0 for each round", "experts", "round", "experts", 2, 4),
    Measure(
        *("machine_seconds", "seconds from 0", "machine_tokens_per_s", "token"),
        *("machine tokens/s", 1, NANO),
        inverse=True,
    ),
    Measure(
        *("empty_seconds", "seconds from 0", "empty_rows", "machine", "empty rows", 3, NANO),
        share=True,
    ),
    Measure("masks", "a number from 0", "masks", "token", "masks", 2),
    Measure("mask_seconds", "seconds from 0", "mask_seconds", "token", "mask s", 5, NANO),
    Measure("forced", "a number from 0", "forced", "token", "forced", 3, share=True),
    Measure("closed", "a number from 0", "closed", "token", "closed", 3, share=True),
    Measure("removed_nats", "a number from 0", "removed_nats", "token", "nats removed", 3, 6),
    Measure("peak_memory_mib", "MiB from 0", "peak_memory_mib", "process", "peak MiB", 0, 1),
)
"""Measurements that only some records have; tables show their columns where a row has one."""


class TreeRound(NamedTuple):
    """A round with a tree as its draft: the depth, and the path that was kept."""

    depth: int  # tokens on the longest path that was drafted
    path: tuple[int, ...]  # nodes kept, from the root, by their numbers in draft order
    siblings: tuple[int, ...]  # of each: which child of its parent it was, 0 = the first drawn
    offered: tuple[int, ...]  # children drafted for the context and for each kept node, one more


class RoundRecord(NamedTuple):
    """The measurements of one round; counts as in `types.Round`, times in seconds."""

    drafted: int  # -1 = an engine does not tell
    tested: int  # -1 = not applicable
    accepted: int
    emitted: int
    overlap: float | None  # sum over tested slots of sum_x min(p, q)
    seconds: float
    draft_seconds: float
    target_seconds: float
    processor_seconds: float | None = None  # of all threads; None = not measured
    tree: TreeRound | None = None  # None = a chain
    passes: int = 1  # of the target; more: only their sums are known; 0: the engine tells nothing

    @property
    def depth(self) -> int:
        """Return the tokens on the longest drafted path; of a chain, all of them."""
        return self.drafted if self.tree is None else self.tree.depth

    @property
    def full(self) -> bool:
        """Return whether the whole draft was kept, so that the final token is a bonus."""
        return self.accepted == self.drafted if self.tree is None else not self.tree.offered[-1]


class DraftLaws(NamedTuple):
    """The draft of one round, for audits: each token's probability by draft and target."""

    tokens: list[int]
    p: list[float]  # by the draft; 1 for a token that came by rule
    q: list[float]  # by the target, given the tokens before it
    parents: list[int] | None = None  # of a tree: the node before each, -1 = the context
    likeliest: list[list[float]] | None = None  # after the context and after each token, what the
    # target finds likeliest: id, q, id, q ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One generation, or its failure, where `error` is set and there are no tokens."""

    cell: str = ""  # Cell.id
    sample: str = ""
    repeat: int = 0
    prompt_tokens: int
    tokens: list[int]  # none where an engine tells no ids: `rounds` count them
    text: str
    finish: str
    prefill_seconds: float
    rounds: list[RoundRecord]
    error: str | None = None
    prompt_cut: bool = False  # the document was cut to fit the context
    group: str | None = None  # a category of the task, for reports by group
    thinking: bool = False  # the prompt ends with the beginning of a thought
    flags: tuple[str, ...] = ()  # "first": its timing is in no figure; "loaded": it is marked
    laws: list[DraftLaws] | None = None  # one a round, under `--record laws`
    distance: float | None = None  # of a quantised target: total variation to its full self
    experts: list[float] | None = None  # one a round: distinct ones of a layer of the target's pass
    machine_seconds: float | None = None  # in a batch: each moment divided among running texts
    empty_seconds: float | None = None  # of these, the part in which places of the batch were empty
    masks: int | None = None  # of a constraint, that were made
    mask_seconds: float | None = None  # in which they were made
    forced: int | None = None  # tokens that were the only ones allowed in their place
    closed: int | None = None  # of them forced so that the text ends within its budget
    removed_nats: float | None = None  # sum of -log of the target's mass on allowed tokens, of the
    # emitted tokens; measured at temperature 1 without cuts
    peak_memory_mib: float | None = None  # most resident memory that the process has had so far

    @property
    def key(self) -> Key:
        """Return cell, sample and repeat, which are unique in a run."""
        return self.cell, self.sample, self.repeat

    @property
    def answer(self) -> str:
        """Return the text, after the beginning of a thought where its prompt has it."""
        return f"<think>{self.text}" if self.thinking else self.text

    def to_json(self) -> dict[str, Any]:
        """Plain values, times to the nanosecond; rounds and laws as arrays in their fields' order.

        Laws and `MEASURES` are there only if they were recorded.
        """
        values = {
            "cell": self.cell,
            "sample": self.sample,
            "repeat": self.repeat,
            "prompt_tokens": self.prompt_tokens,
            "tokens": self.tokens,
            "text": self.text,
            "finish": self.finish,
            "prefill_seconds": round(self.prefill_seconds, NANO),
            "rounds": list(map(_row, self.rounds)),
            "error": self.error,
            "prompt_cut": self.prompt_cut,
            "group": self.group,
            "flags": list(self.flags),
        }
        if self.thinking:
            values |= {"thinking": True}
        if self.laws is not None:
            values |= {"laws": list(map(_law, self.laws))}
        for measure in MEASURES:
            figure = getattr(self, measure.field)
            if figure is not None:
                numbers = [
                    x if measure.kept is None else round(x, measure.kept) for x in _listed(figure)
                ]
                values[measure.field] = numbers if measure.listed else numbers[0]
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Record":
        """The inverse of `to_json`.

        Raises:
            TypeError: a field is missing or unknown.
        """
        rounds = list(map(_round, values["rounds"]))
        fields_of_record = {**values, "rounds": rounds, "flags": tuple(values["flags"])}
        if "laws" in values:
            fields_of_record["laws"] = [DraftLaws(*law) for law in values["laws"]]
        return cls(**fields_of_record)


def columns(rounds: Sequence[RoundRecord]) -> dict[str, Sequence[Any]]:
    """Field of a round -> its values in all rounds."""
    by_column: Any = zip(*rounds, strict=True) if rounds else ((),) * len(RoundRecord._fields)
    return dict(zip(RoundRecord._fields, by_column, strict=True))


def _listed(figure: float | Sequence[float]) -> Sequence[float]:
    return figure if isinstance(figure, Sequence) else (figure,)


def _row(r: RoundRecord) -> list[Any]:
    """A round as an array; that of a chain has no word of trees."""
    row: list[Any] = [
        round(value, NANO) if kind.seconds and isinstance(value, float) else value
        for kind, value in zip(ROUND.values(), r, strict=False)
    ]
    tree = None if r.tree is None else list(map(_plain, r.tree))
    if r.passes != 1:
        return [*row, tree, r.passes]
    return row if tree is None else [*row, tree]


def _round(row: Sequence[Any]) -> RoundRecord:
    """The inverse of `_row`."""
    record = RoundRecord(*row)
    if record.tree is None:
        return record
    sides: Sequence[Any] = record.tree  # lists, as read
    tree = TreeRound._make(tuple(v) if isinstance(v, list) else v for v in sides)
    return record._replace(tree=tree)


def _law(law: DraftLaws) -> list[Any]:
    """Laws as an array, without what was not recorded."""
    optional = law[3:] if law.likeliest is not None else law[3:4] if law.parents is not None else ()
    return [*law[:3], *optional]


def _plain(value: Any) -> Any:
    return value if isinstance(value, int) else list(value)


@dataclass(frozen=True, slots=True)
class Score:
    """The scores of one generation, for instance {"rouge2": 0.11}."""

    cell: str
    sample: str
    repeat: int
    metrics: dict[str, float]

    @property
    def key(self) -> Key:
        """The key of the record that was scored."""
        return self.cell, self.sample, self.repeat
