"""Modes of a check against servers with a planted defect each, and against honest ones."""

import pytest

from spsbench.audit.statistical.comparison import GreedyKind
from spsbench.audit.statistical.finding import AuditVerdict
from spsbench.errors import UsageError
from spsbench.extensions.check import page
from spsbench.extensions.check.modes import (
    LONG,
    against_cut,
    cached,
    common_word,
    long_prompt,
    stop_string,
)
from spsbench.extensions.check.options import MODES, PROMPTS
from spsbench.serving.engines import Answer
from tests.extensions.check.stubs import Plan, of_stub, weights
from tests.oracles.stub import Engine, Stub

ALL = {GreedyKind.IDENTICAL}


def of_mode(stub, part, **more):
    result = of_stub(stub, parts=(part,), length=16, **more)
    return result, result.modes.get(part)


def test_all_modes_hold_on_an_honest_server():
    result = of_stub(Stub(Engine()), parts=MODES, length=16)
    assert result.verdict is AuditVerdict.HELD, page.notes(result)
    assert {part: set(mode.counts) for part, mode in result.modes.items()} == {
        "mixed": ALL,
        "stop": ALL,
        "cache": ALL,
    }
    assert all(mode.planted for mode in result.modes.values())
    assert "mixed against greedy texts in batches of their own" in page.sentence(result).lower()


@pytest.mark.parametrize(
    ("defect", "part"),
    [
        ({"draws_greedy_beside_sampled": True}, "mixed"),
        ({"stops_late": 1}, "stop"),
        ({"second_differs": True}, "cache"),
    ],
)
def test_a_planted_defect_is_found_by_its_mode(defect, part):
    result, mode = of_mode(Stub(Engine(), **defect), part)
    assert mode.counts[GreedyKind.BUG], mode.line
    assert result.verdict is AuditVerdict.BIAS
    assert f"{part} against" in page.sentence(result).lower()


def test_a_defect_of_one_mode_is_none_of_plain_greedy_text():
    found = of_stub(
        Stub(Engine(), draws_greedy_beside_sampled=True, stops_late=1, second_differs=True),
        parts=("greedy",),
        length=16,
    )
    assert found.verdict is AuditVerdict.HELD


def test_a_stop_string_that_is_ignored_is_a_bug():
    stub = Stub(Engine())
    stub.printed_stop = lambda made, stop: ""
    assert of_mode(stub, "stop")[1].counts == {GreedyKind.BUG: 8}


@pytest.mark.parametrize("scored", [False, True])
def test_texts_that_stop_strings_end_hold_by_their_law(scored):
    stub = Stub(Engine())
    found = of_stub(stub, weights() if scored else None, parts=("law", "stop"), bias=0.3)
    assert found.verdict is AuditVerdict.HELD, found.law.line
    stopped = [body for body in stub.asked if body.get("stop") and body["temperature"] > 0]
    assert len(stopped) >= 16
    assert len({body["stop"][0] for body in stopped}) == 1


def test_a_biased_server_is_found_in_texts_that_stop_strings_end():
    found = of_stub(Stub(Engine(defect="verifies greedily")), parts=("law", "stop"))
    assert found.law.verdict is AuditVerdict.BIAS


def test_the_law_of_long_prompts_is_that_of_prompts_asked_again():
    stub = Stub(Engine())
    found = of_stub(stub, weights(), parts=("law", "cache"), bias=0.3)
    assert found.verdict is AuditVerdict.HELD, found.law.line
    sampled = [body["prompt"] for body in stub.asked if body["max_tokens"] == 32]
    drawn = [tuple(prompt) for prompt in sampled if len(prompt) > 100]
    assert len(set(drawn)) == 4 < len(drawn)


def test_a_mode_that_the_server_refuses_leaves_the_others():
    def refuses(number, http):
        if not stub.asked[number - 1].get("stop"):
            return False
        http.send({"error": {"message": "stop is not supported"}}, 400)
        return True

    stub = Stub(Engine(), trouble=refuses)
    found = of_stub(stub, parts=("greedy", "mixed", "stop"), length=16)
    assert found.verdict is AuditVerdict.UNKNOWN
    assert found.refused == ["stop"]
    assert found.modes["mixed"].verdict is AuditVerdict.HELD
    assert any("stop is not supported" in line for line in page.notes(found))


def answer(text, keys=None):
    return Answer(text, keys or [], [], [], "stop")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("one two", GreedyKind.IDENTICAL),
        ("one two three", GreedyKind.BUG),
        ("one two three four", GreedyKind.BUG),
        ("one", GreedyKind.BUG),
        ("one 2", GreedyKind.UNKNOWN),
    ],
)
def test_where_a_text_is_cut(text, kind):
    whole = answer("one two three four")
    assert against_cut("a", whole, " three", answer(text), set()).kind is kind


def test_stop_strings_are_words_of_the_middle():
    assert stop_string("") == stop_string("one") == ""
    assert stop_string("one two three four") == " three"
    assert stop_string("a a a b a a") == " b"
    assert common_word(["of the sea", "the end", "a the"]) == " the"
    assert common_word([]) == ""


def test_long_prompts_begin_differently():
    texts = [long_prompt(PROMPTS, i) for i in range(4)]
    assert len({text[:20] for text in texts}) == 4
    assert all(LONG <= len(text) < 2 * LONG for text in texts)
    assert len(long_prompt(("a",), 0)) >= LONG


def test_tokens_from_a_cache_are_read_from_metrics():
    metrics = 'vllm:prefix_cache_hits_total{model="a"} 12.0\nvllm:prefix_cache_queries_total 5\n'
    assert cached(metrics) == 12
    assert cached("other 1\n") is cached(None) is None


def test_a_mixed_batch_of_one_request_is_refused():
    with pytest.raises(UsageError):
        Plan("http://localhost", parts=("mixed",), together=1)
