"""`sps plan` and `sps bench --record trace` as a user meets them."""

import json

import pytest


@pytest.fixture
def prompts(tmp_path):
    rows = [{"id": str(i), "prompt": f"one two three {i} one two"} for i in range(3)]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


@pytest.mark.slow
def test_a_benchmark_records_a_trace(sps, pair, prompts, tmp_path):
    asked = ["bench", f"jsonl:path={prompts}", "--record", "trace", "--engine", "eager", "-n", "8"]
    asked += ["--target", pair.target, "--draft", pair.draft, "--k", "2", "--out"]
    run = tmp_path / "run"
    made = sps(*asked, str(run))
    assert made.code == 0, made.err
    (trace,) = run.glob("traces-*.jsonl")
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    assert lines[0]["head"]["target.id"] == pair.target
    assert sum("along" in line for line in lines) == 3
    before = trace.read_bytes()
    again = sps(*asked, str(run), "--resume")
    assert again.code == 0
    assert trace.read_bytes() == before
    trace.write_bytes(b"".join(before.splitlines(keepends=True)[:4]))  # its end is lost
    short = sps("plan", "--trace", str(run), "--costs", str(tmp_path / "none.json"))
    assert short.code == 65
    assert "4 lines are missing at the end" in short.err
    assert sps(*asked, str(run), "--resume").code == 0
    assert trace.read_bytes() == before
    trace.unlink()  # lost: made again from the records
    assert sps(*asked, str(run), "--resume").code == 0
    assert trace.read_bytes() == before

    alone = sps("plan", "--trace", str(run), "--costs", str(tmp_path / "none.json"))
    assert alone.code == 66
    assert "cannot read" in alone.err


def test_what_cannot_be_meant(sps, pair, prompts, tmp_path):
    for words, told in (
        (["bench", "latency", "--record", "trace", "--method", "sps"], "along the texts of ars"),
        (["plan", "xsum", "--prompts", prompts], "expected one of the two"),
        (["plan", "--verifier", "synthetic"], "lossy"),
        (["plan", "--k", "0"], "--k"),
        (["plan", "--draft-cost", "0"], "a number above 0"),
        (["plan", "--shapes", "8x1", "--format", "csv"], "table or json"),
        (["plan", "--trace", str(tmp_path / "no.jsonl"), "--costs", prompts], "no such trace"),
    ):
        made = sps(*words, "--out", str(tmp_path / "x")) if words[0] == "bench" else sps(*words)
        assert made.code in (2, 66), (words, made.err)
        assert told in made.err, (words, made.err)
