"""What an answer says: whole or aborted, reasoning, refused fields, and the passes behind it."""

import json
import random
from itertools import takewhile

import pytest

from spsbench.errors import UnavailableError
from spsbench.serving.acceptance import between, counters, of_answer, of_answers, reached, spans
from spsbench.serving.answers import AbortedError
from spsbench.serving.engines import Answer, Ask
from spsbench.serving.http import RefusedError
from spsbench.serving.wire import Counts, read
from spsbench.store.records import records
from tests.oracles.servers import PROMPTS, TOKENS, answer_of, asked, asked_at
from tests.oracles.stub import Engine, Stub, serving

# Ends.


def ending(reason, stream=None):
    """Answer as usual, but with another reason of the end."""

    def trouble(number, http):
        if stream is not None and http.streaming is not stream:
            return False
        choice = {"text": "a b", "finish_reason": reason, "token_ids": [1, 2]}
        event = {"choices": [choice], "usage": {"completion_tokens": 2, "prompt_tokens": 1}}
        http.stream([event]) if http.streaming else http.send(event)
        return True

    return trouble


@pytest.mark.parametrize("reason", ["abort", "error", "content_filter", "cancelled", "ABORT"])
@pytest.mark.parametrize("stream", [True, False])
def test_an_aborted_answer_is_tried_again_and_then_named(reason, stream):
    stub = Stub(trouble=ending(reason))
    with pytest.raises(AbortedError):
        asked(stub, Ask("a", 2, stream=stream))
    assert len(stub.asked) == 3


def test_an_aborted_answer_of_sglang_is_named_too():
    def trouble(number, http):
        meta = {"finish_reason": {"type": "abort", "message": "x"}, "completion_tokens": 1}
        http.send({"text": "a", "output_ids": [1], "meta_info": meta})
        return True

    with pytest.raises(UnavailableError):
        asked(Stub(schema="sglang", trouble=trouble))


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", "eos_token", None])
def test_other_ends_are_of_whole_texts(reason):
    events = [(0.1, {"choices": [{"text": "a", "finish_reason": reason}]})]
    assert answer_of(events).finish == reason


def test_a_text_that_is_aborted_once_is_whole_the_second_time(bench):
    seen = []

    def trouble(number, http):
        return http.streaming and not seen and (seen.append(1) or ending("abort")(number, http))

    with serving(Stub(trouble=trouble)) as url:
        made = bench(f"openai:url={url},timeout=60,retries=1")
    assert [row["n"] for row in made.rows()] == [PROMPTS]


def test_a_text_that_is_always_aborted_is_a_failure_and_no_end(bench):
    with serving(Stub(trouble=ending("content_filter", stream=True))) as url:
        made = bench(f"openai:url={url},timeout=60,retries=0")
    kept = list(records(made.folder))
    assert {record.finish for record in kept} == {""}
    assert all("finish_reason content_filter" in (record.error or "") for record in kept)


# Impossible counts.


def test_ids_beyond_the_vocabulary_of_the_target_fail(bench):
    def trouble(number, http):
        if not http.streaming:
            return False
        choice = {"text": "a", "finish_reason": "stop", "token_ids": [10**6]}
        http.stream([{"choices": [choice], "usage": {"completion_tokens": 1}}])
        return True

    with serving(Stub(trouble=trouble)) as url:
        made = bench(f"openai:url={url},timeout=60,retries=0", target="nano")
    errors = {record.error for record in records(made.folder)}
    assert all("token 1000000 " in str(error) for error in errors)


# Reasoning.


def delta(at, **part):
    return at, {"choices": [{"delta": part}]}


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "tool_calls", "refusal"])
def test_any_generated_text_opens_the_clock_and_counts(name):
    thought = [{"function": {"arguments": "{"}}] if name == "tool_calls" else "so"
    events = [delta(0.1, role="assistant", content=""), delta(0.2, **{name: thought})]
    events += [delta(0.3, **{name: thought}), delta(0.9, content="yes")]
    events += [(1.0, {"choices": [], "usage": {"completion_tokens": 3}})]
    answer = answer_of(events)
    assert (answer.text, answer.count, answer.tokens) == ("yes", 3, 3)
    assert answer.stamps == [0.2, 0.3, 0.9]


def test_tokens_that_are_counted_and_not_sent_are_in_no_time():
    details = {"completion_tokens_details": {"reasoning_tokens": 60}}
    usage = {"completion_tokens": 64, **details}
    events = [delta(3.0 + i / 10, content="a") for i in range(4)]
    answer = answer_of([*events, (4.0, {"usage": usage})])
    assert (answer.count, answer.unsent, answer.tokens) == (4, 60, 4)
    sent = [delta(1.0, reasoning="so"), *events, (4.0, {"usage": usage})]
    assert answer_of(sent).tokens == 64


# Fields that a server refuses.


