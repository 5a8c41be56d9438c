"""Children of one node: independent, or each from what those before it left."""

from collections import Counter
from itertools import permutations

import torch

from spsbench.loop.sampling import independent, sample, without_replacement


def laws(rows: int, vocab: int, seed: int, zeros: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    law = torch.rand(rows, vocab, generator=generator)
    if zeros:
        law *= torch.rand(rows, vocab, generator=generator) < 0.6
        law[:, 0] += 1e-3
    return law / law.sum(-1, keepdim=True)


def uniforms(rows: int, width: int) -> torch.Tensor:
    return torch.rand(rows, width, dtype=torch.float64, generator=torch.Generator().manual_seed(9))


def test_independent_ones_are_those_of_one_draw_each() -> None:
    law, u = laws(40, 300, 1, zeros=True), uniforms(40, 6)
    drawn = independent(law, u)
    for j in range(6):
        assert torch.equal(drawn[:, j], sample(law, u[:, j]))


def test_without_replacement_is_drawing_from_what_is_left() -> None:
    for zeros in False, True:
        law, u = laws(400, 50, 2, zeros), uniforms(400, 6)
        drawn, left = without_replacement(law, u), law.clone()
        rows = torch.arange(400)
        for j in range(6):
            assert torch.equal(drawn[:, j], sample(left, u[:, j]))
            assert (left[rows, drawn[:, j]] > 0).all()
            left[rows, drawn[:, j]] = 0


def test_the_ends_of_every_step_of_a_law_with_gaps() -> None:
    """Uniforms at 0 and just below 1, where what was taken is first, last or between."""
    law = torch.tensor([[0.0, 0.5, 0.0, 0.25, 0.25, 0.0]])
    ends = [0.0, 0.25, 0.5, 0.75, 1 - 2**-53]
    for a in ends:
        for b in ends:
            for c in ends:
                drawn = without_replacement(law, torch.tensor([[a, b, c]], dtype=torch.float64))
                assert sorted(drawn[0].tolist()) == [1, 3, 4]


def test_orders_come_as_often_as_they_should() -> None:
    law = laws(1, 4, 5)[0].double()
    drawn = without_replacement(law.expand(20000, -1), uniforms(20000, 2))
    seen = Counter(map(tuple, drawn.tolist()))
    for a, b in permutations(range(4), 2):
        chance = float(law[a] * law[b] / (1 - law[a]))
        assert abs(seen[a, b] - 20000 * chance) < 5 * (20000 * chance) ** 0.5
