"""What engines say: shapes of answers, ends, refused fields, counts, passes behind a text."""

import json
import random
from contextlib import nullcontext
from itertools import takewhile

import msgspec
import pytest

from spsbench.errors import UnavailableError
from spsbench.serving.acceptance import (
    Acceptance,
    contradiction,
    counters,
    of_answer,
    of_answers,
    page_delta,
    spans,
    steps_by_position,
)
from spsbench.serving.answers import Answer
from spsbench.serving.engines import Ask
from spsbench.serving.wire import Counts, read_json
from spsbench.untrusted import RangeError
from tests.oracles.hostile import SPECULATIVE
from tests.oracles.servers import answer_of, asked
from tests.oracles.stub import Stub


@pytest.mark.parametrize("schema", ["vllm", "sglang", "llama-server", "openai"])
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_read_whole_and_in_chunks(schema, stream):
    server, answer = asked(Stub(schema=schema), Ask("a b", 12, 1.0, top=5, stream=stream))
    assert server.kind == schema
    assert server.gives_ids is (schema != "openai")
    assert server.rescores is (schema in ("vllm", "sglang"))
    assert answer.tokens == answer.count == 12
    assert len(answer.keys) == len(answer.own) == len(answer.stated) == 12
    assert answer.prompt_tokens == 2
    assert all(len(row) >= 5 and row == sorted(row, key=lambda e: -e[1]) for row in answer.stated)
    assert (answer.counts == Counts()) is (schema in ("openai", "llama-server"))
    assert len(answer.stamps) == 1 or stream
    if schema in ("vllm", "sglang"):
        assert answer.prompt_ids == Stub().ids("a b")  # without them no text can be scored anew
    written = json.dumps(msgspec.to_builtins(answer))
    assert read_json(json.loads(written), Answer) == answer


@pytest.mark.parametrize("value", [-9999, float("-inf")])
def test_a_logarithm_of_what_is_not_listed_is_no_probability(value):
    logprobs = {"tokens": ["a"], "token_logprobs": [value], "top_logprobs": [{"b": -1, "a": value}]}
    answer = answer_of([(0.0, {"choices": [{"text": "a", "logprobs": logprobs}]})])
    assert answer.own == [float("-inf")]
    assert answer.stated == [[("b", -1.0), ("a", float("-inf"))]]


def listed(tokens, rows=True):
    """Log-probabilities of tokens, in the schema of completions."""
    names = [f"token_id:{t}" if isinstance(t, int) else t for t in tokens]
    tops = {"top_logprobs": [{name: -1.0} for name in names]} if rows else {}
    return {"tokens": names, "token_logprobs": [-1.0] * len(names), **tops}


@pytest.mark.parametrize(
    ("choice", "count", "balances"),
    [
        ({"text": "a", "logprobs": listed([2]), "token_ids": [2]}, 1, True),
        ({"text": "a", "logprobs": listed([1]), "token_ids": [2]}, 1, False),
        ({"text": "a b", "logprobs": listed([1]), "token_ids": [1, 2]}, 2, False),
        ({"text": "a b", "logprobs": listed(["a", " b"])}, 2, True),
        ({"text": "a b", "logprobs": listed(["a", " b", ""])}, 3, True),  # an end without a text
        ({"text": "a b", "logprobs": listed(["a", " b"])}, 3, True),  # one that is not listed
        ({"text": "a b", "logprobs": listed(["a", " b"])}, 9, False),
        ({"text": "a b", "logprobs": listed(["a", " c"])}, 2, False),
        ({"text": "a", "logprobs": listed(["a", ". b"])}, 2, True),  # a stop string cut it
        ({"text": "né", "logprobs": listed(["n", "<0xC3>", "<0xA9>"])}, 3, True),
        ({"text": "n", "logprobs": listed(["n", "\ufffd"])}, 2, True),  # half a character
        ({"text": "a b", "logprobs": listed(["▁a", "▁b"])}, 2, True),
        ({"text": "a", "token_ids": [1]}, 1, True),
        ({"text": "a", "token_ids": [1]}, 2, False),
    ],
)
def test_an_answer_balances_where_its_tokens_are_those_of_its_text(choice, count, balances):
    answer = answer_of([(0.0, {"choices": [choice], "usage": {"completion_tokens": count}})])
    assert (answer.miscount(16) + answer.misstatement() == "") is balances


