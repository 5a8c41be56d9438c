"""How prompts are split into those to trace and those to measure on; one bar over all phases."""

from collections import Counter
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import pytest

from spsbench.planning.plan_folder import draw_task_prompts
from spsbench.planning.planner import PHASES, PlanProgress
from spsbench.settings.task import Fits, Sample, Task
from spsbench.spec import Spec

KINDS = ("summary", "code", "json", "translation", "retrieval", "chat")


class Sorted(Task):
    """A file of six kinds, one after the other."""

    name = title = "sorted"

    def __init__(self, of_each: int, kinds: Sequence[str | None] = KINDS) -> None:
        self._of_each, self.kinds = of_each, kinds

    def samples(self, fits: Fits) -> Iterator[Sample]:
        for kind in self.kinds:
            for number in range(self._of_each):
                yield Sample(f"{kind} {number}", "x", group=kind)
                yield Sample(f"{kind} {number}+2", "x", group=kind, after=f"{kind} {number}")


@pytest.mark.parametrize(
    ("there", "traced", "held_back"),
    [(1, 1, 1), (2, 1, 1), (3, 2, 1), (7, 4, 3), (16, 8, 8), (30, 20, 10), (99, 64, 24)],
)
def test_enough_prompts_are_held_back(there, traced, held_back, said):
    few = Sorted(there, kinds=(None,))
    first, back = draw_task_prompts(Spec("few"), few, lambda sample: True, 64, 24)
    assert (len(first), len(back)) == (traced, held_back)
    if there > 1:
        assert not {s.id for s in first} & {s.id for s in back}
    assert bool(said) is (there < 64 + 24)
    _, least = draw_task_prompts(Spec("few"), few, lambda sample: True, 64, 1)
    assert len(least) == 1  # no more than was asked for


@pytest.mark.parametrize(("of_each", "limit", "back"), [(2, 64, 24), (4, 12, 6), (50, 60, 24)])
def test_both_halves_have_every_kind_of_a_sorted_file(of_each, limit, back, said):
    for seed in range(3):
        parted = draw_task_prompts(
            Spec("sorted"), Sorted(of_each), lambda sample: True, limit, back, seed
        )
        for half in parted:
            counts = Counter(sample.group for sample in half)
            assert counts.keys() == set(KINDS)
            assert max(counts.values()) == min(counts.values())
            assert all(sample.after is None for sample in half)
    line = said[-1]
    traced, _, held_back = line.partition("; held back: ")
    assert traced.startswith("traced: ")
    for kind in KINDS:
        assert kind in traced
        assert kind in held_back


def test_the_bar_rises_over_all_phases_and_waits_for_what_is_done_again():
    progress, seen = PlanProgress(), []
    for phase in PHASES:
        for done in (0, 1, 2, 3, 1):
            seen.append(progress.show(phase, SimpleNamespace(done=done, total=3)).done)
            assert str(progress).startswith(f"{seen[-1]}% of the plan, ")
            assert phase in str(progress)
    assert seen == sorted(seen)
    assert (seen[0], seen[-1], progress.total) == (0, 100, 100)
