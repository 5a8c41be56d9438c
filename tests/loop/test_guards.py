"""A part of another package that fails, or returns what does not fit, is named."""

import re
from dataclasses import replace
from typing import ClassVar

import pytest
import torch

from spsbench.audit.exact.draft_kinds import FixedDrafter
from spsbench.audit.exact.tables import Pair, TableLM
from spsbench.cli.process.failures import described
from spsbench.errors import Exit, PlugInError, UsageError
from spsbench.loop.decode import decode
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import Warp
from spsbench.loop.timing import Stopwatch, TimedDrafter
from spsbench.loop.types import Draft, Drafter, Drawn, Guarantee, Limits, Verdict
from spsbench.methods.drafters.model import ModelDrafter
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.sps import Sps
from spsbench.plugins import make
from spsbench.spec import Spec

PAIR = Pair(3, 8, ("plain",))
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
    "nothing": (None, "drafted a NoneType: expected a Draft"),
    "an empty list as a tensor": (
        Draft(torch.tensor([]), None),
        r"tokens torch.float32 \[0\]: expected int64 \[N\]",
    ),
    "two dimensions": (Draft(NODES[None], None), r"tokens torch.int64 \[1, 2\]"),
    "more than K": (Draft(torch.tensor([0, 1, 0]), None), "drafted 3 tokens: expected at most 2"),
    "no token": (Draft(torch.tensor([0, 3]), None), "expected token ids of 0 to 2"),
    "below 0": (Draft(torch.tensor([-1]), None), "expected token ids of 0 to 2"),
    "another width": (Draft(NODES, torch.ones(2, 4)), r"laws torch.float32 \[2, 4\]: .* \[2, 3\]"),
    "whole numbers": (Draft(NODES, torch.ones(2, 3, dtype=torch.int64)), "expected floats"),
    "a tree": (Draft(NODES, None, torch.tensor([-1, 0])), "declares tree = False"),
}
TREES = {
    "too deep": (Draft(NODES[[0, 1, 0]], None, torch.tensor([-1, 0, 1])), "depth 3: expected at"),
    "a child first": (Draft(NODES, None, torch.tensor([1, -1])), "node 0 the parent 1"),
    "few parents": (Draft(NODES, None, torch.tensor([-1])), r"parents torch.int64 \[1\]"),
}
VERDICTS = {
    "nothing": (None, "ruled None: expected a Verdict"),
    "a long path": (
        Verdict(torch.tensor([0, 1, -1]), *torch.tensor([1, 1])),
        r"torch.int64 \[3\].*path of 2",
    ),
    "a hole": (Verdict(torch.tensor([-1, 1]), *torch.tensor([1, 1])), r"accepted \[1\] of 2"),
    "no node": (Verdict(torch.tensor([0, 7]), *torch.tensor([1, 1])), r"accepted \[0, 7\] of 2"),
    "no token": (Verdict(torch.tensor([0, -1]), *torch.tensor([3, 1])), "token 3: .* 0 to 2"),
}


@pytest.mark.parametrize("name", [*DRAFTS, *TREES])
def test_a_draft_that_does_not_fit_names_its_drafter(name):
    draft, says = (DRAFTS | TREES)[name]
    with pytest.raises(PlugInError, match=rf"drafter tests.loop.test_guards:Gives .*{says}"):
        run(Gives(draft, tree=name in TREES))


@pytest.mark.parametrize("name", VERDICTS)
def test_a_verdict_that_does_not_fit_names_its_verifier(name):
    verdict, says = VERDICTS[name]
    with pytest.raises(PlugInError, match=rf"verifier tests.loop.test_guards:Rules .*{says}"):
        run(verifier=Rules(verdict))


@pytest.mark.parametrize("k", [-1, 1.5, None])
def test_a_k_that_is_none_names_its_schedule(k):
    with pytest.raises(PlugInError, match=r"schedule tests.loop.test_guards:Chooses chose K ="):
        run(schedule=Chooses(k))


def test_what_is_raised_inside_a_part_is_said_in_its_name():
    wrong = IndexError("index 3 is out of range\nmore")
    with pytest.raises(PlugInError) as caught:
        run(Gives(wrong))
    what = "drafter tests.loop.test_guards:Gives failed: IndexError: index 3 is out of range"
    line, code = described(caught.value)
    assert re.fullmatch(re.escape(what) + r" \(test_guards\.py, line \d+\)", line)
    assert code == Exit.DATA
    assert caught.value.__cause__ is wrong
    with pytest.raises(PlugInError, match=r"verifier .*:Rules failed: OSError: no such file"):
        run(verifier=Rules(OSError("no such file")))
    with pytest.raises(PlugInError, match=r"schedule .*:Chooses failed: IndexError"):
        run(schedule=Chooses(99))


def test_the_part_is_found_inside_a_stopwatch_and_by_its_name(registered):
    registered("drafters", "gives", "tests.loop.test_guards:Gives")
    timed = TimedDrafter(Gives(None), Stopwatch(torch.device("cpu")))
    with pytest.raises(
        PlugInError, match=r"^drafter gives \(tests.loop.test_guards:Gives\) drafted a"
    ):
        run(timed)


def test_a_schedule_s_fault_is_not_the_drafter_s():
    drafter = ModelDrafter(TableLM(PAIR.p, 3))
    with pytest.raises(
        PlugInError, match=r"schedule tests.loop.test_guards:Doubts failed: KeyError"
    ):
        run(drafter, Sps(), Doubts())


def test_our_own_faults_and_the_machine_s_stay_what_they_are(monkeypatch):
    def broken(*_):
        raise IndexError("ours")

    monkeypatch.setattr(FixedDrafter, "draft", broken)
    with pytest.raises(IndexError, match="ours"):
        run()
    with pytest.raises(MemoryError):
        run(Gives(MemoryError()))
    with pytest.raises(UsageError):
        run(Gives(UsageError("its own words")))


def test_a_part_that_lacks_what_it_must_have_is_named():
    with pytest.raises(PlugInError, match=r"drafter .*:NeedsMore failed: AttributeError"):
        run(NeedsMore(1.0))


def test_a_constructor_s_type_error_names_the_plug_in(registered):
    registered("verifiers", "needs", "tests.loop.test_guards:NeedsMore")
    with pytest.raises(
        UsageError, match=r"verifier needs \(tests.loop.test_guards:NeedsMore\): .*factor"
    ):
        make("verifiers", Spec("needs"))
    assert make("verifiers", Spec("needs", (("factor", 2.0),))).factor == 2.0


def test_parts_that_fit_pass_unchanged():
    fits = Draft(torch.tensor([0, 1, 2]), None, torch.tensor([-1, -1, 0]))
    assert next(begun(Gives(fits, tree=True))).drafted == 3
    assert next(begun(Gives(replace(fits, tokens=NODES, parents=None)))).drafted == 2
