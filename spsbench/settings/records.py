"""Records of results: one record per generation, one row in it per round.

Measurements only; every rate is computed from them in `metrics/rates.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import lt
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, convert

SCHEMA = 6
NANO = 9  # digits of a second that are kept: the resolution of clocks

PLAIN = ("cell", "sample", "repeat", "prompt_tokens", "tokens", "text", "finish")
FINISHES = ("eos", "stop", "length", "context")

Key = tuple[str, str, int]
"""The key that a run holds at most once: cell, sample, repeat."""


Whole = Annotated[int, Meta(ge=0, lt=2**53)]
Untold = Annotated[int, Meta(ge=-1, lt=2**53)]  # -1 = an engine does not tell
Number = Annotated[float, Meta(ge=0, le=1e300)]  # finite
Chance = Annotated[float, Meta(ge=0, le=1 + 1e-4)]  # sums in float32 may exceed 1
TokenId = Annotated[int, Meta(ge=0, lt=2**31)]


class Measure(NamedTuple):
    """An optional measurement of a generation: a field of `Record`, its figure and its column.

    Checks of records, sums, summaries and reports derive from it.
    """

    field: str  # field of `Record`; a list has one number a round
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
    Measure("distance", "target_tv", "token", "TV to full", 4, share=True),
    Measure("experts", "experts", "round", "experts", 2, 4),
    Measure(
        *("machine_seconds", "machine_tokens_per_s", "token", "machine tokens/s", 1, NANO),
        inverse=True,
    ),
    Measure("empty_seconds", "empty_rows", "machine", "empty rows", 3, NANO, share=True),
    Measure("masks", "masks", "token", "masks", 2),
    Measure("mask_seconds", "mask_seconds", "token", "mask s", 5, NANO),
    Measure("forced", "forced", "token", "forced", 3, share=True),
    Measure("closed", "closed", "token", "closed", 3, share=True),
    Measure("removed_nats", "removed_nats", "token", "nats removed", 3, 6),
    Measure("peak_memory_mib", "peak_memory_mib", "process", "peak MiB", 0, 1),
    Measure("peak_gpu_mib", "peak_gpu_mib", "process", "peak GPU MiB", 0, 1),
)
"""Measurements that only some records have; tables show their columns where a row has one."""


class TreeRound(NamedTuple):
    """A round with a tree as its draft: the depth, and the path that was kept."""

    depth: Whole  # tokens on the longest path that was drafted
    path: tuple[Whole, ...]  # nodes kept, from the root, by their numbers in draft order
    siblings: tuple[Whole, ...]  # which child of its parent each was, 0 = the first drawn
    offered: tuple[Whole, ...]  # children drafted for the context and for each kept node, one more


class RoundRecord(NamedTuple):
    """The measurements of one round; counts as in `types.Round`, times in seconds."""

    drafted: Untold
    tested: Untold  # -1 = not applicable
    accepted: Whole
    emitted: Whole
    overlap: Number | None  # sum over tested slots of sum_x min(p, q)
    seconds: Number
    draft_seconds: Number
    target_seconds: Number
    processor_seconds: Number | None = None  # all threads'; None = not measured
    tree: TreeRound | None = None  # None = a chain
    passes: Whole = 1  # the target's; more: only their sums are known; 0: the engine tells nothing

    @property
    def depth(self) -> int:
        """Return the tokens on the longest drafted path; of a chain, all of them."""
        return self.drafted if self.tree is None else self.tree.depth

    @property
    def full(self) -> bool:
        """Return whether the whole draft was kept, so that the final token is a bonus."""
        return self.accepted == self.drafted if self.tree is None else not self.tree.offered[-1]

    @property
    def is_consistent(self) -> bool:
        """Return whether no count exceeds what it is a part of, and the tree allows the path."""
        drafted, tested, accepted, emitted, overlap = self[:5]
        beyond = 0 <= drafted < max(tested, accepted, (overlap or 0) - 1e-4)
        if beyond or -1 < tested < accepted or (self.passes and emitted > accepted + self.passes):
            return False
        if self.tree is None:
            return True
        depth, path, siblings, offered = self.tree
        lengths = len(path) == len(siblings) == len(offered) - 1 == accepted <= depth <= drafted
        nodes = list(path) == sorted({*path} & {*range(drafted)})
        return lengths and nodes and all(map(lt, siblings, offered)) and sum(offered) <= drafted


class DraftProbs(NamedTuple):
    """The draft of one round, for audits: each token's probability by draft and target."""

    tokens: list[TokenId]
    p: list[Chance]  # by the draft; 1 for a deterministic draft's
    q: list[Chance]  # by the target, given the tokens before it
    parents: list[Untold] | None = None  # in a tree the node before each, -1 = the context
    likeliest: list[list[Number]] | None = None  # after the context and after each token, what the
    # target finds likeliest: id, q, id, q ...

    @property
    def is_consistent(self) -> bool:
        """Return whether its lists have one entry a token, and parents come first."""
        n, rows, parents = len(self.tokens), self.likeliest, self.parents
        lists: list[Sequence[float]] = [self.p, self.q, *([] if parents is None else [parents])]
        pairs = rows is None or (len(rows) == n + 1 and all(len(row) % 2 == 0 for row in rows))
        falls = all(above < i for i, above in enumerate(parents or ()))
        return pairs and falls and all(len(values) == n for values in lists)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One generation, or its failure, where `error` is set and there are no tokens."""

    cell: str = ""  # Cell.id
    sample: str = ""
    repeat: Whole = 0
    prompt_tokens: Whole
    tokens: list[TokenId]  # none where an engine tells no ids: `rounds` count them
    text: str
    finish: str  # one of `FINISHES`, unless it failed
    prefill_seconds: Number
    rounds: list[RoundRecord]
    error: str | None = None
    prompt_cut: bool = False  # the document was cut to fit the context
    group: str | None = None  # a category of the task, for reports by group
    thinking: bool = False  # the prompt ends with the beginning of a thought
    flags: tuple[str, ...] = ()  # "first": its timing is in no figure; "loaded": it is marked
    laws: list[DraftProbs] | None = None  # one a round, under `--record laws`
    distance: Number | None = None  # total variation of a quantised target to its full self
    experts: list[Number] | None = None  # one a round: distinct ones of a layer of its pass
    machine_seconds: Number | None = None  # in a batch: each moment divided among running texts
    empty_seconds: Number | None = None  # part of them in which places of the batch were empty
    masks: Whole | None = None  # masks of a constraint that were made
    mask_seconds: Number | None = None  # seconds in which they were made
    forced: Whole | None = None  # tokens that were the only ones allowed in their place
    closed: Whole | None = None  # tokens that were forced so that the text ends within its budget
    removed_nats: Number | None = None  # sum of -log of the target's mass on allowed tokens, of the
    # emitted tokens; measured at temperature 1 without cuts
    peak_memory_mib: Number | None = None  # most resident memory that the process has had so far
    peak_gpu_mib: Number | None = None  # the most that its tensors have had on a GPU

    @property
    def key(self) -> Key:
        """Return cell, sample and repeat, which are unique in a run."""
        return self.cell, self.sample, self.repeat

    @property
    def answer(self) -> str:
        """Return the text, after the beginning of a thought where its prompt has it."""
        return f"<think>{self.text}" if self.thinking else self.text

    def to_json(self) -> dict[str, Any]:
        """Return plain values, times to the nanosecond; rounds and `laws` as arrays of fields.

        `laws` and `MEASURES` are there only if they were recorded, `thinking` only if true.
        """
        values = {name: getattr(self, name) for name in PLAIN}
        values |= {
            "prefill_seconds": round(self.prefill_seconds, NANO),
            "rounds": list(map(_row, self.rounds)),
            "error": self.error,
            "prompt_cut": self.prompt_cut,
            "group": self.group,
            "flags": list(self.flags),
        }
        if self.thinking:
            values["thinking"] = True
        if self.laws is not None:
            values["laws"] = list(map(_probs_row, self.laws))
        for name, digits in ((measure.field, measure.kept) for measure in MEASURES):
            if (figure := getattr(self, name)) is not None:
                values[name] = figure if digits is None else _round_figure(figure, digits)
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Record":
        """Return the record that `to_json` made plain; ValueError: a wrong field, or a conflict."""
        if unknown := values.keys() - cls.__slots__:
            raise ValueError(f"unknown fields {', '.join(sorted(unknown))}")
        record = convert(values, cls)
        if contradiction := record.contradiction:
            raise ValueError(contradiction)
        return record

    @property
    def problem(self) -> str:
        """Return why the record could not be read again; empty if it can."""
        try:
            self.from_json(self.to_json())
        except (ValueError, TypeError, AttributeError) as error:
            return str(error)
        return ""

    @property
    def contradiction(self) -> str:
        """Return the first contradiction of finish, tokens, rounds, experts and `laws`; else ""."""
        rounds, probs = self.rounds, self.laws
        emitted = sum(r.emitted for r in rounds)
        if self.tokens if self.error is not None else self.finish not in FINISHES:
            return f"finish {self.finish!r} with {len(self.tokens)} tokens and error {self.error!r}"
        if self.tokens and emitted != len(self.tokens):
            return f"rounds with {emitted} tokens of {len(self.tokens)}"
        if len(self.experts or ()) > len(rounds):
            return "more measurements than rounds"
        fits = probs is None or len(probs) == len(rounds)
        if not fits or not all(part.is_consistent for part in (*rounds, *(probs or ()))):
            return "counts or probabilities of a round that contradict"
        return ""


def round_record(measured: Any) -> RoundRecord:
    """Return the record of a `types.Round`, which has its fields among others."""
    return RoundRecord(*(getattr(measured, name) for name in RoundRecord._fields))


def field_columns(rounds: Sequence[RoundRecord]) -> dict[str, Sequence[Any]]:
    """Return field of a round -> its values in all rounds."""
    by_column: Any = zip(*rounds, strict=True) if rounds else ((),) * len(RoundRecord._fields)
    return dict(zip(RoundRecord._fields, by_column, strict=True))


def _round_figure(figure: Any, digits: int) -> Any:
    is_list = isinstance(figure, Sequence)
    return [round(x, digits) for x in figure] if is_list else round(figure, digits)


def _row(r: RoundRecord) -> list[Any]:
    """Return the fields of a round in order; `passes` of 1 is left out, and then no tree."""
    times = [None if value is None else round(value, NANO) for value in r[5:9]]  # all `seconds`
    tree = None if r.tree is None else list(map(_plain, r.tree))
    n_fields = 11 if r.passes != 1 else 9 if tree is None else 10
    return [*r[:5], *times, tree, r.passes][:n_fields]


def _probs_row(probs: DraftProbs) -> list[Any]:
    """Probabilities of a round as an array, without what was not recorded."""
    n_fields = 5 if probs.likeliest is not None else 4 if probs.parents is not None else 3
    return list(probs[:n_fields])


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
