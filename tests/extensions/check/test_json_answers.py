"""`sps check --only json`: how answers are judged, compared with a baseline's, and refused."""

import json

import numpy as np
import pytest

from spsbench.audit.statistical.finding import AuditVerdict
from spsbench.extensions.check import modes, page
from spsbench.extensions.check.check import examine, run_check
from spsbench.extensions.check.journal import Journal
from spsbench.extensions.check.modes import JSON_PROMPTS, SCHEMAS
from spsbench.serving.http import Limits
from tests.extensions.check.stubs import Plan
from tests.oracles.stub import TARGET, Engine, Stub, serving

FEW = 6


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(modes, "JSON_PROMPTS", JSON_PROMPTS[:FEW])


def plan(own, base=None):
    return Plan(own, baseline=base, parts=("json",), limits=Limits(timeout=60, retries=1))


def beside(own, base):
    with serving(own) as url, serving(base) as baseline:
        return examine(plan(url, baseline))


def test_the_same_greedy_answers_hold_and_are_asked_as_chats_under_schemas():
    own = Stub(Engine())
    checked = beside(own, Stub(Engine()))
    assert checked.verdict is AuditVerdict.HELD
    assert sum(checked.modes["json"].counts.values()) == FEW
    assert f"server: 0 of {FEW} answers are JSON; baseline: 0 of" in page.sentence(checked)
    assert any("after the server's mask" in line for line in page.notes(checked))
    assert page.as_json(checked)["json"]["line"] == checked.json
    bodies = [body for body in own.asked if "messages" in body and body["max_tokens"] > 100]
    assert {body["temperature"] for body in bodies} == {0.0}
    assert len(bodies) == FEW


def test_speculation_that_changes_a_greedy_answer_is_a_bias():
    checked = beside(Stub(Engine(target=np.roll(TARGET, 1, axis=1))), Stub(Engine()))
    assert checked.verdict is AuditVerdict.BIAS


def test_without_a_baseline_nothing_is_audited():
    with serving(Stub(Engine())) as url:
        checked = examine(plan(url))
    assert checked.verdict is AuditVerdict.NOT_AUDITED
    assert "Json without a baseline" in page.sentence(checked)


def test_the_first_refusal_ends_the_mode_says_why_and_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(modes, "JSON_PROMPTS", JSON_PROMPTS)

    def refuses(number, http):
        if "messages" not in stub.asked[number - 1]:
            return False
        http.send({"error": {"message": "you must provide a chat template"}}, 400)
        return True

    stub, path = Stub(Engine(), trouble=refuses), tmp_path / "a.jsonl"
    with serving(stub) as url:
        checked = examine(plan(url), None, Journal(path))
    assert checked.verdict is AuditVerdict.UNKNOWN
    assert checked.refused == ["json"]
    assert page.sentence(checked).endswith("Json: refused.")
    shown = page.notes(checked)
    assert shown == ["json: refused (HTTP 400: you must provide a chat template)"]
    assert sum("messages" in body for body in stub.asked) <= 2 * plan(url).batch
    assert page.notes(run_check(None, {"resume": path})) == [
        "json: refused (HTTP 400: you must provide a chat template)"
    ]


def test_schemas_are_followed_by_the_library():
    pytest.importorskip("llguidance")
    from spsbench.settings.constraint import check_grammar

    for name, schema in SCHEMAS.items():
        check_grammar("json_schema", json.dumps(schema), name)
