"""How prompts are parted into those to trace and those to measure on."""

from collections.abc import Iterator

import pytest

from spsbench.planning.folder import prompts_of
from spsbench.settings.task import Fits, Sample, Task
from spsbench.spec import Spec


class Few(Task):
    name = title = "few"

    def __init__(self, count: int) -> None:
        self._count = count

    def samples(self, fits: Fits) -> Iterator[Sample]:
        for number in range(self._count):
            yield Sample(str(number), "x")


@pytest.mark.parametrize(
    ("there", "traced", "held_back"),
    [
        (1, 1, 1),
        (2, 1, 1),
        (3, 2, 1),
        (7, 4, 3),
        (12, 6, 6),
        (16, 8, 8),
        (30, 20, 10),
        (99, 64, 24),
    ],
)
def test_enough_prompts_are_held_back(there, traced, held_back, said):
    found = prompts_of(Spec("few"), Few(there), lambda prompt: True, 64, 24)
    assert (len(found.traced), len(found.held_back)) == (traced, held_back)
    if there > 1:
        assert not {s.id for s in found.traced} & {s.id for s in found.held_back}
    assert bool(said) is (there < 64 + 24)
    few = prompts_of(Spec("few"), Few(there), lambda prompt: True, 64, 1)
    assert len(few.held_back) == 1  # no more than was asked for
