"""Modes of a check against servers with a planted defect each, and against honest ones."""

import json

import numpy as np
import pytest

from spsbench.audit.statistical.comparison import GreedyKind
from spsbench.audit.statistical.finding import AuditVerdict
from spsbench.extensions.check import modes, page
from spsbench.extensions.check.check import run_check
from spsbench.extensions.check.journal import Journal
from spsbench.extensions.check.modes import JSON_PROMPTS, LONG, SCHEMAS, count_cached, long_prompt
from spsbench.extensions.check.options import MODES, PROMPTS
from tests.extensions.check.stubs import check, of_stub, weights
from tests.oracles.stub import TARGET, Engine, Stub, serving

FEW = 3  # JSON prompts, one of each schema


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(modes, "JSON_PROMPTS", JSON_PROMPTS[:FEW])


def of_mode(stub, part, **more):
    result = of_stub(stub, parts=(part,), **more)
    return result, result.modes.get(part)


def test_all_modes_hold_on_an_honest_server(few):
    result = of_stub(Stub(Engine()), parts=MODES[:3])
    assert result.verdict is AuditVerdict.HELD, page.notes(result)
    assert [*result.modes] == list(MODES[:3])
    assert all({*mode.counts} == {GreedyKind.IDENTICAL} for mode in result.modes.values())
    assert all(mode.planted for mode in result.modes.values())
    assert "mixed against greedy texts in batches of their own" in page.sentence(result).lower()


@pytest.mark.parametrize(
    ("defect", "part"),
    [({"draws_greedy_beside_sampled": True}, "mixed"), ({"second_differs": True}, "cache")],
)
def test_a_planted_defect_is_found_by_its_mode(defect, part):
    result, mode = of_mode(Stub(Engine(), **defect), part)
    assert mode.counts[GreedyKind.BUG], mode.line
    assert result.verdict is AuditVerdict.BIAS
    assert f"{part} against" in page.sentence(result).lower()


def test_the_distribution_of_long_prompts_is_that_of_prompts_asked_again():
    stub = Stub(Engine())
    found = of_stub(stub, weights(), parts=("law", "cache"), bias=0.3)
    assert found.verdict is AuditVerdict.HELD, found.law.line
    sampled = [body["prompt"] for body in stub.asked if body["max_tokens"] == 16]
    drawn = [tuple(prompt) for prompt in sampled if len(prompt) > 100]
    assert len(set(drawn)) == 4 < len(drawn)


def test_long_prompts_begin_differently():
    texts = [long_prompt(PROMPTS, i) for i in range(4)]
    assert len({text[:20] for text in texts}) == 4
    assert all(LONG <= len(text) < 2 * LONG for text in texts)
    assert len(long_prompt(("a",), 0)) >= LONG


def test_tokens_from_a_cache_are_read_from_metrics():
    metrics = 'vllm:prefix_cache_hits_total{model="a"} 12.0\nvllm:prefix_cache_queries_total 5\n'
    assert count_cached(metrics) == 12
    assert count_cached("other 1\n") is count_cached(None) is None


# JSON under schemas.


def test_the_same_greedy_json_holds_and_another_is_a_bias(few):
    own, other = Stub(Engine()), Stub(Engine(target=np.roll(TARGET, 1, axis=1)))
    with serving(own) as url, serving(Stub(Engine())) as base, serving(other) as biased:
        checked = check(url, baseline=base, parts=("json",))
        assert check(biased, baseline=base, parts=("json",)).verdict is AuditVerdict.BIAS
    assert checked.verdict is AuditVerdict.HELD
    assert sum(checked.modes["json"].counts.values()) == FEW
    assert f"server: 0 of {FEW} answers are JSON; baseline: 0 of" in page.sentence(checked)
    bodies = [body for body in own.asked if "messages" in body and body["max_tokens"] > 100]
    assert {body["temperature"] for body in bodies} == {0.0}
    assert len(bodies) == FEW


def test_json_without_a_baseline_is_compared_with_what_the_server_states(few):
    result = of_stub(Stub(Engine()), parts=("json",))
    assert result.verdict is AuditVerdict.HELD
    assert "what the server itself states (server: 0 of" in result.modes["json"].reference


def test_the_first_refusal_ends_the_mode_says_why_and_is_kept(tmp_path):
    def refuses(number, http):
        if "messages" not in stub.asked[number - 1]:
            return False
        http.send({"error": {"message": "you must provide a chat template"}}, 400)
        return True

    stub, path = Stub(Engine(), trouble=refuses), tmp_path / "a.jsonl"
    with serving(stub) as url:
        checked = check(url, journal=Journal(path), parts=("json",))
    assert checked.verdict is AuditVerdict.UNKNOWN
    assert checked.refused == ["json"]
    shown = page.notes(checked)
    assert shown == ["json: refused (HTTP 400: you must provide a chat template)"]
    assert sum("messages" in body for body in stub.asked) <= 2 * checked.plan.batch
    assert page.notes(run_check(None, {"resume": path})) == shown


def test_schemas_are_followed_by_the_library():
    pytest.importorskip("llguidance")
    from spsbench.settings.constraint import check_grammar

    for name, (schema, _) in SCHEMAS.items():
        check_grammar("json_schema", json.dumps(schema), name)
