"""A check decides only what it exercised, and blames no server for what a request left open."""

import pytest

from spsbench.audit.statistical.finding import AuditVerdict
from spsbench.errors import DataError
from spsbench.extensions.check import page
from spsbench.extensions.check.check import run_check
from spsbench.extensions.check.journal import Journal
from tests.extensions.check.stubs import check, of_stub
from tests.oracles.stub import TARGET, Engine, Stub, serving
from tests.variants import first

QUICK = {"bias": 0.3, "parts": ("law", "greedy")}


def refusing(name, value=None, **more):
    """A stub that refuses a field, or one value of it."""
    stub = Stub(Engine(**more.pop("engine", {})), **more)

    def trouble(number, http):
        body = stub.asked[number - 1]
        if name not in body or value not in (None, body[name]):
            return False
        return http.send({"error": {"message": f"`{name}` must be strictly positive"}}, 422) or True

    stub.trouble = trouble
    return stub


def held(checked):
    return checked.verdict is AuditVerdict.HELD


# Drafts among the audited tokens.


def test_the_verdict_names_how_many_audited_tokens_were_drafted():
    checked = of_stub(Stub(Engine()), **QUICK)
    assert held(checked)
    drafted = checked.law.finding.line.partition("tokens; ")[2].split()[0]
    assert 0 < int(drafted.replace(",", "")) < checked.law.finding.audited.tokens


def with_logprobs(body):
    return bool(body.get("logprobs") or body.get("top_logprobs"))


@pytest.mark.parametrize("parts", [("law", "greedy"), ("greedy",)])
def test_texts_without_drafts_are_no_audit_of_speculation(tmp_path, parts):
    stub = Stub(Engine(), undrafted=with_logprobs, per_request=False)
    path = tmp_path / "a.jsonl"
    with serving(stub) as url:
        checked = check(url, journal=Journal(path), bias=0.3, parts=parts)
    assert checked.verdict is AuditVerdict.UNKNOWN
    assert "was drafted" in page.sentence(checked)
    assert not any("tells nothing" in line for line in page.notes(checked))
    again = run_check(None, {"resume": path})  # by the counters that were kept
    assert again.verdict is AuditVerdict.UNKNOWN
    assert page.sentence(again) == page.sentence(checked)


def test_counters_of_other_requests_are_no_count_of_these():
    def metrics(http):
        stub.counts["num_drafts"] += 500
        stub.counts["num_accepted_tokens"] += 500
        http.send(stub.metrics(), content_type="text/plain")

    stub = Stub(Engine(), per_request=False, pages={"/metrics": metrics})
    checked = of_stub(stub, parts=("greedy",))
    assert checked.acceptance is None
    assert any("other requests" in line for line in page.notes(checked))


def silent(every):
    """Leaves nothing stated of all tokens but some."""

    def edit(choice):
        for i, entry in enumerate(choice.get("logprobs", {}).get("content", ())):
            if i % every:
                entry |= {"logprob": 0.0, "top_logprobs": []}

    return edit


@pytest.mark.parametrize("parts", first(1, ["greedy", "law"]))
def test_tokens_of_which_nothing_is_stated_may_be_those_that_were_drafted(parts):
    stub = Stub(Engine(), "llama-server", edit=silent(4), ends=None)
    checked = of_stub(stub, parts=(parts,), bias=0.3)
    assert checked.verdict is AuditVerdict.UNKNOWN
    assert "nothing is stated" in page.sentence(checked)


# Answers that do not balance.


def other_tokens(choice):
    """Lists the likeliest token in place of the sampled one."""
    for entry in choice.get("logprobs", {}).get("content", ()):
        best = entry["top_logprobs"][0]
        entry |= {"token": best["token"], "id": best["id"], "logprob": best["logprob"]}


def first_row_alone(choice):
    if "logprobs" in choice:
        choice["logprobs"] = {n: rows[:1] for n, rows in choice["logprobs"].items()}


@pytest.mark.parametrize(
    ("schema", "edit"), [("llama-server", other_tokens), ("vllm", first_row_alone)]
)
def test_texts_of_other_tokens_are_left_out_and_accuse_nobody(schema, edit):
    checked = of_stub(Stub(Engine(), schema, edit=edit), **QUICK)
    assert checked.verdict is AuditVerdict.UNKNOWN
    assert checked.law.left_out.total() == 16
    assert "16 of 16 texts are left out" in page.sentence(checked)
    page.to_plain_values(checked)


def test_a_bias_is_found_although_some_texts_are_left_out():
    def edit(choice):
        if choice.get("token_ids") == [int(TARGET[0].argmax())]:
            del choice["logprobs"]

    stub = Stub(Engine(defect="verifies greedily"), edit=edit)
    checked = of_stub(stub, parts=("law",))
    assert checked.verdict is AuditVerdict.BIAS
    assert checked.law.left_out.total() > 0
    assert "texts are left out" in checked.law.line


# Options.


