"""A part of another package that fails, or returns what does not fit, is named."""

from typing import ClassVar

import pytest
import torch

from spsbench.audit.exact.draft_kinds import FixedDrafter
from spsbench.audit.exact.tables import TableLM, ToyPair
from spsbench.cli.failures import describe_error
from spsbench.errors import Exit, PlugInError, UsageError
from spsbench.loop.decode import decode
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Draft, Drafter, Drawn, Guarantee, Limits, Verdict
from spsbench.methods.drafters.model import ModelDrafter
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.sps import Sps
from spsbench.plugins import make
from spsbench.spec import Spec

PAIR = ToyPair(3, 8, ("plain",))
NODES = torch.tensor([0, 1])


class Gives(Drafter):
    """Hands over what it was made with, or raises it."""

    drawn: ClassVar[Drawn] = Drawn.POINT

    def __init__(self, draft: object, tree: bool = False) -> None:
        self.made, self.tree = draft, tree

    def begin(self, *_):
        """Nothing to prepare."""

    def draft(self, *_):
        if isinstance(self.made, Exception):
            raise self.made
        return self.made


class Rules(Match):
    """Says what it was made with."""

    def __init__(self, verdict: object) -> None:
        self.verdict = verdict

    def __call__(self, draft, q, noise):
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict


class Chooses(Constant):
    """Chooses what it was made with."""

    def __post_init__(self):
        """Take any K."""

    def k(self, history):
        return [][0] if self.lookahead == 99 else self.lookahead


class Doubts(Constant):
    def go_on(self, p):
        raise KeyError("law")


class NeedsMore(Match):
    guarantee: ClassVar[Guarantee] = Guarantee.EXACT

    def __init__(self, factor: float) -> None:
        self.factor = factor


def begun(drafter=None, verifier=None, schedule=None):
    return decode(
        [0, 1],
        target=TableLM(PAIR.q, 3),
        drafter=drafter or FixedDrafter((0, 1)),
        verifier=verifier or Match(),
        schedule=schedule or Constant(2),
        warp=Warp(),
        noise=PhiloxStream(1),
        limits=Limits(6),
    )


def run(*parts, **named):
    return list(begun(*parts, **named))


DRAFTS = {
    "nothing": None,
    "an empty list as a tensor": Draft(torch.tensor([]), None),
    "two dimensions": Draft(NODES[None], None),
    "more than K": Draft(torch.tensor([0, 1, 0]), None),
    "no token": Draft(torch.tensor([0, 3]), None),
    "below 0": Draft(torch.tensor([-1]), None),
    "another width": Draft(NODES, torch.ones(2, 4)),
    "whole numbers": Draft(NODES, torch.ones(2, 3, dtype=torch.int64)),
    "a tree": Draft(NODES, None, torch.tensor([-1, 0])),
}
TREES = {
    "too deep": Draft(NODES[[0, 1, 0]], None, torch.tensor([-1, 0, 1])),
    "a child first": Draft(NODES, None, torch.tensor([1, -1])),
    "few parents": Draft(NODES, None, torch.tensor([-1])),
}
VERDICTS = {
    "nothing": None,
    "a long path": Verdict(torch.tensor([0, 1, -1]), *torch.tensor([1, 1])),
    "a hole": Verdict(torch.tensor([-1, 1]), *torch.tensor([1, 1])),
    "no node": Verdict(torch.tensor([0, 7]), *torch.tensor([1, 1])),
    "no token": Verdict(torch.tensor([0, -1]), *torch.tensor([3, 1])),
}
PARTS = {
    **{f"draft: {name}": {"drafter": Gives(draft)} for name, draft in DRAFTS.items()},
    **{f"tree: {name}": {"drafter": Gives(draft, tree=True)} for name, draft in TREES.items()},
    **{f"verdict: {name}": {"verifier": Rules(verdict)} for name, verdict in VERDICTS.items()},
    **{f"K = {k}": {"schedule": Chooses(k)} for k in (-1, 1.5, None)},
    "drafter raises": {"drafter": Gives(IndexError("index 3 is out of range\nmore"))},
    "verifier raises": {"verifier": Rules(OSError("no such file"))},
    "schedule raises": {"schedule": Chooses(99)},
    "no constructor": {"drafter": NeedsMore(1.0)},
    "a schedule within the drafter": {
        "drafter": ModelDrafter(TableLM(PAIR.p, 3)),
        "verifier": Sps(),
        "schedule": Doubts(),
    },
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_fails_or_does_not_fit_is_named(name):
    kind, part = [*PARTS[name].items()][-1]
    with pytest.raises(PlugInError) as caught:
        run(**PARTS[name])
    line, code = describe_error(caught.value)
    assert f"{kind} tests.loop.test_guards:{type(part).__name__} " in line
    assert "\n" not in line
    assert code == Exit.DATA
    assert ("raises" in name) == isinstance(caught.value.__cause__, (IndexError, OSError))


def test_our_own_faults_and_the_machine_s_stay_what_they_are(monkeypatch):
    def broken(*_):
        raise IndexError("ours")

    monkeypatch.setattr(FixedDrafter, "draft", broken)
    with pytest.raises(IndexError):
        run()
    with pytest.raises(MemoryError):
        run(Gives(MemoryError()))
    with pytest.raises(UsageError):
        run(Gives(UsageError("its own words")))


def test_a_constructor_s_type_error_names_the_plug_in(registered):
    registered("verifiers", "needs", "tests.loop.test_guards:NeedsMore")
    with pytest.raises(UsageError):
        make("verifiers", Spec("needs"))
    assert make("verifiers", Spec("needs", (("factor", 2.0),))).factor == 2.0
