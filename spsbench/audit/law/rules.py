"""Every verifier with every kind of draft and every schedule: the law that comes out, exactly.

Plug-ins of other packages are enumerated like ours. A pairing that the engine refuses is forced
past the refusal, to show what it would have done.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from spsbench.audit.law.discovery import DiscoveredRule
from spsbench.audit.law.enumeration import EXACT, Case, prove
from spsbench.audit.law.kinds import REFERENCE, Kind
from spsbench.audit.law.tables import Pair, TableLM
from spsbench.errors import UsageError
from spsbench.loop.types import (
    LM,
    Draft,
    Drafter,
    Drawn,
    Guarantee,
    Noise,
    Schedule,
    Verdict,
    Verifier,
)
from spsbench.methods.schedules.constant import Constant
from spsbench.plugins import part
from spsbench.registry import Entry, entries
from spsbench.spec import Spec

PROMPT = (0, 1, 0, 1, 0)  # look-ups find something in it
LOOKAHEAD = 2

SETTINGS: tuple[tuple[str, Pair, dict[str, Any]], ...] = (
    ("two tokens", Pair(2, 3, ("plain",)), {"tokens": 3}),
    ("three tokens", Pair(3, 2, ("plain",)), {"tokens": 2}),
    ("ties, zeros, disjoint laws", Pair(3, 4), {"tokens": 3}),
    ("an EOS in the block", Pair(3, 1), {"tokens": 3, "eos": frozenset({1})}),
    (
        "temperature, top-k, top-p",
        Pair(3, 5, ("plain", "ties")),
        {"tokens": 2, "warp": {"temperature": 1.5, "top_k": 2, "top_p": 0.7}},
    ),
    ("greedy", Pair(3, 4), {"tokens": 3, "warp": {"temperature": 0.0}}),
)
"""Name, laws and the rest of each case."""

GREEDY = SETTINGS[-1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One pairing of the compatibility table."""

    verifier: str
    drafter: str
    schedule: str
    guarantee: str  # what the verifier claims
    refused: str | None  # why, if it is
    distance: float | None  # the worst total variation of all settings; None: not enumerable
    worst: str = ""  # the setting of that
    emitted: float | None = None  # tokens of a first round, in the first setting
    paths: int = 0
    error: str | None = None

    @property
    def verdict(self) -> str:
        """`exact`, `lossy`, `refused`, `BIASED`, or `not shown`."""
        if self.refused is not None:
            return "refused" if self.wrong else "refused, though exact here"
        if self.distance is None:
            return "not shown"
        if self.guarantee == Guarantee.LOSSY.value:
            return "lossy"
        return "BIASED" if self.wrong else self.guarantee

    @property
    def wrong(self) -> bool:
        """Whether the law that came out is not the target's."""
        return self.error is not None or (self.distance or 0.0) > EXACT


def compatibility(specs: Sequence[Spec] = ()) -> Iterator[Row]:
    """The table, a row at a time; of all verifiers, or of those in `specs`.

    Raises:
        UsageError: no such verifier, or one with other arguments.
    """
    for spec in specs or [Spec(entry.name) for entry in entries("verifiers")]:
        try:
            verifier: Verifier = part("verifiers", spec)
        except UsageError:
            raise
        except Exception as error:  # other people's plug-in
            yield _unloadable(str(spec), "", "", error)
            continue
        for kind in drafter_kinds():
            for name, schedule in schedules():
                yield pairing(str(spec), verifier, kind, name, schedule)


def drafter_kinds() -> Iterator[Kind]:
    """The drafters of the registry, and one of each kind that it may lack."""
    for entry in entries("drafters"):
        yield Kind(entry.name, _maker(entry))
    yield from REFERENCE


def schedules() -> Iterator[tuple[str, Callable[[], Schedule]]]:
    """Every schedule of the registry with its own arguments; the constant one with a small K."""
    for entry in entries("schedules"):
        if entry.name == "constant":
            yield f"constant:lookahead={LOOKAHEAD}", lambda: Constant(LOOKAHEAD)
        else:
            yield entry.name, lambda e=entry: e.load()()  # type: ignore[misc]


def pairing(
    name: str, verifier: Verifier, kind: Kind, schedule_name: str, schedule: Callable[[], Schedule]
) -> Row:
    """Enumerate one pairing, past its refusal if it is refused."""
    known: dict[str, Any] = {"verifier": name, "drafter": kind.name, "schedule": schedule_name}
    claim = Guarantee.LOSSY
    refused: str | None = None
    try:
        claim = verifier.guarantee
        probe = kind.make(TableLM(SETTINGS[0][1].p, SETTINGS[0][1].vocab))
        refused = verifier.refuses(probe.drawn, probe.tree)
        known["guarantee"] = claim.value
        return _enumerated(verifier, kind, schedule, claim, refused, known)
    except Exception as error:  # a forced pairing may break anything, and so may a plug-in
        row = _unloadable(name, kind.name, schedule_name, error)
        return Row(
            **known | {"guarantee": claim.value}, refused=refused, distance=None, error=row.error
        )


def _enumerated(
    verifier: Verifier,
    kind: Kind,
    schedule: Callable[[], Schedule],
    claim: Guarantee,
    refused: str | None,
    known: dict[str, Any],
) -> Row:
    forced = Forced(verifier) if refused else verifier
    worst, where, emitted, paths, sound = 0.0, "", None, 0, True
    for setting, pair, fields in GREEDY if claim is Guarantee.GREEDY else SETTINGS:
        rule = DiscoveredRule(verifier, kind.drawn)
        done = prove(
            Case(
                forced,
                rule,
                pair.q,
                pair.p,
                pair.vocab,
                drafter=kind.make,
                schedule=schedule(),
                prompt=PROMPT,
                lm=careless if refused else None,
                **fields,
            )
        )
        emitted = done.emitted if emitted is None else emitted
        paths += done.paths
        sound = sound and done.whole
        if done.distance > worst:
            worst, where = done.distance, setting
    error = None if sound else "decisions elsewhere than where they were looked for"
    return Row(
        **known,
        refused=refused,
        distance=worst if sound or worst > EXACT else None,
        worst=where,
        emitted=emitted,
        paths=paths,
        error=error,
    )


@dataclass(frozen=True, slots=True)
class Forced:
    """A verifier that refuses nothing."""

    verifier: Verifier
    guarantee: ClassVar[Guarantee] = Guarantee.LOSSY

    def refuses(self, drawn: Drawn, tree: bool) -> str | None:
        """Nothing."""
        return None

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        """As it is."""
        return self.verifier(draft, q, noise)


def careless(case: Case, text: list[int], target: bool) -> LM:
    """A session that keeps whatever the verifier says, for what should have been refused."""
    return TableLM(case.q if target else case.p, case.vocab, careless=True)


def _maker(entry: Entry) -> Callable[[LM], Drafter]:
    def make(lm: LM) -> Drafter:
        maker = entry.load()
        given = {"lm": lm} if "lm" in inspect.signature(maker).parameters else {}
        made: Drafter = maker(**given)
        return made

    return make


def _unloadable(verifier: str, drafter: str, schedule: str, error: Exception) -> Row:
    lines = str(error).strip().splitlines() or ["no message"]
    return Row(
        verifier=verifier,
        drafter=drafter,
        schedule=schedule,
        guarantee="",
        refused=None,
        distance=None,
        error=f"{type(error).__name__}: {lines[0][:200]}",
    )