def test_each_sampler_of_an_engine_is_switched_off_by_name():
    stub = Stub(schema="llama-server")
    of_stub(stub, parts=("greedy",))
    off = {"presence_penalty": 0.0, "xtc_probability": 0.0, "dry_multiplier": 0.0, "top_k": 0}
    assert all(off.items() <= body.items() for body in stub.asked)


def test_one_refused_sampler_is_left_out_alone_and_decides_no_bias():
    cut = {"engine": {"actual": 0.6}}  # as a default of the server would
    checked = of_stub(refusing("top_k", **cut), parts=("law",))
    assert checked.verdict is AuditVerdict.UNKNOWN
    assert "top_k" in page.sentence(checked)
    stub = refusing("top_k")
    assert held(of_stub(stub, **QUICK))
    assert {"top_p", "min_p"} <= stub.asked[-1].keys()
    assert "top_k" not in stub.asked[-1]


def test_a_default_that_the_server_tells_to_be_off_leaves_a_bias_decided():
    told = {"default_generation_settings": {"params": {"top_k": 0}}}
    stub = refusing("top_k", schema="llama-server", engine={"actual": 0.6})
    stub.pages["/props"] = lambda http: http.send(told)
    assert of_stub(stub, parts=("law",)).verdict is AuditVerdict.BIAS


def test_a_server_that_refuses_seeds_is_asked_without():
    stub = refusing("seed")
    checked = of_stub(stub, parts=("greedy", "speed"), concurrency=(1,), requests=2)
    assert held(checked)
    assert checked.speed[0].tpot is not None
    assert "seed" not in stub.asked[-1]


def test_a_server_that_refuses_temperature_0_is_audited_by_sampled_texts():
    checked = of_stub(refusing("temperature", 0.0), parts=("law", "greedy", "speed"), bias=0.3)
    assert checked.law.verdict is AuditVerdict.HELD
    assert checked.refused == ["greedy", "speed"]
    assert checked.verdict is AuditVerdict.UNKNOWN
    assert sum("'temperature'" in line or "temperature" in line for line in page.notes(checked)) > 0


def chats_alone(number, http):
    return http.path != "/v1/chat/completions" and (http.send({"detail": "Not Found"}, 404) or True)


def test_a_check_of_chats_needs_no_other_route():
    stub = Stub(Engine(), trouble=chats_alone)
    assert held(of_stub(stub, chat=True, **QUICK))
    with pytest.raises(DataError) as refused:
        of_stub(Stub(Engine(), trouble=chats_alone), parts=("greedy",))
    assert "`chat`" in str(refused.value)


def test_texts_that_the_server_cuts_are_noted():
    class Short(Engine):
        def generate(self, prompt, n, *more, **cuts):
            return super().generate(prompt, min(n, 10), *more, **cuts)

    checked = of_stub(Stub(Short()), parts=("greedy",))
    assert any("16 tokens asked for" in line for line in page.notes(checked))


# Speed.


def timed_prompts(stub):
    return [body["prompt"] for body in stub.asked if body.get("stream") and not with_logprobs(body)]


@pytest.mark.parametrize("parts", [("speed",), ("speed", "greedy")])
def test_no_prompt_is_timed_twice(parts):
    stub = Stub(Engine())
    of_stub(stub, parts=parts, concurrency=(1, 2), requests=10, length=4)
    prompts = timed_prompts(stub)
    assert len(set(prompts)) == len(prompts) >= 40
    if "greedy" in parts:
        others = [body["prompt"] for body in stub.asked if with_logprobs(body)]
        assert not set(prompts) & set(map(str, others))


def nothing(number, http):
    choice = {"text": "", "finish_reason": "stop"}
    return http.streaming and (http.stream([{"choices": [choice]}]) or True)


@pytest.mark.parametrize("again", [False, True])
def test_speed_without_a_timed_answer_is_not_known(again):
    """Texts without a token, or answers at the second attempt alone."""
    seen = set()

    def busy(number, http):
        key = str(stub.asked[number - 1]["prompt"])
        is_first = http.streaming and key not in seen
        seen.add(key)
        return is_first and (http.send({"error": "busy"}, 503, retry_after="0") or True)

    stub = Stub(Engine(), trouble=busy if again else nothing)
    with serving(stub) as url, serving(Stub(Engine(k=0))) as base:
        checked = check(
            url, baseline=base, parts=("speed",), concurrency=(1,), requests=2, length=4
        )
    assert checked.verdict is AuditVerdict.NOT_AUDITED
    assert (checked.speed[0].failed, checked.speed[0].tpot) == (4, None)
    assert checked.against_baseline[0].pairs == 0
    assert "n/a" in page.as_html(checked, "0")


def test_a_server_that_always_emits_the_one_token_that_it_lists_is_found():
    stub = Stub(Engine(defect="verifies greedily"), most=1)
    assert of_stub(stub, parts=("law",)).verdict is AuditVerdict.BIAS