def refusing(test):
    def trouble(number, http):
        if test(stub.asked[number - 1]):
            http.send({"error": {"message": "no such field"}}, 422)
            return True
        return False

    stub = Stub(schema="openai", trouble=trouble)
    return stub


def test_sampling_that_is_off_is_left_out_where_a_server_refuses_it():
    stub = refusing(lambda body: body.get("top_p") == 1.0)
    server, answer = asked(stub, Ask("a b", 4, warp={}))
    assert (server.extras, answer.tokens) == (False, 4)
    assert "top_p" not in stub.asked[-1]
    with serving(stub) as url:
        asked_at(url, Ask("a b", 4, warp={"top_p": 0.5}))
    assert stub.asked[-1]["top_p"] == 0.5


def test_a_stream_is_asked_for_without_options_where_a_server_refuses_them():
    stub = refusing(lambda body: "stream_options" in body)
    server, answer = asked(stub, Ask("a b", 4, top=5, stream=True))
    assert answer.tokens == 4
    assert server.counts_streams is False
    assert "stream_options" not in stub.asked[-1]


def test_a_refusal_of_anything_else_stands():
    stub = refusing(lambda body: body.get("stream"))
    with pytest.raises(RefusedError):
        asked(stub, Ask("a b", 4, stream=True))


def test_a_run_of_a_server_without_stream_options_counts_by_logprobs(bench):
    stub = refusing(lambda body: "stream_options" in body)
    with serving(stub) as url:
        made = bench(f"openai:url={url},timeout=60,logprobs=true")
    assert made.failed == 0
    assert made.rows()[0]["text_tokens"] == TOKENS
    refused = [body for body in stub.asked if "stream_options" in body]
    assert len(refused) == 1  # what a server does not take is asked once


# Passes.


def vllm(sizes, accepted, drafted):
    """An answer of vLLM: chunks of so many tokens, and its counts."""
    said = {
        "num_spec_steps": len(accepted),
        "num_accepted_draft_tokens": sum(accepted),
        "num_draft_tokens": sum(drafted),
        "per_step_accepted": accepted,
        "per_step_drafted": drafted,
    }
    return chunks(sizes, "length", counts=read({"vllm": said}, Counts))


def chunks(sizes, finish, **more):
    stamps = [0.5 + i / 10 for i in range(len(sizes))]
    count = sum(sizes)
    return Answer("x", [], [], [], finish, count=count, stamps=stamps, sizes=sizes, **more)


def passes_of(answer, told=None):
    return spans(answer, told or of_answer(answer), plain=False)[1]


def test_a_server_that_drafts_in_the_pass_of_the_prompt_is_known_by_its_chunks():
    made = passes_of(vllm([2, 3, 1], [1, 2, 0], [3, 3, 1]))
    assert [span.emitted for span in made] == [2, 3, 1]
    assert [span.drafted for span in made] == [3, 3, 1]


def figures(made):
    return [(span.emitted, span.drafted, span.accepted, span.passes) for span in made]


@pytest.mark.parametrize(
    ("sizes", "accepted", "made"),
    [
        ([1, 1, 2, 2], [0, 1, 3], [(1, 0, 0, 1), (1, 3, 0, 1), (2, 3, 1, 1), (2, 3, 3, 1)]),
        ([1, 1, 1, 1], [3], [(1, 0, 0, 1)] * 3 + [(1, 3, 3, 1)]),
        ([1, 1, 1, 1, 2], [3], [(1, 0, 0, 1)] * 4 + [(2, 3, 3, 1)]),
        ([1, 1, 1, 3, 1], [2, 0], [(1, 0, 0, 1)] * 3 + [(3, 3, 2, 1), (1, 3, 0, 1)]),
        ([1, 4, 1, 4, 1], [3, 3], [(1, 0, 0, 1), (4, 3, 3, 1)] * 2 + [(1, 0, 0, 1)]),
        ([1, 1, 1], [0, 0], [(1, 0, 0, 1), (1, 3, 0, 1), (1, 3, 0, 1)]),
        ([1, 1, 1, 2], [0, 1], [(1, 0, 0, 1), (2, 3, 0, 2), (2, 3, 1, 1)]),
        ([1, 2, 1, 1, 1], [1, 0, 0], [(1, 0, 0, 1), (2, 3, 1, 1), (3, 6, 0, 3)]),
        ([1, 2, 1, 1, 1], [1, 0, 2], [(1, 0, 0, 1), (2, 3, 1, 1), (2, 3, 0, 2), (1, 3, 2, 1)]),
        ([1, 5], [1, 2], [(0, 0, 0, 0), (6, 6, 3, 3)]),  # a chunk of two passes
    ],
)
def test_passes_without_a_draft_stand_where_the_chunks_show_them(sizes, accepted, made):
    assert figures(passes_of(vllm(sizes, accepted, [3] * len(accepted)))) == made


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("k", "accepts", "tokens"),
    [(2, 0.7, 96), (3, 0.5, 96), (5, 0.4, 96), (5, 0.05, 96), (5, 0.3, 6)],
)
def test_streams_of_prompt_lookup_have_the_passes_that_made_them(k, accepts, tokens, seed):
    draw = random.Random(seed)
    truth, count = [(1, 0, 0)], 1  # the prompt's pass; then (emitted, drafted, accepted) of each
    while count < tokens:
        drafted = min(draw.choice((0, 0, k)), k)
        accepted = sum(1 for _ in takewhile(lambda _: draw.random() < accepts, range(drafted)))
        truth.append((min(accepted + 1, tokens - count), drafted, accepted))
        count += truth[-1][0]
    rounds = [(drafted, accepted) for _, drafted, accepted in truth if drafted]
    made = passes_of(
        vllm([size for size, _, _ in truth], [a for _, a in rounds], [d for d, _ in rounds])
    )
    assert sum(span.passes for span in made) == len(truth)
    at = 0
    for span in made:
        passes = truth[at : at + span.passes]
        assert tuple(map(sum, zip(*passes, strict=True))) == (
            span.emitted,
            span.drafted,
            span.accepted,
        )
        assert span.passes == 1 or span.emitted == span.passes
        at += span.passes