def test_reasoning_is_spelled_by_the_tokens_too():
    message = {"content": "yes", "reasoning_content": "so it is"}
    content = [
        {"token": t, "logprob": -1.0, "id": i} for i, t in enumerate(["so it", " is", "yes"])
    ]
    choice = {"message": message, "logprobs": {"content": content}}
    assert answer_of([(0.0, {"choices": [choice]})]).misstatement() == ""
    content[1]["token"] = " was"
    assert "spell" in answer_of([(0.0, {"choices": [choice]})]).misstatement()


# Ends.


@pytest.mark.parametrize("reason", ["stop", "LENGTH", "tool_calls", "eos_token", None])
def test_these_ends_are_of_whole_texts(reason):
    event = {"choices": [{"text": "a", "finish_reason": reason}]}
    assert answer_of([(0.1, event)]).finish == reason


# Counts of tokens.


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "tool_calls", "refusal"])
def test_any_generated_text_opens_the_clock_and_counts(name):
    thought = [{"function": {"arguments": "{"}}] if name == "tool_calls" else "so"
    parts = [{"role": "assistant", "content": ""}, {name: thought}, {name: thought}]
    parts += [{"content": "yes"}]
    events = [(at, {"choices": [{"delta": part}]}) for at, part in enumerate(parts)]
    answer = answer_of([*events, (9, {"choices": [], "usage": {"completion_tokens": 3}})])
    assert (answer.text, answer.count, answer.tokens) == ("yes", 3, 3)
    assert answer.stamps == [1, 2, 3]


def test_counts_of_tokens_come_from_the_engine_first_without_those_that_it_does_not_send():
    events = [(at, {"choices": [{"delta": {"content": "a"}}]}) for at in range(4)]
    assert answer_of(events).tokens == 4  # chunks, for want of better
    usage = {"completion_tokens": 64, "completion_tokens_details": {"reasoning_tokens": 60}}
    answer = answer_of([*events, (4, {"usage": usage})])
    assert (answer.count, answer.unsent, answer.tokens) == (4, 60, 4)
    sent = [(0, {"choices": [{"delta": {"reasoning": "so"}}]}), *events, (4, {"usage": usage})]
    assert answer_of(sent).tokens == 64


# Fields that a server refuses.


def refusing(test, status=422):
    stub = Stub(schema="openai")
    stub.trouble = lambda number, http: (
        test(stub.asked[number - 1]) and (http.send({"error": "no such field"}, status) or True)
    )
    return stub


def test_sampling_that_is_off_is_left_out_where_a_server_refuses_it():
    stub = refusing(lambda body: body.get("top_p") == 1.0)
    server, answer = asked(stub, Ask("a b", 4))
    assert (server.refused, server.uncertain, answer.tokens) == (("top_p",), ("top_p",), 4)
    assert "top_p" not in stub.asked[-1]
    asked(stub, Ask("a b", 4, warp={"top_p": 0.5}))
    assert stub.asked[-1]["top_p"] == 0.5


def test_an_engine_that_fails_at_logprobs_is_asked_without_them():
    assert asked(refusing(lambda body: body.get("logprobs"), 500))[0].top == 0
    with pytest.raises(UnavailableError):
        asked(refusing(lambda body: True, 500))


# Acceptance.


def answer_with(counts, sizes=(7,), finish="length", **more):
    """An answer of chunks of so many tokens, and its counts."""
    stamps = [0.5 + i / 10 for i in range(len(sizes))]
    counts = read_json(counts, Counts)
    more |= {"count": sum(sizes), "counts": counts, "stamps": stamps, "sizes": list(sizes)}
    return Answer("x", [], [], [], finish, **more)


@pytest.mark.parametrize("stream", [False, True])
def test_chats_of_sglang_have_counts_too(stream):
    _, answer = asked(Stub(schema="sglang"), Ask("a b", 12, chat=True, stream=stream))
    counts = of_answer(answer)
    assert counts.rounds < counts.rounds + counts.accepted == answer.tokens <= counts.drafted + 12


def vllm(sizes, accepted, drafted):
    counts = {"num_spec_steps": len(accepted), "num_draft_tokens": sum(drafted)}
    counts |= {"num_accepted_draft_tokens": sum(accepted)}
    counts |= {"per_step_accepted": accepted, "per_step_drafted": drafted}
    return answer_with({"vllm": counts}, sizes)


def figures(made):
    return [(span.emitted, span.drafted, span.accepted, span.passes) for span in made]


def passes_of(answer, counts=None):
    return figures(spans(answer, counts or of_answer(answer), plain=False)[1])


