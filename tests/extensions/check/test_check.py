"""`sps check` against a stub: planted defects are found where they can be seen."""

import json

import numpy as np
import pytest

from spsbench.audit.statistical.comparison import GreedyKind
from spsbench.audit.statistical.finding import AuditVerdict
from spsbench.audit.statistical.positions import DraftPreferred
from spsbench.errors import DataError, UnavailableError
from spsbench.extensions.check import page
from spsbench.extensions.check.bets import Mode
from spsbench.extensions.check.check import examine_server
from spsbench.extensions.check.journal import Journal
from tests.extensions.check.stubs import SEEN, TEXT, UNSEEN, Plan, check, encode, of_stub, weights
from tests.oracles.stub import DEFECTS, DRAFT, SIZE, TARGET, Engine, Stub, serving, table
from tests.variants import first


def quick_first(defects, quick):
    """All of them, those that are not quick marked as slow."""
    return [d if d in quick else pytest.param(d, marks=pytest.mark.slow) for d in defects]


@pytest.mark.parametrize("defect", quick_first(SEEN, SEEN[1:2]))
def test_a_defect_is_found_by_logprobs_alone(defect):
    found = of_stub(Stub(Engine(defect=defect)), parts=("law",), bias=0.05)
    assert found.law.mode is Mode.STATED
    assert found.verdict is AuditVerdict.BIAS, found.law.line
    assert "BIAS FOUND" in page.sentence(found)


@pytest.mark.parametrize(
    ("more", "hides"),
    [({}, False), ({"ends": None}, True), ({"schema": "vllm"}, True)],
    ids=["listed end", "no end", "end in spite of ignore_eos"],
)
def test_all_tokens_are_bet_on_where_a_server_lists_its_ends(more, hides):
    stub = Stub(**{"schema": "llama-server", "ends": 3, **more})
    sampled = of_stub(stub, parts=("law",), bias=0.3).law
    counts_drafts = stub.schema == "vllm"  # else that none was biased is all that is known
    expected = AuditVerdict.HELD if counts_drafts else AuditVerdict.UNKNOWN
    assert (sampled.mode, sampled.verdict) == (Mode.STATED, expected)
    assert sampled.finding.claim
    assert sampled.finding.audited.hides is hides


@pytest.mark.parametrize("scored", first(1, [False, True]))
def test_a_server_that_lists_fewer_tokens_than_it_counts_cannot_be_told(scored):
    stub = Stub(schema="llama-server", ends=3, says_more=1)
    sampled = of_stub(stub, weights() if scored else None, parts=("law",), bias=0.3).law
    assert sampled.verdict is AuditVerdict.UNKNOWN
    assert sampled.finding.audited.broken


@pytest.mark.slow
@pytest.mark.parametrize("defect", UNSEEN)
def test_what_logprobs_alone_cannot_see_is_said(defect):
    found = of_stub(Stub(Engine(defect=defect)), parts=("law",))
    assert found.verdict is AuditVerdict.HELD
    words = {"first token drawn twice": "not the one that is fed"}
    assert words.get(defect, "temperature is not applied") in page.notes(found)[-1]


@pytest.mark.parametrize("defect", quick_first(DEFECTS, ["first token drawn twice"]))
def test_a_defect_is_found_by_weights(defect):
    found = of_stub(Stub(Engine(defect=defect)), weights(), parts=("law",), bias=0.05)
    assert found.law.mode is Mode.WEIGHTS
    assert found.verdict is AuditVerdict.BIAS, found.law.line


def test_what_the_draft_model_prefers_is_bet_on_where_it_is_given():
    found = of_stub(
        Stub(Engine(defect="no residual")), weights(), weights(DRAFT), parts=("law",), bias=0.05
    )
    assert found.verdict is AuditVerdict.BIAS
    assert max(found.law.finding.audited.shares, key=lambda d: d.z).direction == DraftPreferred.name


@pytest.mark.parametrize(
    ("schema", "scored"),
    [
        ("vllm", False),
        pytest.param("sglang", False, marks=pytest.mark.slow),
        pytest.param("vllm", True, marks=pytest.mark.slow),
        pytest.param("openai", True, marks=pytest.mark.slow),
    ],
)
def test_an_honest_server_holds(schema, scored):
    found = of_stub(Stub(Engine(), schema), weights() if scored else None)
    assert found.verdict is AuditVerdict.HELD, found.law.line
    assert found.law.finding.control.passed
    assert found.greedy.counts == {GreedyKind.IDENTICAL: 8}


