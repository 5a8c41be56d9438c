"""Servers as decoders of `bench`, alone and in batches: figures, and one line for a trouble."""

import json
import threading
from typing import Any

import pytest

import spsbench
from spsbench.audit.verify import verify_run
from spsbench.errors import DataError, SpsError, UnavailableError, UsageError
from spsbench.serving.address import KEY
from spsbench.settings.execution import Access
from spsbench.store.manifest import Manifest
from spsbench.store.records import placed_records, records
from tests.oracles.servers import PROMPTS, QUICK, TOKENS
from tests.oracles.stub import Engine, K, Stub, serving
from tests.variants import first

PATIENCE = 60.0


def made_by(stub: Stub, bench: Any, decoder: str = "openai", **options: Any) -> Any:
    """A run of a server and of its baseline."""
    with serving(stub) as url, serving(Stub(Engine(k=0), stub.schema, pause=stub.pause)) as base:
        return bench(f"{decoder}:url={url},baseline={base}", **options)


def of_sample(name: str, stub: Stub, number: int, http: Any) -> bool:
    """Whether a request streams the text of a sample."""
    prompt = stub.asked[number - 1].get("prompt")
    return bool(http.streaming and isinstance(prompt, str) and prompt.endswith(f"w{name}"))


# Figures.


@pytest.mark.parametrize("per_request", [True, False])
def test_acceptance_of_vllm_is_what_the_server_counts(bench: Any, per_request: bool) -> None:
    stub = Stub(per_request=per_request, pause=0.001)
    made = made_by(stub, bench)
    ars, sps = made.rows()
    assert (ars["method"], sps["method"], ars["block_efficiency"]) == ("ArS", "SpS", 1)
    rounds = [r for record in records(made.folder) for r in record.rounds]
    assert sum(r.emitted for r in rounds) == 2 * PROMPTS * TOKENS
    drafted, accepted = (sum(getattr(r, name) for r in rounds) for name in ("drafted", "accepted"))
    assert 0 <= stub.counts["num_draft_tokens"] - drafted < 40  # of requests that probe the server
    assert sps["draft_acceptance"] == pytest.approx(accepted / drafted)
    passes = PROMPTS * TOKENS - accepted
    assert sps["block_efficiency"] == pytest.approx(PROMPTS * TOKENS / passes)
    assert (sps["alpha_counted"] is None) is not per_request  # of sums there is no rate a slot
    assert sps["speedup"] is not None


def test_what_an_engine_does_not_tell_is_not_available(bench: Any) -> None:
    made = made_by(Stub(schema="openai"), bench)
    _, sps = made.rows()
    for name in ("alpha", "alpha_counted", "block_efficiency", "draft_acceptance", "loop_time_ms"):
        assert sps[name] is None, name
    assert sps["text_tokens"] == TOKENS
    assert all(r.tokens == [] and r.text.count("w") == TOKENS for r in records(made.folder))
    with pytest.raises(DataError):
        list(verify_run(made.folder, Access()))


def test_sglang_is_asked_in_its_own_schema(bench: Any) -> None:
    stub = Stub(schema="sglang")
    _, sps = made_by(stub, bench, "sglang", temperature=0.5, top_k=7).rows()
    sampling = stub.asked[-1]["sampling_params"]
    assert (sampling["top_k"], sampling["temperature"]) == (7, 0.5)
    assert sps["block_efficiency"] > 1


def test_a_server_without_stream_options_is_asked_once_and_counted_by_logprobs(bench: Any) -> None:
    stub = Stub(schema="openai")

    def refuse(number: int, http: Any) -> bool:
        refused = "stream_options" in stub.asked[number - 1]
        return refused and (http.send({"error": "no such field"}, 422) or True)

    stub.trouble = refuse
    with serving(stub) as url:
        made = bench(f"openai:url={url},timeout=60,logprobs=true")
    assert (made.failed, made.rows()[0]["text_tokens"]) == (0, TOKENS)
    assert sum("stream_options" in body for body in stub.asked) == 1