@pytest.mark.parametrize(
    ("kept", "is_possible"), [((), True), ((4, 2), True), ((5,), False), ((1, 2), False)]
)
def test_no_position_is_accepted_oftener_than_the_one_before(kept, is_possible):
    counts = Acceptance(4, 12, 6, None, kept)
    assert (contradiction(counts, tokens=10) is None) is is_possible


def test_acceptance_of_one_answer_in_each_engines_words():
    new = {"spec_num_correct_drafts": 3, "spec_num_proposed_drafts": 8}
    new |= {"spec_verify_ct": 4, "spec_correct_drafts_histogram": {"0": 2, "1": 1, "2": 1}}
    old = {"spec_verify_ct": 4, "spec_accept_token_num": 3, "spec_draft_token_num": 8}
    old |= {"spec_accept_histogram": [2, 1, 1]}
    trtllm = {"num_spec_steps": 4, "total_draft_tokens": 8, "total_accepted_draft_tokens": 3}
    trtllm |= {"acceptance_histogram": [2, 1, 1]}
    llama = {"draft_n": 8, "draft_n_accepted": 3, "predicted_n": 7}
    answers = [vllm([7], [2, 0, 1, 0], [2] * 4)]
    answers += [answer_with({"sglang": old}), answer_with({"sglang": new})]
    said = {"choices": [{"text": "x"}], "usage": {"completion_tokens": 7}}
    chosen = {"choices": [{"text": "x", "speculative_decoding": trtllm}]}
    answers += [answer_of([(0.0, said | {"sglext": {"spec_tokens_details": new}})])]
    answers += [answer_of([(0.0, said | chosen)]), answer_with({"llama": llama})]
    accepted = list(map(of_answer, answers))
    assert [(a.rounds, a.drafted, a.accepted) for a in accepted] == [(4, 8, 3)] * 6
    assert [a.emitted for a in accepted] == [None, 7, 7, 7, None, 7]
    assert [a.kept for a in accepted] == [(2, 1)] * 5 + [()]
    assert of_answer(answer_with({})) is of_answers([]) is None
    rates = {name: value for name, value, _ in of_answers(answers[:1] * 2).rows()}
    assert rates["tokens a pass, accepted + 1"] == 1.75
    assert rates["block efficiency tau, emitted / rounds"] is None  # rounds with a draft alone


@pytest.mark.parametrize(
    "changed",
    [
        {"num_draft_tokens": -6},
        {"num_accepted_draft_tokens": 600},
        {"num_accepted_draft_tokens": 5, "num_draft_tokens": 3},
        {"num_spec_steps": 10**9, "num_draft_tokens": 10**9},
        {"per_step_accepted": [10**9]},
        {"acceptance_histogram": {"999999999": 1}, "per_step_accepted": None},
        {"acceptance_histogram": [1] * 60_000, "per_step_accepted": None},
        *({name: None} for name in SPECULATIVE),  # another version leaves it out
    ],
    ids=lambda changed: str(changed)[:40],
)
def test_counts_that_cannot_be_true_are_refused_and_missing_ones_are_not(changed):
    counts = {"metrics": {"speculative_decoding": SPECULATIVE | changed}}
    answer = answer_of([(0.0, {"choices": [{"text": "a b", "token_ids": [1, 2]}], **counts})])
    is_missing = None in changed.values() and len(changed) == 1
    with nullcontext() if is_missing else pytest.raises(RangeError):
        of_answer(answer)


def test_acceptance_with_one_impossible_answer_is_not_available(caplog):
    assert of_answers([vllm([5], [2, 0], [3, 3]), vllm([5], [900, 0], [3, 3])]) is None
    assert "acceptance is not available" in caplog.text
    with pytest.raises(ValueError):  # a depth that no draft has
        steps_by_position([1] * 60_000)


PAGE = """
vllm:spec_decode_num_drafts_total{engine="0"} 7.0
vllm:spec_decode_num_draft_tokens_total{engine="0"} 21
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 8
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 5
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 2
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="2"} 1
"""


def test_counters_of_both_prefixes_are_read():
    for text in (PAGE, PAGE.replace("vllm:", "llamacpp:").replace("_total{", "{")):
        counted = page_delta({}, counters(text))
        assert (counted.rounds, counted.drafted, counted.accepted) == (7, 21, 8)
        rates = [rate for words, rate, _ in counted.rows() if words.startswith("position")]
        assert rates == pytest.approx([5 / 7, 2 / 7, 1 / 7, 5 / 7, 2 / 5, 1 / 2])
    assert page_delta({"num_drafts": 50.0}, counters(PAGE)) is None  # it was restarted
    assert counters(None) == {}