@pytest.mark.parametrize("schema", ["vllm", pytest.param("sglang", marks=pytest.mark.slow)])
def test_a_baseline_scores_what_the_server_misstates(schema):
    """With its own logprobs alone, this one holds."""
    own, base = Stub(Engine(defect="first token drawn twice"), schema), Stub(Engine(k=0), schema)
    with serving(own) as url, serving(base) as other:
        found = check(url, parts=("law",), baseline=other)
    assert found.law.mode is Mode.BASELINE
    assert found.verdict is AuditVerdict.BIAS
    assert not found.law.finding.plain.alarmed


def test_a_temperature_that_is_changed_is_found():
    found = of_stub(Stub(Engine(actual=0.6)), parts=("law",))
    assert found.verdict is AuditVerdict.BIAS
    assert "too often" in found.law.line


def test_a_bias_of_the_baseline_is_no_bias_of_the_server():
    with serving(Stub(Engine())) as url, serving(Stub(Engine(k=0, actual=0.5))) as other:
        found = check(url, parts=("law",), baseline=other)
    assert "in plain sampling already" in found.law.line


@pytest.mark.parametrize(
    ("logprobs", "kind"), [(False, GreedyKind.ALONE), (True, GreedyKind.IDENTICAL)]
)
def test_without_ids_the_distribution_cannot_be_told(logprobs, kind):
    found = of_stub(Stub(Engine(), "openai", logprobs=logprobs))
    assert "CANNOT BE DECIDED" in page.sentence(found)
    assert (found.verdict, found.law) == (AuditVerdict.UNKNOWN, None)
    assert any("no ids" in line and "`weights`" in line for line in found.notes)
    assert found.greedy.counts == {kind: 8}


def test_ids_alone_are_enough_for_weights():
    stub = Stub(Engine(defect="verifies greedily"), logprobs=False)
    assert of_stub(stub, weights()).verdict is AuditVerdict.BIAS


def test_weights_of_another_model_are_refused_before_any_bet():
    refused = pytest.raises(DataError)
    with serving(stub := Stub(Engine(), "openai")) as url, refused:
        check(url, weights(table(7)))
    assert not any(body["temperature"] == 1 and body["max_tokens"] > 2 for body in stub.asked)


def test_a_second_bos_is_found_by_its_ids():
    scored = weights(bos=3, chat=lambda text: [3, *encode(text)])
    found = of_stub(Stub(Engine(), second_bos=3), scored, parts=("greedy",), chat=True)
    assert found.notes == []  # it is the server's only one, by the ids that it gives
    twice = weights(bos=3, chat=lambda text: [3, *encode(text)])
    with serving(stub := Stub(Engine(), second_bos=3)) as url:
        stub.encode = lambda text: [3, *encode(text)]
        found = check(url, twice, parts=("greedy",), chat=True)
    assert any("second BOS" in line for line in found.notes)
    assert found.verdict is AuditVerdict.HELD


def test_other_prompt_tokens_than_the_tokenizers_are_refused():
    stub = Stub(Engine(), "openai", encode=lambda text: [1, 2, *encode(text)])
    with serving(stub) as url, pytest.raises(DataError):
        check(url, weights())


def test_greedy_texts_that_differ_are_a_tie_or_a_bug():
    other = TARGET.copy()
    best = np.argsort(-TARGET, axis=1)
    for row in range(SIZE):  # the second choice becomes the first
        other[row, best[row, 1]] = TARGET[row, best[row, 0]] + 0.5
    with serving(Stub(Engine(other))) as url, serving(Stub(Engine(k=0))) as base:
        found = check(url, parts=("greedy",), baseline=base)
    assert found.greedy.verdict is AuditVerdict.BIAS
    assert found.verdict is AuditVerdict.BIAS


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    kept = tmp_path_factory.mktemp("kept") / "answers.jsonl"
    near = 0.9 * TARGET + 0.2 * table(1)
    with serving(Stub(Engine(draft=near))) as url, serving(Stub(Engine(k=0))) as base:
        plan = Plan(
            url, baseline=base, parts=("greedy", "speed"), length=16, concurrency=(1, 4), retries=1
        )
        return examine_server(plan, None, Journal(kept)), kept


