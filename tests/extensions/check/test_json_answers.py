"""JSON answers of a server: how they are judged, and what is told of speculation."""

import asyncio
import json
from collections import Counter

import pytest

from spsbench.audit.statistical.audit import AuditVerdict
from spsbench.audit.statistical.comparison import GreedyKind
from spsbench.errors import UsageError
from spsbench.extensions.check import json_answers, page
from spsbench.extensions.check.check import Checked, examine
from spsbench.extensions.check.json_answers import (
    PROMPTS,
    SCHEMAS,
    AnswerKind,
    JsonResult,
    classify,
    examine_json,
    mcnemar,
    share_interval,
)
from spsbench.extensions.check.plan import Plan
from spsbench.serving.engines import Answer
from spsbench.serving.http import Limits, RefusedError
from tests.serving.stub import Engine, Stub, serving

pytest.importorskip("jsonschema")

GOOD = '{"name": "Ada", "age": 36}'


def answer(text, finish="stop", keys=(), stated=None):
    keys = list(keys)
    own = [-0.1] * len(keys)
    rows = stated or [[(key, -0.1), ("other", -3.0)] for key in keys]
    return Answer(text, keys, own, rows, finish)


@pytest.mark.parametrize(
    ("text", "finish", "kind"),
    [
        (GOOD, "stop", AnswerKind.VALID),
        ('{"name": "Ada", "age": 360}', "stop", AnswerKind.VIOLATING),
        ("Ada is 36.", "stop", AnswerKind.NO_JSON),
        ('{{"name": "Ada", "age": 36}', "stop", AnswerKind.DOUBLED),
        ('{"name": "Ad', "length", AnswerKind.CUT),
        ('{"name": "Ada",' + 60 * "\n", "length", AnswerKind.WHITE),
    ],
)
def test_an_answer_is_of_one_kind(text, finish, kind):
    assert classify(answer(text, finish), SCHEMAS["person"]) is kind


def test_intervals_of_clopper_and_pearson():
    assert share_interval(200, 200) == (pytest.approx(0.9817, abs=1e-4), 1)
    low, high = share_interval(5, 10)
    assert (low, high) == (pytest.approx(0.1871, abs=1e-4), pytest.approx(0.8129, abs=1e-4))
    assert share_interval(0, 0) == (0.0, 1.0)


def test_the_paired_test_is_exact():
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(5, 5) == 1.0
    assert mcnemar(0, 10) == pytest.approx(2 / 2**10)


async def all_of(jobs):
    return [await job() for job in jobs]


def asked(texts, few=10):
    """The result of servers that answer by (server, temperature, prompt) -> answer."""
    requests = []

    async def send(name, key, ask):
        requests.append(ask)
        made = texts(name, ask.temperature, int(key.rpartition("/")[2]))
        if isinstance(made, Exception):
            raise made
        return made

    names = ["server", "baseline"]
    made = examine_json(
        names, send, all_of, seed=3, top=dict.fromkeys(names, 2), level=1e-3,
        prompts=[("person", "who?")] * few,
    )  # fmt: skip
    return asyncio.run(made), requests


def test_the_same_answers_hold():
    result, requests = asked(lambda *_: answer(GOOD, keys=["{", "}"]))
    assert result.pairs == (0, 0)
    assert not result.bug
    assert Counter(text.kind for text in result.compared) == {GreedyKind.IDENTICAL: 10}
    assert len(requests) == 40
    ask = requests[0]
    assert (ask.chat, ask.ignore_eos, ask.constraint[0]) == (True, False, "json_schema")
    assert json.loads(ask.constraint[1]) == SCHEMAS["person"]
    checked = Checked(url="u", engine="e", model="m", plan=Plan("u", parts=("json",)), json=result)
    assert checked.verdict is AuditVerdict.HELD
    assert "20 of 20 valid" in page.sentence(checked)
    assert page.as_json(checked)["json"]["p"] == 1.0
    assert any("after the server's mask" in line for line in page.notes(checked))
    assert page.tables(checked)


def test_speculation_that_breaks_answers_is_found():
    broken = answer('{{"name"', keys=["{{", "}"])

    def texts(name, temperature, number):
        return broken if name == "server" and number % 2 == 0 else answer(GOOD, keys=["{", "}"])

    result, _ = asked(texts, few=24)
    assert result.pairs == (0, 24)
    assert result.bug
    assert result.wrong == 24
    checked = Checked(url="u", engine="e", model="m", plan=Plan("u", parts=("json",)), json=result)
    assert checked.verdict is AuditVerdict.BIAS


def test_a_refused_request_is_an_error_of_one_answer():
    def texts(name, temperature, number):
        return RefusedError("no", 400, "no") if number == 0 else answer(GOOD)

    result, _ = asked(texts, few=3)
    assert result.kinds["server"].count(AnswerKind.ERROR) == 2
    assert result.errors


def test_without_a_baseline_nothing_is_audited():
    result = JsonResult(level=1e-3, kinds={"server": [AnswerKind.VALID]})
    checked = Checked(url="u", engine="e", model="m", plan=Plan("u", parts=("json",)), json=result)
    assert checked.verdict is AuditVerdict.NOT_AUDITED
    assert "Json without a baseline" in page.sentence(checked)


def test_a_server_without_schemas_is_told(monkeypatch):
    monkeypatch.setattr(json_answers, "PROMPTS", PROMPTS[:3])
    with serving(Stub(Engine())) as own, serving(Stub(Engine())) as base:
        plan = Plan(own, baseline=base, parts=("json",), limits=Limits(timeout=60, retries=1))
        checked = examine(plan, None)
    kinds = checked.json.kinds
    assert list(map(len, kinds.values())) == [6, 6]
    assert set(kinds["server"]) <= {AnswerKind.NO_JSON, AnswerKind.CUT, AnswerKind.ERROR}
    assert checked.verdict in (AuditVerdict.HELD, AuditVerdict.BIAS)


def test_prompts_are_two_hundred_over_five_schemas():
    assert len(PROMPTS) == len(set(PROMPTS)) == 200
    assert Counter(name for name, _ in PROMPTS) == dict.fromkeys(SCHEMAS, 40)
    with pytest.raises(UsageError, match="law, greedy, speed, json"):
        Plan("u", parts=("xml",))


def test_schemas_are_followed_by_the_library():
    pytest.importorskip("llguidance")
    from spsbench.settings.constraint import check_grammar

    for name, schema in SCHEMAS.items():
        check_grammar("json_schema", json.dumps(schema), name)
