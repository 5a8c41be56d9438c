"""Batches: the law of each row is the target's, whatever stands beside it.

Rows over tables are enumerated together, all cells of all their uniforms: their joint law must be
the product of the laws of each alone. Defects of batches are planted and must be seen.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from spsbench.audit.exact.cases import Case
from spsbench.audit.exact.tables import Pair
from spsbench.loop.batch import Batch, BatchedLM, Fed
from spsbench.loop.types import (
    LM,
    Context,
    Draft,
    Drafter,
    Drawn,
    GoOn,
    Noise,
    Scores,
    Verdict,
    Verifier,
)
from spsbench.methods.drafters.model import ModelDrafter
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.block import Block
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.sps import Sps
from tests.loop.joint_batches import Passes, one_by_one, prove_batch
from tests.oracles.written_rules import case

RULES: dict[str, Callable[[], Verifier]] = {"sps": Sps, "match": Match, "block": Block}
ROWS = Pair(2, 3, ("plain",)), Pair(2, 7, ("plain",)), Pair(2, 4, ("zeros",))


def far(cases: Sequence[Case], **more: Any) -> float:
    """Total variation of the joint law from the product."""
    proof = prove_batch(cases, **more)
    return proof.distance if proof.whole else 1.0


def row(rule: str, pair: Pair, tokens: int = 2, **more: Any) -> Case:
    return case(rule, RULES[rule](), pair, tokens=tokens, schedule=Constant(1), **more)


@pytest.mark.parametrize("rule", RULES)
def test_two_rows_have_the_product_of_their_laws(rule: str) -> None:
    assert far([row(rule, ROWS[0], prompt=(0, 1)), row(rule, ROWS[1])]) < 1e-12


def test_three_rows_of_different_rules_and_lengths_have_the_product_of_their_laws() -> None:
    rows = [
        row("sps", ROWS[0], 1),
        row("match", ROWS[1], 1, prompt=(1, 1)),
        row("block", ROWS[2], 1),
    ]
    assert far(rows) < 1e-12


def test_three_prompts_through_two_rows_have_the_product_of_their_laws() -> None:
    rows = [row("sps", pair, 1, prompt=(0,) * n) for n, pair in enumerate(ROWS, start=1)]
    assert far(rows, batch=partial(Batch, 2)) < 1e-12


def test_an_eos_in_one_row_leaves_the_other_alone() -> None:
    rows = [row("sps", ROWS[0], eos=frozenset({1})), row("sps", ROWS[1])]
    assert far(rows) < 1e-12


def swapped(every: Sequence[Fed]) -> list[Scores]:
    """Scores of a neighbour, as of keys and values that are off by one row."""
    made = one_by_one(every)
    return made[1:] + made[:1] if len({len(scores.logits) for scores in made}) == 1 else made


class FromNeighbour(Drafter):
    """Hands on the law of a neighbour's draft, as after rows were put into another order."""

    drawn = Drawn.IID
    rows: ClassVar[list[Draft]] = []

    def __init__(self, lm: LM) -> None:
        self.inner = ModelDrafter(lm)
        self.rows.clear()

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        self.inner.begin(prompt, prefill)

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        made = self.inner.draft(context, k, noise, go_on)
        if made.probs is not None:
            self.rows.append(made)
            made = replace(made, probs=self.rows[0].probs)
        return made


DEFECTS: dict[str, tuple[dict[bool, Passes], dict[str, Any]]] = {
    "keys and values of a neighbour": ({True: swapped}, {}),
    "the draft law of a neighbour": ({}, {"drafter": FromNeighbour}),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_planted_defects_change_the_law(defect: str) -> None:
    passes, more = DEFECTS[defect]
    assert far([row("sps", ROWS[0], **more), row("sps", ROWS[1], **more)], passes=passes) > 1e-3


class ToTheShortest(Sps):
    """Keeps no more of a draft than the row that keeps least: a rollback to the batch's minimum."""

    batch: ClassVar[Batch]

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        made = super().__call__(draft, q, noise)
        own = int((made.path >= 0).sum())
        least = self.batch.ask(2, "least", own, lambda every: [min(every)] * len(every))
        if least == own:
            return made
        path = torch.where(torch.arange(len(made.path)) < least, made.path, -1)
        return Verdict(path, draft.tokens[least], made.tested)


def test_a_rollback_to_the_shortest_is_exact_and_costs_passes() -> None:
    rows = [row("sps", pair) for pair in ROWS[:2]]
    slow = [replace(own, verifier=ToTheShortest()) for own in rows]

    def batch() -> Batch:
        ToTheShortest.batch = Batch(2)
        return ToTheShortest.batch

    proofs = [prove_batch(rows), prove_batch(slow, batch=batch)]
    assert all(proof.whole and proof.distance < 1e-12 for proof in proofs)
    assert proofs[1].rounds > 1.1 * proofs[0].rounds


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
    """Rows take turns in the middle of blocks of inference mode and autocast."""

    def modes() -> tuple[bool, bool, bool]:
        return (
            torch.is_inference_mode_enabled(),
            torch.is_grad_enabled(),
            torch.is_autocast_enabled("cpu"),
        )

    def within(rounds: int) -> list[tuple[bool, bool, bool]]:
        found = []
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            for _ in range(rounds):
                call(batch, 1, 0)
                found.append(modes())
                made = torch.ones(2, 2) @ torch.ones(2, 2)
                assert made.dtype == torch.bfloat16
                assert made.is_inference()
        call(batch, 2, 0)
        return [*found, modes()]

    def plain(rounds: int) -> list[tuple[bool, bool, bool]]:
        found = []
        for _ in range(rounds):
            call(batch, 1, 0)
            found.append(modes())
            made = torch.ones(2, 2, requires_grad=True) @ torch.ones(2, 2)
            assert made.requires_grad
            assert made.dtype == torch.float32
        with torch.no_grad():
            call(batch, 1, 0)
            return [*found, modes()]

    batch, inside, outside = Batch(4), (True, False, True), (False, True, False)
    before = modes()
    rows = sorted(
        batch.run([partial(within, 3), partial(plain, 5), partial(within, 4), partial(plain, 2)])
    )
    assert rows[0].result == [inside] * 3 + [outside]
    assert rows[2].result == [inside] * 4 + [outside]
    assert rows[1].result == [outside] * 5 + [(False, False, False)]
    assert rows[3].result == [outside] * 2 + [(False, False, False)]
    assert modes() == before
    with torch.inference_mode():  # a consumer's own
        for _ in batch.run([partial(within, 1), partial(plain, 1)]):
            assert torch.is_inference_mode_enabled()
