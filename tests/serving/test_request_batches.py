"""`bench --batch N` against servers: N requests at a time, each text and its counts its own."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spsbench.errors import UnavailableError, UsageError
from spsbench.store.manifest import Manifest
from spsbench.store.records import placed_records, records
from tests.oracles.servers import PROMPTS, QUICK, TOKENS
from tests.oracles.stub import Engine, Stub, serving

PATIENCE = 60.0


class Meeting(Engine):
    """An engine that goes on with a text when `at_once` of them are being made; it counts them."""

    def __init__(self, at_once: int, **engine: Any) -> None:
        super().__init__(**engine)
        self.barrier = threading.Barrier(at_once)
        self.running, self.most, self.lock = 0, 0, threading.Lock()

    def generate(self, prompt: Any, n: int, *sampling: Any, **cuts: Any) -> Any:
        if n < TOKENS:  # a probe of what the server can
            return super().generate(prompt, n, *sampling, **cuts)
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            self.barrier.wait(PATIENCE)
            return super().generate(prompt, n, *sampling, **cuts)
        finally:
            with self.lock:
                self.running -= 1


def by_batch(folder: Path) -> dict[tuple[int, str], dict[str, Any]]:
    """(batch, drafter) -> sample -> its record."""
    cells = Manifest.load(folder).configurations(folder)
    rows: dict[tuple[int, str], dict[str, Any]] = {}
    for record in records(folder):
        cell = cells[record.cell]
        rows.setdefault((cell.batch, cell.drafter.name), {})[record.sample] = record
    return rows


@pytest.mark.parametrize("schema", ["vllm", "sglang", "openai"])
def test_a_server_sees_as_many_requests_at_once_as_the_batch_says(bench: Any, schema: str) -> None:
    engine = Meeting(PROMPTS)
    decoder = "sglang" if schema == "sglang" else "openai"
    with serving(Stub(engine, schema)) as url:
        made = bench(f"{decoder}:url={url}", batch=str(PROMPTS))
    assert engine.most == PROMPTS
    assert [row["n"] for row in made.rows()] == [PROMPTS]


def test_a_text_that_ends_makes_room_in_a_continuous_batch(bench: Any) -> None:
    third, prompts = threading.Event(), list[Any]()

    def hold_the_first(number: int, http: Any) -> bool:
        if http.streaming:
            prompts.append(stub.asked[number - 1]["prompt"])
            if len(prompts) == 3:
                third.set()
            if prompts[0] == stub.asked[number - 1]["prompt"]:
                assert third.wait(PATIENCE)
        return False

    stub = Stub(trouble=hold_the_first)
    with serving(stub) as url:
        made = bench(f"openai:url={url}", batch="2", continuous=True)
    assert third.is_set()
    assert {record.sample for record in records(made.folder)} == set(map(str, range(PROMPTS)))


def test_records_tell_their_batch_and_the_texts_are_those_of_one_at_a_time(bench: Any) -> None:
    plain = Stub(Engine(k=0))
    with serving(Stub(Engine(as_vllm=True))) as url, serving(plain) as base:
        made = bench(f"openai:url={url},baseline={base}", batch="1,3")
    rows = by_batch(made.folder)
    assert {how: len(of_cell) for how, of_cell in rows.items()} == {
        (batch, drafter): PROMPTS for batch in (1, 3) for drafter in ("none", "own")
    }
    for drafter in "none", "own":
        alone, together = rows[1, drafter], rows[3, drafter]
        for sample, record in together.items():
            assert (record.tokens, record.text) == (alone[sample].tokens, alone[sample].text)
            counts = [r[:4] for r in record.rounds]
            assert counts == [r[:4] for r in alone[sample].rounds]
            assert record.machine_seconds > 0 <= record.empty_seconds
            assert alone[sample].machine_seconds is None
    figures = {row["options"]: row for row in made.rows() if row["method"] == "SpS"}
    one, three = figures[""], figures["batch 3"]
    assert one["block_efficiency"] == three["block_efficiency"] > 1
    assert one["machine_tokens_per_s"] > 0 < three["machine_tokens_per_s"]
    assert one["empty_rows"] == 0 <= three["empty_rows"] < 1
    ids = {record.cell for of_cell in rows.values() for record in of_cell.values()}
    assert len(ids) == 4


def test_the_server_is_asked_once_what_it_can(bench: Any, tmp_path: Path) -> None:
    probes = []
    for batch in "1", str(PROMPTS):
        stub = Stub()
        with serving(stub) as url:
            bench(f"openai:url={url}", batch=batch, out=tmp_path / batch)
        probes.append(sum(not body.get("stream") for body in stub.asked))
    assert probes[0] == probes[1] > 0


def of_sample(name: str, stub: Stub) -> Callable[[int, Any], bool]:
    """Return whether a request streams the text of this sample."""

    def is_it(number: int, http: Any) -> bool:
        prompt = stub.asked[number - 1].get("prompt")
        return bool(http.streaming and isinstance(prompt, str) and prompt.endswith(f"w{name}"))

    return is_it


def test_one_refused_prompt_fails_alone(bench: Any) -> None:
    stub = Stub()

    def refuse(number: int, http: Any) -> bool:
        refused = of_sample("1", stub)(number, http)
        if refused:
            http.send({"error": {"message": "too long"}}, 400)
        return refused

    stub.trouble = refuse
    with serving(stub) as url:
        made = bench(f"openai:url={url},{QUICK}", batch=str(PROMPTS))
    errors = {record.sample: record.error for record in records(made.folder)}
    assert made.failed == 1
    assert "too long" in errors.pop("1")
    assert set(errors.values()) == {None}


def test_a_lasting_trouble_names_the_prompt_and_resume_goes_on(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spsbench.serving.http.LONGEST_WAIT", 0.01)
    stub = Stub()

    def fail(number: int, http: Any) -> bool:
        failing = of_sample("3", stub)(number, http)
        if failing:
            http.send({"error": {"message": "not now"}}, 503)
        return failing

    stub.trouble = fail
    with serving(stub) as url:
        with pytest.raises(UnavailableError) as failure:
            bench(f"openai:url={url},{QUICK}", batch="2")
        assert str(failure.value).startswith("prompt 3: no answer in 2 attempts")
        assert str(failure.value).endswith("or lower `batch`")
        kept = {record.key: record for record in records(tmp_path / "run")}
        assert {sample for _, sample, _ in kept} >= {"0", "1"}
        stub.trouble = None
        made = bench(f"openai:url={url},{QUICK}", batch="2", resume=True)
    found = {record.key: record for record in records(made.folder)}
    assert len(found) == PROMPTS
    assert all(found[key] == record for key, record in kept.items())


def test_requests_that_a_server_sends_away_wait_and_come_again(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spsbench.serving.http.LONGEST_WAIT", 0.01)
    refused, lock, running = threading.Event(), threading.Lock(), list[int]()

    class OneAtATime(Engine):
        def generate(self, prompt: Any, n: int, *sampling: Any, **cuts: Any) -> Any:
            made = super().generate(prompt, n, *sampling, **cuts)
            if n == TOKENS:
                assert refused.wait(PATIENCE)  # until another has been sent away
                with lock:
                    running.clear()
            return made

    def limit(number: int, http: Any) -> bool:
        if not http.streaming:
            return False
        with lock:
            full = bool(running)
            running.append(number) if not full else None
        if full:
            http.send_response(429)
            http.send_header("retry-after", "1")
            http.send_header("content-length", "0")
            http.end_headers()
            refused.set()
        return full

    with serving(Stub(OneAtATime(), trouble=limit)) as url:
        made = bench(f"openai:url={url},retries=1000", batch=str(PROMPTS))
    assert refused.is_set()
    assert made.failed == 0
    assert {record.sample for record in records(made.folder)} == set(map(str, range(PROMPTS)))


@pytest.mark.parametrize("continuous", [False, True])
def test_counters_of_the_whole_server_are_of_no_single_text_but_of_the_cell(
    bench: Any, continuous: bool
) -> None:
    stub = Stub(Engine(as_vllm=True), per_request=False)
    with serving(stub) as url:
        made = bench(f"openai:url={url}", batch="2", continuous=continuous)
    (row,) = made.rows()
    assert row["block_efficiency"] is None
    assert row["draft_acceptance"] is None
    assert all(r.passes == 0 for record in records(made.folder) for r in record.rounds)
    texts = [text for text in stub.texts if len(text.ids) == TOKENS]
    kept, rounds = sum(sum(t.accepted) for t in texts), sum(len(t.accepted) - 1 for t in texts)
    *_, last = placed_records(made.folder)
    (sums,) = last.start.counters.values()
    assert sums == {
        "texts": PROMPTS,
        "rounds": rounds,
        "accepted": kept,
        "drafted": sum(sum(text.drafted) for text in texts),
    }
    assert f"{1 + kept / rounds:.2f} tokens a round with a draft" in str(made)


def test_counters_are_left_out_where_an_attempt_failed_or_others_use_the_server(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spsbench.serving.http.LONGEST_WAIT", 0.01)
    stub, failed = Stub(per_request=False), list[int]()

    def disturb(number: int, http: Any) -> bool:
        if of_sample("0", stub)(number, http) and not failed:
            failed.append(number)
            http.send({"error": {"message": "not now"}}, 503)
            return True
        if of_sample("2", stub)(number, http):  # of the second batch
            with stub.lock:
                stub.counts["num_drafts"] += 1000
        return False

    stub.trouble = disturb
    with serving(stub) as url:
        made = bench(f"openai:url={url}", batch="2")
    assert not any(placed.start.counters for placed in placed_records(made.folder))
    assert "Counters of the server" not in str(made)


@pytest.mark.parametrize("decoder", ["hf", "llamacpp:path=model.gguf"])
def test_a_batch_of_a_decoder_that_takes_one_text_is_refused(bench: Any, decoder: str) -> None:
    with pytest.raises(UsageError):
        bench(decoder, batch="1,2")


def test_later_turns_wait_for_the_answers_before_them(bench: Any, tmp_path: Path) -> None:
    turns = [{"id": f"{n}", "turns": [f"say w{n}", "and again"]} for n in range(3)]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, turns)))
    stub = Stub()
    with serving(stub) as url:
        made = bench(f"openai:url={url}", batch="2", chat=True)
    assert made.failed == 0
    asked = [len(body["messages"]) for body in stub.asked if body.get("stream")]
    assert asked == [1] * 3 + [3] * 3
