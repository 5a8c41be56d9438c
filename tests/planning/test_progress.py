"""One bar over a plan: it never goes back, and what is done again says so."""

from dataclasses import dataclass

from spsbench.planning.planner import PHASES, PlanProgress


@dataclass
class Inner:
    done: int
    total: int

    def __str__(self) -> str:
        return f"{self.done} of {self.total}"


def test_the_bar_rises_over_all_phases():
    progress, seen = PlanProgress(), []
    for phase in PHASES:
        for done in range(4):
            seen.append(progress.show(phase, Inner(done, 3)).done)
            assert str(progress).startswith(f"{seen[-1]}% of the plan, ")
            assert phase in str(progress)
            assert "once more" not in str(progress)
    assert seen == sorted(seen)
    assert (seen[0], seen[-1], progress.total) == (0, 100, 100)


def test_what_is_measured_again_says_so_and_the_bar_waits():
    progress = PlanProgress()
    for done, total in ((1, 25), (6, 6)):
        progress.show("costs", Inner(done, total))
    before = progress.done
    progress.show("costs", Inner(1, 6))
    assert progress.done == before
    assert "3/5 costs, once more: 1 of 6" in str(progress)
    progress.show("replay", Inner(0, 2))
    assert "once more" not in str(progress)
