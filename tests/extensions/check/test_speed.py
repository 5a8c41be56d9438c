"""Figures of timed answers in numbers, and counts of tokens that cannot be."""

import json
import math

import pytest

from spsbench.audit.statistical.finding import AuditVerdict
from spsbench.extensions.check import page
from spsbench.extensions.check.check import examine_server
from spsbench.extensions.check.speed import Timed, compare_requests, figures_of
from spsbench.serving.engines import Answer
from tests.extensions.check.stubs import Plan
from tests.oracles.stub import Engine, Stub, serving


def block(*speeds, began=0.0):
    """Answers of 11 tokens: the first at half a second, then one in each `speed` seconds."""
    return [Timed(i, 0.5, 10 * s, 11, 0.5 + 10 * s, 11, began + i) for i, s in enumerate(speeds)]


def test_the_figures_of_one_server():
    found = figures_of("one", 2, [block(0.1, 0.3)])
    assert found.ttft.mean == pytest.approx(0.5)
    assert found.tpot.mean == pytest.approx(0.2)  # 4 s for 20 tokens
    assert found.user.mean == pytest.approx(22 / 5)
    assert found.machine == pytest.approx(22 / 4.5)  # from 0 to 1 + 3.5 s
    assert found.failed == 0


def test_twice_as_fast_is_a_ratio_of_two():
    fast, slow = [block(0.1, 0.2)], [block(0.2, 0.4)]
    sides = figures_of("own", 1, fast), figures_of("base", 1, slow)
    found = compare_requests(1, fast, slow, *sides)
    assert found.tpot.mean == pytest.approx(2)
    assert found.ttft.mean == pytest.approx(1)
    assert found.user.mean == pytest.approx((0.5 * 2 + 6) / (0.5 * 2 + 3))
    assert found.machine == pytest.approx(sides[0].machine / sides[1].machine)


def test_a_failed_answer_is_in_no_pair():
    fast, slow = [[None, *block(0.1, 0.1)[1:]]], [block(0.3, 0.2)]
    sides = figures_of("own", 1, fast), figures_of("base", 1, slow)
    found = compare_requests(1, fast, slow, *sides)
    assert (found.pairs, sides[0].failed) == (1, 1)
    assert found.tpot.mean == pytest.approx(2)


def answer(count, ids=None, pieces=4):
    stamps = [0.1 * (i + 1) for i in range(pieces)]
    return Answer("a b c", [], [], [], "length", ids=ids, count=count, stamps=stamps, seconds=1.0)


@pytest.mark.parametrize(
    ("count", "ids", "words"),
    [
        (8, None, ""),
        (None, None, ""),
        (4, None, ""),
        (3, None, ""),  # the last piece may have been held back
        (8, list(range(8)), ""),
        (None, list(range(8)), ""),
        (-4, None, "counts -4 tokens"),
        (-4, list(range(8)), "counts -4 tokens"),
        (2**70, None, "1180591620717411303424 tokens where 8 were asked for"),
        (9, None, "9 tokens where 8 were asked for"),
        (9, list(range(8)), "counts 9 tokens and lists 8 ids"),
        (9, list(range(9)), "9 tokens where 8 were asked for"),
        (2, None, "counts 2 tokens in 4 pieces of text"),
        (0, None, "counts 0 tokens in 4 pieces of text"),
        ("5", None, "counts 5 tokens"),
        ([1], None, "counts [1] tokens"),
        (True, None, "counts True tokens"),
        (8.0, None, "counts 8.0 tokens"),
        (math.nan, None, "counts nan tokens"),
        (10**300, None, "tokens where 8 were asked for"),
    ],
)
def test_a_count_is_believed_where_it_can_be(count, ids, words):
    line = answer(count, ids).miscount(8)
    assert words in line
    assert bool(words) is bool(line)
    timed = Timed.of(answer(count, ids), 0, 0.0, 8)
    assert (timed.tokens is None) is bool(words)
    found = figures_of("one", 1, [[timed]])
    assert found.ttft.mean == pytest.approx(0.1)
    assert ((found.tpot, found.user, found.machine) == (None,) * 3) is bool(words)


def test_an_answer_without_a_count_leaves_the_others_their_times():
    timed = block(0.1, 0.1)
    timed[0] = Timed(0, 0.7, 9.0, None, 9.7, 11)
    found = figures_of("one", 1, [timed])
    assert found.ttft.mean == pytest.approx(0.6)
    assert found.tpot.mean == pytest.approx(0.1)
    assert found.machine is None
    base = [block(0.2, 0.2)]
    both = compare_requests(1, [timed], base, found, figures_of("base", 1, base))
    assert (both.pairs, both.machine) == (1, None)
    assert both.tpot.mean == pytest.approx(2)


def test_speed_alone_is_no_audit():
    stub = Stub(Engine(defect="verifies greedily"), says_more=3)
    with serving(stub) as url:
        plan = Plan(url, parts=("speed",), length=8, concurrency=(2,), requests=4, retries=0)
        found = examine_server(plan)
    assert found.verdict is AuditVerdict.NOT_AUDITED
    assert page.sentence(found).startswith("NOT AUDITED: ")
    assert ". ." not in page.sentence(found)
    assert "server: counts 11 tokens and lists 8 ids, so that its speed is n/a" in found.notes
    values = json.loads(json.dumps(page.to_plain_values(found), allow_nan=False))
    assert values["speed"][0]["machine"] is None
    assert values["speed"][0]["failed"] == 0
    assert page.as_html(found, "0").count("n/a") >= 3


@pytest.mark.parametrize("per_request", [True, False])
def test_speed_alone_tells_acceptance(per_request):
    with serving(Stub(Engine(), per_request=per_request)) as url:
        plan = Plan(url, parts=("speed",), length=8, concurrency=(2,), requests=4, retries=0)
        found = examine_server(plan)
    assert found.acceptance.rounds > 0
    assert 0 < found.acceptance.accepted < found.acceptance.drafted
