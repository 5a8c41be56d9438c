"""A budget of verified tokens over a batch: what is ranked, by what, and where the ranking ends."""

import pytest
import torch

from spsbench.errors import PlugInError
from spsbench.loop.guards import GuardedSchedule
from spsbench.loop.types import Draft, Drawn
from spsbench.methods.schedules.by_batch import Budget
from spsbench.metrics.costs_file import dumps
from tests.methods.schedules.test_learning import turn
from tests.planning.forecast.made import costs
from tests.planning.forecast.test_batches import in_batches

LAWS = torch.tensor([[0.5, 0.5], [0.9, 0.1], [0.2, 0.8]])


def drafted(laws=LAWS, parents=None):
    parents = None if parents is None else torch.tensor(parents)
    return Draft(torch.zeros(3, dtype=torch.int64), laws, parents)


def test_the_tokens_of_all_texts_are_ranked_by_survival():
    worths = [torch.tensor(own) for own in ([0.9, 0.5, 0.4], [0.6, 0.45], [], [0.4])]
    shares = [Budget(rows=n).share(worths) for n in range(8)]
    assert shares[1:5] == [[1, 0, 0, 0], [1, 1, 0, 0], [2, 1, 0, 0], [2, 2, 0, 0]]
    assert shares[5] == [2, 2, 0, 1]  # of equals the shallower
    assert shares[6] == shares[7] == [3, 2, 0, 1]
    assert shares[0] == [0, 0, 0, 0]


def test_survival_is_the_product_of_the_peaks_and_ignores_the_tokens():
    schedule = Budget()
    schedule.k([])
    worth = schedule.worth(drafted())
    assert worth.tolist() == pytest.approx([0.5, 0.45, 0.36])
    assert schedule.worth(Draft(torch.ones(3, dtype=torch.int64), LAWS)).equal(worth)
    for law in torch.tensor([[0.8, 0.2], [0.5, 0.5], [0.6, 0.4]]):  # at temperature 0 those of 1
        assert schedule.go_on(law)
    assert schedule.worth(drafted()).tolist() == pytest.approx([0.8, 0.4, 0.24])
    schedule.k([])
    laws = torch.tensor([[0.5, 0.5], [torch.nan] * 2, [0.2, 0.8]])
    assert schedule.worth(drafted(laws)).tolist() == pytest.approx([0.5, 0.5, 0.4])


def test_survival_without_laws_is_the_running_acceptance():
    schedule = Budget(alpha=0.5)
    schedule.k([])
    assert schedule.worth(drafted(None)).tolist() == [0.5, 0.25, 0.125]
    assert schedule.worth(drafted(None, [-1, 0, -1])).tolist() == [0.5, 0.25, 0.25]
    assert schedule.worth(drafted(LAWS, [-1, -1, 0])).tolist() == [0.5, 0.5, 0.25]
    schedule.k([turn(4, 4)] * 60)
    assert schedule.worth(drafted(None))[0] > 0.8
    assert schedule.worth(Draft(torch.empty(0, dtype=torch.int64), None)).shape == (0,)


def test_with_costs_the_ranking_ends_where_a_token_does_not_pay(tmp_path):
    file = tmp_path / "costs.json"
    table = costs(batches=in_batches(), weights=1)
    file.write_text(dumps(table))
    worths = [torch.tensor([0.9**i for i in range(1, 9)])] * 16
    free, paid = (Budget(rows=128, costs=name).share(worths) for name in ("", str(file)))
    assert sum(free) == 128
    n, seconds = (
        sum(paid),
        [
            float(table.batches.round("model small", 8, rows / 16, 16, 256)[0])
            for rows in range(129)
        ],
    )
    assert 0 < n < 128
    ranked = sorted((w for own in worths for w in own.tolist()), reverse=True)
    rates = [(16 + sum(ranked[:rows])) / seconds[rows] for rows in range(n + 2)]
    assert rates[: n + 1] == sorted(rates[: n + 1])
    assert rates[n + 1] <= rates[n]
    file.write_text(dumps(costs()))
    with pytest.raises(ValueError, match="batch is 2: expected up to 1"):
        Budget(costs=str(file))


def test_a_cut_keeps_the_first_tokens_and_what_does_not_fit_is_named():
    cut = GuardedSchedule(Budget(rows=2)).cut(drafted())
    assert cut.probs.equal(LAWS[:2])
    none = GuardedSchedule(Budget(rows=0)).cut(Draft(torch.zeros(3, dtype=torch.int64), LAWS))
    assert (len(none.tokens), none.probs, none.drawn) == (0, None, Drawn.IID)

    class TooMany(Budget):
        def share(self, worths):
            return [4]

    with pytest.raises(PlugInError, match=r"TooMany verifies 4 of 3 drafted tokens"):
        GuardedSchedule(TooMany()).cut(drafted())