def test_acceptance_is_given_in_both_vocabularies(whole):
    accepted = whole[0].acceptance
    figures = {name: value for name, value, _ in accepted.rows()}
    assert figures["tokens a pass, accepted + 1"] == pytest.approx(
        1 + sum(accepted.kept) / accepted.rounds
    )
    tau = figures["block efficiency tau, emitted / rounds"]
    assert tau is None  # vLLM counts rounds with a draft alone, and all tokens
    first, second = (f"position {i} accepted, where those before were" for i in (1, 2))
    marginal = figures["position 2 accepted, of all rounds"]
    assert figures[first] * figures[second] == pytest.approx(marginal)


def test_speed_is_paired_with_the_baseline(whole):
    found = whole[0]
    assert [(each.server, each.concurrency) for each in found.speed] == [
        ("server", 1), ("baseline", 1), ("server", 4), ("baseline", 4),
    ]  # fmt: skip
    for each in found.speed:
        assert (each.requests, each.failed) == (32, 0)
        assert each.ttft.low is not None
    assert [each.pairs for each in found.against_baseline] == [32, 32]


def test_pages_and_json_say_the_same(whole):
    values = json.loads(json.dumps(page.to_plain_values(whole[0])))
    shown = page.as_html(whole[0], "0")
    assert values["verdict"] == "held"
    assert values["sentence"].replace("'", "&#x27;") in shown
    assert "<script" not in shown


def test_a_server_that_stops_costs_nothing_but_time(tmp_path):
    kept = tmp_path / "kept.jsonl"
    stub = Stub(Engine(), ends_after=20)
    with serving(stub) as url:
        plan = Plan(url, parts=TEXT, bias=0.15, length=16, retries=1)
        with pytest.raises(UnavailableError):
            examine_server(plan, None, Journal(kept))
        before = len(kept.read_text().splitlines())
        with kept.open("a") as file:
            file.write('{"key": "half')
        stub.ends_after, asked = None, len(stub.asked)
        found = examine_server(plan, None, Journal(kept, resume=True))
        texts = [line for line in kept.read_text().splitlines() if '"server/' in line]
        assert before > 10
        assert len(stub.asked) - asked < len(texts)  # those that are kept are not asked for again
        assert len({json.loads(line)["key"] for line in texts}) == len(texts)
        assert found.verdict is AuditVerdict.HELD


def test_a_request_that_fails_is_counted_and_not_timed():
    def fails(number, http):
        with stub.lock:
            last = stub.asked[number - 1]
        if not last.get("stream") or "France" not in last["prompt"]:
            return False
        http.send({"error": "busy"}, 503)
        return True

    stub = Stub(Engine(), trouble=fails)
    with serving(stub) as url:
        found = check(url, parts=("speed",), concurrency=(4,), length=8)
    (timed,) = found.speed
    assert (timed.requests, timed.failed) == (32, 2)


@pytest.mark.parametrize(
    "cut", first(1, [{"top_p": 0.7, "top_k": 6}, {"top_p": 0.8}, {"top_k": 4}])
)
def test_texts_that_are_cut_hold_by_the_cut_distribution(cut):
    stub = Stub(Engine())
    found = of_stub(stub, weights(), parts=("law",), bias=0.3, **cut)
    assert found.verdict is AuditVerdict.HELD, found.law.line
    sampled = [a for a in stub.asked if a["max_tokens"] == 16 and a["temperature"] > 0]
    assert all(asked[name] == value for asked in sampled for name, value in cut.items())


def test_a_cut_that_is_not_applied_is_found():
    stub = Stub(Engine(ignores_cuts=True))
    found = of_stub(stub, weights(), parts=("law",), top_p=0.7)
    assert found.verdict is AuditVerdict.BIAS


def test_greedy_texts_share_the_batch_and_are_not_bet_on():
    stub = Stub(Engine())
    found = of_stub(stub, parts=("law",), temperatures=(1.0, 0.0), bias=0.3)
    assert found.verdict is AuditVerdict.HELD, found.law.line
    greedy = [
        asked for asked in stub.asked if asked["temperature"] == 0 and asked["max_tokens"] == 16
    ]
    assert 16 * len(greedy) == found.law.finding.audited.tokens


def test_as_many_requests_run_at_a_time_as_are_asked_for():
    class Counting(Engine):
        most = 0

        def round(self, *arguments):
            self.most = max(self.most, len(self.slots))
            super().round(*arguments)

    engine = Counting(defect="draft laws swapped", wait=0.2)
    of_stub(Stub(engine), parts=("greedy",), together=1, length=4)
    assert engine.most == 1
