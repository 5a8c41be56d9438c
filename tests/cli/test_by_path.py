"""Plug-ins that are named by their files: of every kind, and what is wrong with them in a line."""

import json
import os
from pathlib import Path

import pytest

import spsbench
from spsbench.audit.exact.pairings import RulePairing
from spsbench.audit.exact.rules import Enumeration
from spsbench.cli.rules import rules_table
from spsbench.plugins import fix_spec, make
from spsbench.spec import Spec

MINE = Path(__file__).with_name("mine.txt").read_text()  # a module of plug-ins
LATE = MINE[: MINE.index("  # here")].count("\n") + 1


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "my parts").mkdir()
    file = tmp_path / "my parts" / "mine.py"
    file.write_text(MINE)
    (tmp_path / "broken.py").write_text("def (\n")
    (tmp_path / "falls.py").write_text("import json\n1 / 0\n")
    monkeypatch.chdir(tmp_path)
    return file


def test_a_text_by_parts_of_a_file(sps, pair, mine):
    at = "./my parts/mine.py"
    parts = ("--drafter", f"{at}:Repeat:times=3", "--verifier", f"{at}:Rule", "--engine")
    parts += (f"{at}:Mine", "--schedule", f"{at}:Slow:lookahead=3", "--decoder", f"{at}:Loop")
    plain = ("generate", "the cat", "-n", "12", "--target", pair.target, "--json")
    ran = sps(*plain, *parts, "--temperature", "0")
    assert ran.code == 0, ran.err
    made = json.loads(ran.out)
    assert made["rounds"][0]["drafted"] == 3
    assert made["settings"]["drafter"]["source"] == fix_spec(Spec(f"{at}:Repeat")).source
    ars = json.loads(sps(*plain, "-k", "0", "--temperature", "0").out)
    assert made["tokens"] == ars["tokens"]
    loaded = spsbench.load(target=pair.target, drafter=f"{mine}:Repeat", temperature=0.0)
    assert loaded.generate("the cat", max_new_tokens=12).tokens == ars["tokens"]


@pytest.mark.slow
def test_a_run_by_a_file_is_of_its_source(sps, pair, mine, tmp_path):
    (tmp_path / "it.toml").write_text(
        f'task = "my parts/mine.py:Sums"\ndrafter = "./my parts/mine.py:Repeat"\nengine = "eager"\n'
        f'target = "{pair.target}"\n'
    )
    given = ("bench", "--config", "it.toml", "--out", "run", "--warmup", "0")
    ran = sps(*given, "--format", "./my parts/mine.py:report")
    assert ran.code == 0, ran.err
    assert ran.out == "1 tables\n"
    assert "note: it.toml names ./my parts/mine.py:Repeat: its code is run" in ran.err
    assert "note: it.toml names my parts/mine.py:Sums: its code is run" in ran.err
    assert ran.err.index("its code is run") < ran.err.index("sums")
    assert sps("report", "run", "--format", "./my parts/mine.py:Report").out == "1 tables\n"
    mine.write_text(MINE + "# changed\n")
    changed = sps(*given, "--resume")
    assert changed.code == 5
    assert "drafter" in changed.err
    assert sps("bench", "./my parts/mine.py:Sums", "--dry-run", "--target", pair.target).code == 0


@pytest.mark.parametrize(
    ("named", "code"),
    [
        *((f"my parts/mine.py:{name}", 65) for name in ("Lazy", "Undrawn", "Bare", "Rule")),
        *((f"my parts/mine.py:{name}", 65) for name in ("torch", "Falls", "Late")),
        *(("broken.py:A", 65), ("falls.py:A", 65), ("nowhere.py:A", 66)),
        *((f"my parts/mine.py{name}", 2) for name in (":Nobody", ":Repeat:most=2", "")),
    ],
)
def test_what_is_wrong_with_a_file_is_a_line(sps, pair, mine, named, code):
    ran = sps("generate", "x", "-n", "4", "--target", pair.target, "--drafter", named)
    assert (ran.code, ran.err.splitlines()[-1].startswith("error: ")) == (code, True), ran.err
    assert "Late" not in named or f" (mine.py, line {LATE})" in ran.err


def test_equal_errors_of_a_rule_are_told_once_with_their_line(mine):
    line = MINE[: MINE.index("draft.probs[0]")].count("\n") + 1
    unit = 0, RulePairing(fix_spec(Spec(f"{mine}:Divides")), "none", "constant")
    row = Enumeration()(unit)
    assert row.error is not None
    assert row.error.endswith(f"not subscriptable (mine.py, line {line})")
    said = "\n".join(rules_table([row, row]).remarks)
    assert said.count("failed: TypeError") == 1
    assert "error 1, in 2 of 2 pairings: PlugInError" in said


def test_a_drafter_over_a_model_gets_the_bundled_one(sps, pair, mine):
    above = "from spsbench.methods.drafters.model import ModelDrafter\n"
    Path("own.py").write_text(f"{above}class Own(ModelDrafter):\n    pass\n")
    own = ("--drafter", "own.py:Own")
    ran = sps("generate", "def f(", "-n", "4", "--engine", "eager", *own, "--json")
    assert ran.code == 0, ran.err
    settings = json.loads(ran.out)["settings"]
    assert settings["draft"]["id"] == "nano-draft"
    other = sps("generate", "x", *own, "--target", pair.target)
    assert other.code == 2


def test_a_worker_reads_the_file_and_shows_a_counterexample(mine):
    spec = fix_spec(Spec(f"{mine}:Biased"))
    unit = 0, RulePairing(spec, "none", "constant")
    row = Enumeration()(unit)
    assert (row.distance or 0) > 0.1
    assert row.example.startswith("after [0, 1, 0, 1, 0] the text begins [")
    mine.write_text(MINE + "# changed\n")
    assert "has changed: expected the source" in (Enumeration()(unit).error or "")


def test_a_file_that_keeps_its_size_and_time_is_read_anew(mine):
    spec = Spec(f"{mine}:Repeat")
    when = mine.stat().st_mtime
    assert make("drafters", spec).times == 2
    mine.write_text(MINE.replace("times: int = 2", "times: int = 3"))
    os.utime(mine, (when, when))
    assert make("drafters", spec).times == 3
