"""Batches: whose scores a row gets, who comes next, and what is shared of modes and errors.

That no text depends on its neighbours is in `tests/engines/test_batches.py`.
"""

from collections.abc import Hashable, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor

from spsbench.loop.batch import Batch, BatchedLM, Fed, modes_now
from spsbench.loop.types import Scores


def test_scores_go_to_the_row_that_asked() -> None:
    """Kinds in order, rows together, a row alone where no other shares its pass."""
    seen: list[list[int]] = []

    class Echo:
        vocab_size, limit, length = 4, None, 1

        def __init__(self, kind: str | None) -> None:
            self.kind = kind

        def shares(self, fed: Fed) -> Hashable | None:
            return self.kind

        def append(self, tokens: Tensor, keep: int, parents: Tensor | None = None) -> Scores:
            return Scores(tokens[None].float(), {})

        def together(self, every: Sequence[Fed]) -> list[Scores]:
            seen.append([int(fed.tokens) for fed in every])
            return [fed.lm.append(*fed[1:]) for fed in every]

        def commit(self, length: int, path: Sequence[int] | None = None) -> None: ...

    def call(number: int, batch: Batch) -> list[float]:
        target, draft, own = (
            BatchedLM(Echo(kind), batch, order) for order, kind in enumerate(("a", "b", None))
        )
        lms = [draft, target, own] if number % 2 else [target, own]
        return [float(lm.append(torch.tensor(number), 1).logits) for lm in lms]

    batch = Batch(3)
    rows = list(batch.run(partial(call, number, batch) for number in range(6)))
    assert sorted(each.result for each in rows) == sorted(
        [[float(n)] * (3 if n % 2 else 2) for n in range(6)]
    )
    assert seen == [[0, 2], [3, 5], [3, 5]]
    assert all(0 < each.share <= each.seconds for each in rows)


def call(batch: Batch, waits: int, made: int) -> int:
    """A row that waits so many times."""
    for _ in range(waits):
        batch.ask(0, "pass", None, list)
    return made


@pytest.mark.parametrize(("continuous", "order", "passes"), [(False, "bacd", 8), (True, "bcad", 5)])
def test_a_row_that_ends_makes_room_or_stays_empty(
    continuous: bool, order: str, passes: int
) -> None:
    batch = Batch(2, continuous=continuous)
    waits = {"a": 5, "b": 1, "c": 1, "d": 3}
    rows = list(batch.run(partial(call, batch, n, name) for name, n in waits.items()))
    assert "".join(each.result for each in rows) == order
    assert batch.passes == {0: passes}


def test_a_row_that_raises_ends_the_others_and_is_raised() -> None:
    left: list[str] = []

    def waits() -> None:
        try:
            call(batch, 9, 0)
        finally:
            left.append("left")

    def fails() -> None:
        call(batch, 1, 0)
        raise KeyError("mine")

    batch = Batch(2)
    with pytest.raises(KeyError):
        list(batch.run([waits, fails]))
    assert left == ["left"]


def test_modes_of_torch_stay_in_their_row() -> None:
    """Rows take turns in the middle of blocks of inference mode."""

    def within(rounds: int) -> list[tuple[bool, bool]]:
        found = []
        with torch.inference_mode():
            for _ in range(rounds):
                call(batch, 1, 0)
                found.append(modes_now())
        call(batch, 2, 0)
        return [*found, modes_now()]

    def plain(rounds: int) -> list[tuple[bool, bool]]:
        found = []
        for _ in range(rounds):
            call(batch, 1, 0)
            found.append(modes_now())
        with torch.no_grad():
            call(batch, 1, 0)
            return [*found, modes_now()]

    batch, inside, outside, before = Batch(4), (True, False), (False, True), modes_now()
    calls = [partial(within, 3), partial(plain, 5), partial(within, 4), partial(plain, 2)]
    assert [row.result for row in sorted(batch.run(calls))] == [
        [inside] * 3 + [outside],
        [outside] * 5 + [(False, False)],
        [inside] * 4 + [outside],
        [outside] * 2 + [(False, False)],
    ]
    assert modes_now() == before
    with torch.inference_mode():  # a consumer's own
        for _ in batch.run([partial(within, 1), partial(plain, 1)]):
            assert torch.is_inference_mode_enabled()