def test_every_pass_is_a_round_and_the_budget_cuts_the_last_one(bench: Any) -> None:
    stub = Stub(Engine(as_vllm=True))
    with serving(stub) as url:
        made = bench(f"openai:url={url}", max_new_tokens=TOKENS + 1)
    (row,) = made.rows()
    texts = {tuple(text.ids): text for text in stub.texts}
    cut = passes = 0
    for record in records(made.folder):
        text = texts[tuple(record.tokens)]
        counts = [(r.drafted, r.accepted) for r in record.rounds]
        assert counts == list(zip(text.drafted, text.accepted, strict=True))
        assert record.rounds[0][:4] == (0, 0, 0, 1)
        assert sum(r.emitted for r in record.rounds) == TOKENS + 1
        cut += record.rounds[-1].emitted <= record.rounds[-1].accepted
        passes += len(text.accepted)
    assert cut, "no text whose last round was cut: take another budget"
    assert row["block_efficiency"] == pytest.approx(PROMPTS * (TOKENS + 1) / passes)


@pytest.mark.parametrize(("batch", "told"), [("1", True), (str(PROMPTS), False)])
def test_texts_that_a_stop_string_ends_have_sums_or_nothing(
    bench: Any, batch: str, told: bool
) -> None:
    with serving(Stub(Engine(as_vllm=True))) as url:
        made = bench(f"openai:url={url}", batch=batch, stop=[" w7"], max_new_tokens=64)
    ended = [record for record in records(made.folder) if record.finish == "stop"]
    assert ended
    for record in ended:
        assert " w7" not in record.text
        rounds = [r for r in record.rounds if r.emitted]
        assert told or all(r.passes == 0 for r in rounds)
        for r in rounds if told else ():
            assert r.accepted <= K * r.passes <= K * r.emitted
        assert len(rounds) == 1 or not told


# Troubles.


TROUBLES = "429 0.01 1, 503 soon 2, open - 1, error - 2, 500 nan 1, half - 1, half - 2"
FORMS = [tuple(form.split()) for form in TROUBLES.split(", ")]


@pytest.mark.parametrize(("kind", "wait", "batch"), first(4, FORMS))
def test_a_lasting_trouble_names_the_prompt_and_resume_goes_on(
    bench: Any, kind: str, wait: str, batch: str
) -> None:
    stub = Stub()

    def fail(number: int, http: Any) -> bool:
        if not of_sample("3", stub, number, http):
            return False
        trouble = {"error": {"message": "not now"}}
        event = b'data: {"choices": [{"text": "a", "token_ids": [1]}]}\n\n'
        if kind == "error":
            http.stream([trouble])
        elif kind.isdigit():
            http.send(trouble, int(kind), retry_after=wait)
        else:  # an event breaks off, or the stream does
            http.close_connection = True
            http.send(event if kind == "open" else event[:30], connection="close")
        return True

    stub.trouble = fail
    with serving(stub) as url:
        with pytest.raises(UnavailableError) as failure:
            bench(decoder := f"openai:url={url},{QUICK}", batch=batch)
        line = str(failure.value)
        assert line.startswith("prompt 3: no answer in 2 attempts")
        assert line.endswith("or lower `batch`") is (batch == "2")
        assert ("not now" in line) is (kind not in ("half", "open"))  # the server's words
        assert "\n" not in line
        stub.trouble = None
        asked = len(stub.asked)
        again = decoder.replace("timeout=60", "timeout=90")  # the cell is the same
        made = bench(again, batch=batch, resume=True)
    assert made.rows()[0]["n"] == PROMPTS
    assert sum(bool(body.get("stream")) for body in stub.asked[asked:]) <= int(batch)


