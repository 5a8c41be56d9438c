"""`sps bench` beside servers that send anything: one line, no traceback, no end."""

import json
from collections import Counter

import pytest

from spsbench.errors import Exit
from tests.serving import hostile
from tests.serving.stub import Engine, Stub, serving

KEY = "sk-Secret-of-mine-42"


def sending(content, *, stream, first):
    """A stub that answers whole requests or streams with `content`, from the `first` on."""
    seen = []

    def trouble(number, http):
        if http.streaming is not stream:
            return False
        seen.append(number)
        if len(seen) <= first:
            return False
        http.send_response(200)
        http.send_header("content-length", str(len(content)))
        http.end_headers()
        http.wfile.write(content)
        return True

    return trouble


def ended_well(ran, where, folder):
    """A code of this command, one line of error, and the key nowhere."""
    assert ran.code in (*map(int, set(Exit) - {Exit.INTERNAL}),), (where, ran)
    assert "Traceback" not in ran.err, where
    assert KEY not in ran.out + ran.err, where
    assert all(len(line) < 2000 for line in ran.err.splitlines()), where
    for path in folder.rglob("*"):
        assert path.is_dir() or KEY.encode() not in path.read_bytes(), (where, path)


@pytest.mark.slow
def test_bench_keeps_a_readable_run_whatever_an_answer_is(sps, tmp_path, monkeypatch):
    monkeypatch.setenv("SPS_API_KEY", KEY)
    prompts = tmp_path / "p.jsonl"
    prompts.write_text("\n".join(json.dumps({"id": str(i), "prompt": f"w{i}"}) for i in range(2)))
    codes: Counter[int] = Counter()
    streams = [each for each in hostile.answers() if each[0].endswith("stream")]
    for number, (kind, name, content) in enumerate(streams[::61]):
        out = tmp_path / f"run-{number}"
        schema, decoder = ("sglang", "sglang") if "generate" in kind else ("vllm", "openai")
        trouble = sending(content, stream=True, first=1)
        task = f"jsonl:path={prompts}"
        own = ("--method", "sps", "--max-new-tokens", "2", "--out", str(out))
        if kind.startswith("chat"):
            own += ("--chat", "on")
        with serving(Stub(Engine(), schema, trouble=trouble)) as url:
            engine = f"{decoder}:url={url},timeout=60.0,retries=0"
            ran = sps("bench", task, "--decoder", engine, *own)
            ended_well(ran, (kind, name), tmp_path)
            codes[ran.code] += 1
        if (out / "manifest.json").exists():
            shown = sps("report", str(out))
            assert shown.code in (Exit.OK, Exit.FAILED_SAMPLES, Exit.DATA), (kind, name, shown)
            assert "impossible record" not in shown.err, (kind, name)
    assert codes[Exit.FAILED_SAMPLES] or codes[Exit.DATA], codes
