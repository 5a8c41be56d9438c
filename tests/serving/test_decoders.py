"""Servers as decoders of `bench`: figures are the engine's, troubles are one line, runs go on."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import spsbench
from spsbench.audit.verify import verify_run
from spsbench.errors import DataError, UnavailableError, UsageError
from spsbench.serving.address import KEY
from spsbench.settings.execution import Access
from spsbench.store.records import records
from tests.oracles.servers import PROMPTS, QUICK, TOKENS
from tests.oracles.stub import Engine, Stub, serving


def rows_of(stub: Stub, bench: Callable[..., Any], decoder: str = "openai", **asked: Any) -> Any:
    """The rows of both arms, ArS first, and the counts of the stub meanwhile."""
    plain = Stub(Engine(k=0), stub.schema, pause=stub.pause)
    with serving(stub) as url, serving(plain) as base:
        made = bench(f"{decoder}:url={url},baseline={base}", **asked)
        return made, made.rows()


@pytest.mark.parametrize("per_request", [True, False])
def test_acceptance_of_vllm_is_what_the_server_counts(bench: Any, per_request: bool) -> None:
    stub = Stub(per_request=per_request, pause=0.001)
    made, (ars, sps) = rows_of(stub, bench)
    assert (ars["method"], sps["method"]) == ("ArS", "SpS")
    assert ars["block_efficiency"] == 1
    kept = [r for record in records(made.folder) for r in record.rounds]
    assert sum(r.emitted for r in kept) == 2 * PROMPTS * TOKENS
    own = [r for r in kept if r.drafted]
    probed = stub.counts["num_draft_tokens"] - sum(r.drafted for r in own)
    assert 0 <= probed < 40  # of the requests that find out what the server can
    assert sps["draft_acceptance"] == pytest.approx(
        sum(r.accepted for r in own) / sum(r.drafted for r in own)
    )
    rounds = PROMPTS * TOKENS - sum(r.accepted for r in own)
    assert sps["block_efficiency"] == pytest.approx(PROMPTS * TOKENS / rounds)
    assert (sps["alpha_counted"] is None) is not per_request  # of sums there is no rate a slot
    assert sps["speedup"] is not None


def test_what_an_engine_does_not_tell_is_not_available(bench: Any) -> None:
    made, (_, sps) = rows_of(Stub(schema="openai"), bench)
    for name in ("alpha", "alpha_counted", "block_efficiency", "draft_acceptance", "loop_time_ms"):
        assert sps[name] is None, name
    assert sps["text_tokens"] == TOKENS
    assert all(r.tokens == [] and r.text.count("w") == TOKENS for r in records(made.folder))
    with pytest.raises(DataError):
        list(verify_run(made.folder, Access()))


def test_sglang_is_asked_in_its_own_schema(bench: Any, tmp_path: Path) -> None:
    stub = Stub(schema="sglang")
    _, (_, sps) = rows_of(stub, bench, "sglang", temperature=0.5, top_k=7)
    assert stub.asked[-1]["sampling_params"]["top_k"] == 7
    assert stub.asked[-1]["sampling_params"]["temperature"] == 0.5
    assert sps["block_efficiency"] > 1
    with serving(Stub()) as url, pytest.raises(DataError):
        bench(f"sglang:url={url}", out=tmp_path / "other")


def broken(kind: str, times: int) -> Callable[[int, Any], bool]:
    """A trouble of the first `times` generations of a stub, after the probe of its abilities."""
    seen: list[int] = []

    def trouble(_: int, http: Any) -> bool:
        if not http.streaming or len(seen) >= times:
            return False
        seen.append(1)
        if kind.isdigit():
            http.send({"error": {"message": "not now"}}, int(kind))
            return True
        http.send_response(200)
        http.send_header("connection", "close")
        http.end_headers()
        http.wfile.write(b'data: {"choices": [{"text": "half of an')
        http.close_connection = True
        return True

    return trouble


@pytest.mark.parametrize("kind", ["429", "500", "half"])
def test_a_lasting_trouble_is_one_line_and_resume_goes_on(
    bench: Any, kind: str, tmp_path: Path
) -> None:
    stub = Stub()
    with serving(stub) as url:
        decoder = f"openai:url={url},{QUICK}"

        def stop_after_two(number: int, http: Any) -> bool:
            made = sum(bool(body.get("stream")) for body in stub.asked)
            return made > 2 and broken(kind, 1)(number, http)

        stub.trouble = stop_after_two
        with pytest.raises(UnavailableError) as failure:
            bench(decoder)
        assert "\n" not in str(failure.value)
        assert "expected" in str(failure.value)
        before = (tmp_path / "run" / "records-00-of-01.jsonl").read_bytes()
        assert before.count(b"\n") == 1 + 2  # the start's and two records'
        stub.trouble = None
        made = bench(
            decoder.replace("timeout=60", "timeout=90"), resume=True
        )  # the cell is the same
    assert (tmp_path / "run" / "records-00-of-01.jsonl").read_bytes().startswith(before)
    assert made.rows()[0]["n"] == PROMPTS


def test_an_answer_that_never_ends_is_given_up(bench: Any) -> None:
    def silent(_: int, http: Any) -> bool:
        return bool(http.streaming and not http.rfile.read(1))  # until the client leaves

    with serving(Stub(trouble=silent)) as url, pytest.raises(UnavailableError):
        bench(f"openai:url={url},timeout=0.3,retries=0")


def test_ids_that_are_not_as_many_as_counted_are_refused(bench: Any) -> None:
    stub = Stub(says_more=1)
    with serving(stub) as url, pytest.raises(DataError):
        bench(f"openai:url={url},{QUICK}")


def test_ids_of_other_tokens_than_the_logprobs_are_refused(bench: Any) -> None:
    stub = Stub(shifts_ids=True)
    with serving(stub) as url, pytest.raises(DataError):
        bench(f"openai:url={url},logprobs=true,{QUICK}")


def test_ids_of_another_tokenizer_than_the_targets_are_refused(bench: Any) -> None:
    with serving(Stub()) as url, pytest.raises(DataError):
        bench(f"openai:url={url},{QUICK}", target="nano")


@pytest.mark.parametrize(
    ("decoder", "error"),
    [
        ("openai:url=http://127.0.0.1:9,retries=0", UnavailableError),
        ("openai:url=http://me:secret@127.0.0.1:9", UsageError),
        ("openai", UsageError),
        ("openai:url=http://127.0.0.1:9,timeout=0.0", UsageError),
        ("openai:url=http://127.0.0.1:9,key=secret", UsageError),
        ("llamacpp:path=/nowhere.gguf", spsbench.SpsError),
    ],
)
def test_bad_input_is_refused_in_one_line(
    bench: Any, decoder: str, error: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(error) as failure:
        bench(decoder)
    assert "secret@" not in str(failure.value)
    assert not (tmp_path / "run").exists()  # nor is it in the way of the right one


def test_a_wrong_model_is_refused_with_those_there_are(bench: Any) -> None:
    with serving(Stub()) as url, pytest.raises(DataError):
        bench(f"openai:url={url},model=gpt")


@pytest.mark.parametrize(
    "asked",
    [
        *({"k": 4}, {"drafter": "ngram"}, {"draft": "nano-draft"}, {"record": "laws"}),
        {"weights": "served", "decoder": "native"},
    ],
)
def test_options_of_drafting_here_are_refused(bench: Any, asked: Any) -> None:
    given = {"decoder": "openai:url=http://127.0.0.1:9", **asked}
    with pytest.raises(UsageError):
        bench(**given)


def test_sampling_that_an_engine_lacks_is_refused(bench: Any) -> None:
    with serving(Stub(schema="openai")) as url, pytest.raises(DataError):
        bench(f"openai:url={url},{QUICK}", top_k=5)


def test_a_key_is_sent_and_never_written(
    bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(KEY, "a-secret-key")
    stub = Stub()
    with caplog.at_level(logging.DEBUG), serving(stub) as url:
        made = bench(f"openai:url={url}")
    assert set(stub.keys) == {"Bearer a-secret-key"}
    kept = [file.read_bytes() for file in made.folder.rglob("*") if file.is_file()]
    assert kept
    assert not any(b"a-secret-key" in each for each in kept)
    assert "a-secret-key" not in caplog.text + str(made)


def test_one_generation_without_a_model_here() -> None:
    with serving(Stub(schema="openai")) as url:
        pair = spsbench.load(decoder=f"openai:url={url}", max_new_tokens=6)
        assert pair.generate("a b").text.count("w") == 6
        assert pair.generate([{"role": "user", "content": "a b"}]).text.count("w") == 6
        with pytest.raises(UsageError):
            pair.verify()