@pytest.mark.parametrize(
    ("reason", "times", "options", "error"),
    [
        ("abort", 1, {}, None),  # whole the second time
        ("content_filter", 99, {}, "finish_reason content_filter"),
        ("stop", 99, {"target": "nano"}, "token 1000000 "),
        ("length", 99, {}, "an impossible answer"),
        ("", 99, {}, "too long"),
    ],
)
def test_a_prompt_that_is_aborted_refused_or_of_no_vocabulary_fails_alone(
    bench: Any, reason: str, times: int, options: Any, error: str | None
) -> None:
    stub, troubled = Stub(), list[int]()

    def trouble(number: int, http: Any) -> bool:
        is_hit = http.streaming if options else of_sample("1", stub, number, http)
        if not is_hit or len(troubled) >= times:
            return False
        troubled.append(number)
        choice = {"text": "a b", "finish_reason": reason, "token_ids": [1, 10**6]}
        choice |= {"token_ids": [-1, 2]} if reason == "length" else {}
        if reason:
            http.stream([{"choices": [choice], "usage": {"completion_tokens": 2}}])
        else:
            http.send({"error": {"message": "too long"}}, 400)
        return True

    stub.trouble = trouble
    with serving(stub) as url:
        made = bench(f"openai:url={url},{QUICK}", batch=str(PROMPTS), **options)
    for record in records(made.folder):
        is_failed = error is not None and bool(options or record.sample == "1")
        assert (error or "") in record.error if is_failed else record.error is None
        assert bool(record.finish) is not is_failed


def silent(_: int, http: Any) -> bool:
    return bool(http.streaming and not http.rfile.read(1))  # until the client leaves


@pytest.mark.parametrize(
    ("server", "args", "options", "error"),
    [
        ({"trouble": silent}, "timeout=0.3,retries=0", {}, UnavailableError),
        ({}, QUICK, {"target": "nano"}, DataError),  # ids of another tokenizer
        ({}, "model=gpt", {}, DataError),
        ({"schema": "openai"}, QUICK, {"top_k": 5}, DataError),
    ],
)
def test_what_a_server_says_or_lacks_is_refused_in_one_line(
    bench: Any, server: Any, args: str, options: Any, error: type[SpsError]
) -> None:
    with serving(Stub(**server)) as url, pytest.raises(error) as failure:
        bench(f"openai:url={url},{args}", **options)
    assert "\n" not in str(failure.value)


def test_texts_with_fewer_ids_than_are_counted_are_failed_records(bench: Any) -> None:
    with serving(Stub(says_more=1)) as url:
        made = bench(f"openai:url={url},{QUICK}")
    errors = [record.error for record in records(made.folder)]
    assert len(errors) == PROMPTS
    assert all("does not balance" in error for error in errors)


GONE = "openai:url=http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("decoder", "options", "error"),
    [
        (f"{GONE},retries=0", {}, UnavailableError),
        ("openai:url=http://me:secret@127.0.0.1:9", {}, UsageError),
        ("openai", {}, UsageError),
        (f"openai:url=http://{'a' * 70}.example,retries=0", {}, UnavailableError),  # no host
        *((f"{GONE},timeout={seconds}", {}, UsageError) for seconds in ("0.0", "inf", "nan")),
        (f"{GONE},retries=1000000000", {}, UsageError),
        (f"{GONE},key=secret", {}, UsageError),
        ("llamacpp:path=/nowhere.gguf", {}, SpsError),
        ("llamacpp:path=model.gguf", {"batch": "1,2"}, UsageError),
        ("hf", {"batch": "1,2"}, UsageError),
        *((GONE, {name: value}, UsageError) for name, value in (("k", 4), ("record", "laws"))),
        *((GONE, {name: "nano-draft"}, UsageError) for name in ("drafter", "draft")),
        ("native", {"weights": "served"}, UsageError),
    ],
)
def test_options_that_a_decoder_lacks_are_refused_and_nothing_is_written(
    bench: Any, decoder: str, options: Any, error: type[SpsError], tmp_path: Any
) -> None:
    with pytest.raises(error) as failure:
        bench(decoder, **options)
    assert "secret@" not in str(failure.value)
    assert not (tmp_path / "run").exists()  # nor is it in the way of the right one