def test_an_order_that_only_a_histogram_tells_is_that_of_the_chunks():
    said = {"spec_verify_ct": 3, "spec_accept_token_num": 3, "spec_draft_token_num": 9}
    said["spec_accept_histogram"] = [1, 1, 1]
    answer = chunks([1, 1, 3, 2], "length", counts=read({"sglang": said}, Counts))
    assert figures(passes_of(answer)) == [(1, 0, 0, 1), (1, 3, 0, 1), (3, 3, 2, 1), (2, 3, 1, 1)]
    cut = chunks([1, 1, 3, 1], "length", counts=read({"sglang": said}, Counts))
    assert figures(passes_of(cut)) == [(0, 0, 0, 0), (6, 9, 3, 4)]


PAGE = "\n".join(
    [
        "vllm:spec_decode_num_drafts_total 7",
        "vllm:spec_decode_num_draft_tokens_total 21",
        "vllm:spec_decode_num_accepted_tokens_total 8",
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 5',
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 2',
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="2"} 1',
    ]
)


@pytest.mark.parametrize("stopped_by", ["\n", None])
def test_no_rounds_are_invented_of_a_text_that_a_stop_string_cut(stopped_by):
    answer = chunks([1, 1, 1, 2, 3, 1, 2, 1], "stop", stopped_by=stopped_by)
    made = passes_of(answer, between({}, counters(PAGE)))
    assert [(span.emitted, span.passes) for span in made] == [(0, 0), (12, 8)]
    assert (made[1].drafted, made[1].tested, made[1].accepted) == (21, -1, 8)


def test_tau_is_not_available_where_only_rounds_with_a_draft_are_counted():
    answers = [vllm([1, 1, 1, 3, 1], [2, 0], [3, 3])] * 2
    figures = {name: value for name, value, _ in of_answers(answers).rows()}
    assert figures["block efficiency tau, emitted / rounds"] is None
    assert figures["tokens a pass, accepted + 1"] == 2.0


def test_acceptance_with_one_impossible_answer_is_not_available(caplog):
    good = vllm([1, 1, 1, 3, 1], [2, 0], [3, 3])
    bad = vllm([1, 1, 1, 3, 1], [900, 0], [3, 3])
    assert of_answers([good, bad]) is None
    assert "acceptance is not available" in caplog.text


def test_deep_histograms_take_no_square_of_their_depth():
    assert reached(list(range(1000)))[0] == sum(range(1000))
    assert json.dumps(reached({"0": 1, "2": 3})) == "[3.0, 3.0]"
    for counts in ({"999999999": 1}, [1] * 60_000, {"-1": 1}, {"x": 1}, {"1": -1}, 5, "abc"):
        with pytest.raises(ValueError):
            reached(counts)


def test_counters_of_other_clients_are_not_taken_for_a_texts_own(bench):
    stub = Stub(Engine(), per_request=False)

    def busy(http):
        stub.counts["num_drafts"] = stub.counts.get("num_drafts", 0) + 10**12
        http.send(stub.metrics(), kind="text/plain")

    stub.pages["/metrics"] = busy
    with serving(stub) as url:
        made = bench(f"openai:url={url},timeout=60")
    assert made.rows()[0]["draft_acceptance"] is None


@pytest.mark.parametrize("value", [-9999, -9999.0, float("-inf")])
def test_a_logarithm_of_what_is_not_listed_is_no_probability(value):
    logprobs = {"tokens": ["a"], "token_logprobs": [value], "top_logprobs": [{"b": -1, "a": value}]}
    event = {"choices": [{"text": "a", "finish_reason": "stop", "logprobs": logprobs}]}
    answer = answer_of([(0.0, event)])
    assert answer.own == [float("-inf")]
    assert answer.stated == [[("b", -1.0), ("a", float("-inf"))]]