@pytest.mark.parametrize(
    ("sizes", "accepted", "made"),
    [
        ([2, 3, 1], [1, 2, 0], [(2, 3, 1, 1), (3, 3, 2, 1), (1, 3, 0, 1)]),  # drafts at once
        ([1, 1, 2, 2], [0, 1, 3], [(1, 0, 0, 1), (1, 3, 0, 1), (2, 3, 1, 1), (2, 3, 3, 1)]),
        ([1, 1, 1, 1], [3], [(1, 0, 0, 1)] * 3 + [(1, 3, 3, 1)]),
        ([1, 1, 1, 1, 2], [3], [(1, 0, 0, 1)] * 4 + [(2, 3, 3, 1)]),
        ([1, 1, 1, 3, 1], [2, 0], [(1, 0, 0, 1)] * 3 + [(3, 3, 2, 1), (1, 3, 0, 1)]),
        ([1, 4, 1, 4, 1], [3, 3], [(1, 0, 0, 1), (4, 3, 3, 1)] * 2 + [(1, 0, 0, 1)]),
        ([1, 1, 1], [0, 0], [(1, 0, 0, 1), (1, 3, 0, 1), (1, 3, 0, 1)]),
        ([1, 1, 1, 2], [0, 1], [(1, 0, 0, 1), (2, 3, 0, 2), (2, 3, 1, 1)]),
        ([1, 2, 1, 1, 1], [1, 0, 0], [(1, 0, 0, 1), (2, 3, 1, 1), (3, 6, 0, 3)]),
        ([1, 2, 1, 1, 1], [1, 0, 2], [(1, 0, 0, 1), (2, 3, 1, 1), (2, 3, 0, 2), (1, 3, 2, 1)]),
        ([1, 2], [0, 0, 1], [(0, 0, 0, 0), (3, 9, 1, 3)]),  # more rounds than chunks
        ([1, 5], [1, 2], [(0, 0, 0, 0), (6, 6, 3, 3)]),  # a chunk of two passes
    ],
)
def test_passes_without_a_draft_stand_where_the_chunks_show_them(sizes, accepted, made):
    assert passes_of(vllm(sizes, accepted, [3] * len(accepted))) == made


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("k", "accepts", "tokens"), [(2, 0.7, 96), (3, 0.5, 96), (5, 0.05, 96), (5, 0.3, 6)]
)
def test_streams_of_prompt_lookup_have_the_passes_that_made_them(k, accepts, tokens, seed):
    draw = random.Random(seed)
    truth, count = [(1, 0, 0)], 1  # the prompt's pass; then (emitted, drafted, accepted) of each
    while count < tokens:
        drafted = draw.choice((0, 0, k))
        accepted = sum(1 for _ in takewhile(lambda _: draw.random() < accepts, range(drafted)))
        truth.append((min(accepted + 1, tokens - count), drafted, accepted))
        count += truth[-1][0]
    rounds = [(accepted, drafted) for _, drafted, accepted in truth if drafted]
    sizes = [emitted for emitted, _, _ in truth]
    made = passes_of(vllm(sizes, [a for a, _ in rounds], [d for _, d in rounds]))
    at = 0
    for *sums, passes in made:
        assert list(map(sum, zip(*truth[at : at + passes], strict=True))) == sums
        assert passes == 1 or sums[0] == passes
        at += passes
    assert at == len(truth)


def test_an_order_that_only_a_histogram_tells_is_that_of_the_chunks():
    counts = {"spec_verify_ct": 3, "spec_accept_token_num": 3, "spec_draft_token_num": 9}
    counts["spec_accept_histogram"] = [1, 1, 1]
    answer, cut = (answer_with({"sglang": counts}, (1, 1, 3, last)) for last in (2, 1))
    assert passes_of(answer) == [(1, 0, 0, 1), (1, 3, 0, 1), (3, 3, 2, 1), (2, 3, 1, 1)]
    assert passes_of(cut) == [(0, 0, 0, 0), (6, 9, 3, 4)]


@pytest.mark.parametrize("stopped_by", ["\n", None])
def test_no_rounds_are_invented_of_a_text_that_a_stop_string_cut(stopped_by):
    answer = answer_with({}, (1, 1, 1, 2, 3, 1, 2, 1), "stop", stopped_by=stopped_by)
    made = spans(answer, page_delta({}, counters(PAGE)), plain=False)[1]
    assert figures(made) == [(0, 0, 0, 0), (12, 21, 8, 8)]
    assert made[1].tested == -1