def test_a_key_is_sent_and_never_written(bench: Any, monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setenv(KEY, "\r\n a-secret-key\t\n")  # as a file holds it
    stub = Stub()
    with caplog.at_level("DEBUG"), serving(stub) as url:
        made = bench(f"openai:url={url}")
    assert set(stub.keys) == {"Bearer a-secret-key"}
    files = [file.read_bytes() for file in made.folder.rglob("*") if file.is_file()]
    assert files
    assert not any(b"a-secret-key" in content for content in files)
    assert "a-secret-key" not in caplog.text + str(made)


def test_one_generation_without_a_model_here(bench: Any) -> None:
    with serving(Stub(schema="openai")) as url:
        pair = spsbench.load(decoder=f"openai:url={url}", max_new_tokens=6)
        assert pair.generate("a b").text.count("w") == 6
        assert pair.generate([{"role": "user", "content": "a b"}]).text.count("w") == 6
        with pytest.raises(UsageError):
            pair.verify()
        with pytest.raises(DataError):
            bench(f"sglang:url={url}")


def test_token_ids_are_a_prompt_without_a_tokenizer_here(bench: Any) -> None:
    stub = Stub()
    with serving(stub) as url:
        pair = spsbench.load(decoder=f"openai:url={url}", max_new_tokens=TOKENS)
        text = pair.generate([5, 6, 7])
    assert stub.asked[-1]["prompt"] == [5, 6, 7]
    assert text.record.prompt_tokens == 3
    assert text.text.count("w") == TOKENS


def test_a_pair_without_a_model_here_has_no_engine_and_reads_no_file_named_like_the_model(
    bench: Any, tmp_path: Any, monkeypatch: Any, sps: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with serving(Stub()) as url:
        decoder = f"openai:url={url},model=table"
        (tmp_path / "table").mkdir()
        (tmp_path / "table" / "config.json").write_text("{}")
        pair = spsbench.load(decoder=decoder, max_new_tokens=TOKENS)
        ran = sps("generate", "The cat", "--decoder", decoder, "-n", "4", "--format", "json")
    assert (pair.engines(), pair.digests()) == ({}, {})
    answer = json.loads(ran.out)
    assert (ran.code, answer["engines"], answer["models"]) == (0, {}, {})


# Batches.


@pytest.mark.parametrize("schema", ["vllm", "sglang", "openai"])
def test_a_server_sees_as_many_requests_at_once_as_the_batch_says(bench: Any, schema: str) -> None:
    barrier = threading.Barrier(PROMPTS)
    stub = Stub(
        schema=schema, trouble=lambda _, http: http.streaming and barrier.wait(PATIENCE) < 0
    )
    with serving(stub) as url:
        made = bench(f"{'sglang' if schema == 'sglang' else 'openai'}:url={url}", batch="4")
    assert [row["n"] for row in made.rows()] == [PROMPTS]
    assert sum(not body.get("stream") for body in stub.asked) <= 5  # it is probed once


def test_a_text_that_ends_makes_room_in_a_continuous_batch(bench: Any) -> None:
    third, prompts = threading.Event(), list[Any]()

    def hold_the_first(number: int, http: Any) -> bool:
        if http.streaming:
            prompts.append(prompt := stub.asked[number - 1]["prompt"])
            if len(prompts) == 3:
                third.set()
            assert prompt != prompts[0] or third.wait(PATIENCE)
        return False

    stub = Stub(trouble=hold_the_first)
    with serving(stub) as url:
        made = bench(f"openai:url={url}", batch="2", continuous=True)
    assert {record.sample for record in records(made.folder)} == set(map(str, range(PROMPTS)))


def test_records_tell_their_batch_and_the_texts_are_those_of_one_at_a_time(bench: Any) -> None:
    made = made_by(Stub(Engine(as_vllm=True)), bench, batch="1,3")
    cells = Manifest.load(made.folder).configurations(made.folder)
    rows: dict[Any, Any] = {}
    for record in records(made.folder):
        cell = cells[record.cell]
        rows.setdefault((cell.drafter.name, record.sample), {})[cell.batch] = record
    assert {drafter for drafter, _ in rows} == {"none", "own"}
    assert len({record.cell for pair in rows.values() for record in pair.values()}) == 4
    for pair in rows.values():
        alone, together = pair[1], pair[3]
        assert (together.tokens, together.text) == (alone.tokens, alone.text)
        assert [r[:4] for r in together.rounds] == [r[:4] for r in alone.rounds]
        assert together.machine_seconds > 0 <= together.empty_seconds
        assert alone.machine_seconds is None
    figures = {row["options"]: row for row in made.rows() if row["method"] == "SpS"}
    one, three = figures[""], figures["batch 3"]
    assert one["block_efficiency"] == three["block_efficiency"] > 1
    assert one["machine_tokens_per_s"] > 0 < three["machine_tokens_per_s"]
    assert one["empty_rows"] == 0 <= three["empty_rows"] < 1


@pytest.mark.parametrize("continuous", [False, True])
def test_counters_of_the_whole_server_are_of_no_single_text_but_of_the_cell(
    bench: Any, continuous: bool
) -> None:
    stub = Stub(Engine(as_vllm=True), per_request=False)
    with serving(stub) as url:
        made = bench(f"openai:url={url}", batch="2", continuous=continuous)
    (row,) = made.rows()
    assert row["block_efficiency"] is row["draft_acceptance"] is None
    assert all(r.passes == 0 for record in records(made.folder) for r in record.rounds)
    texts = [text for text in stub.texts if len(text.ids) == TOKENS]
    kept, rounds = sum(sum(t.accepted) for t in texts), sum(len(t.accepted) - 1 for t in texts)
    drafted = sum(sum(text.drafted) for text in texts)
    *_, last = placed_records(made.folder)
    (sums,) = last.start.counters.values()
    assert sums == {"texts": PROMPTS, "rounds": rounds, "accepted": kept, "drafted": drafted}
    assert f"{1 + kept / rounds:.2f} tokens a round with a draft" in str(made)


@pytest.mark.parametrize("batch", ["1", "2"])
def test_counters_are_left_out_where_an_attempt_failed_or_others_use_the_server(
    bench: Any, batch: str
) -> None:
    stub, failed = Stub(per_request=False), list[int]()

    def disturb(number: int, http: Any) -> bool:
        if batch == "2" and of_sample("0", stub, number, http) and not failed:
            failed.append(number)
            http.send({"error": {"message": "not now"}}, 503)
            return True
        stub.counts["num_drafts"] += 10**12 * (batch == "1" or of_sample("2", stub, number, http))
        return False

    stub.trouble = disturb
    with serving(stub) as url:
        made = bench(f"openai:url={url}", batch=batch)
    assert (made.failed, made.rows()[0]["draft_acceptance"]) == (0, None)
    assert not any(placed.start.counters for placed in placed_records(made.folder))
    assert "Counters of the server" not in str(made)


def test_later_turns_wait_for_the_answers_before_them(bench: Any, tmp_path: Any) -> None:
    turns = [{"id": f"{n}", "turns": [f"say w{n}", "and again"]} for n in range(3)]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, turns)))
    stub = Stub()
    with serving(stub) as url:
        made = bench(f"openai:url={url}", batch="2", chat=True)
    assert made.failed == 0
    asked = [len(body["messages"]) for body in stub.asked if body.get("stream")]
    assert asked == [1] * 3 + [3] * 3
