"""The package of docs/examples/plugins, installed and run."""

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

from spsbench.audit.exact.pairings import draft_kind_of
from spsbench.audit.exact.rules import pairing
from spsbench.methods.schedules.by_history import Constant
from spsbench.plugins import make
from spsbench.registry import KINDS
from spsbench.spec import Spec
from tests.installed import install

pytestmark = pytest.mark.usefixtures("few_settings")

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "docs" / "examples" / "plugins"
FILES = {str(p.relative_to(PACKAGE)): p.read_text() for p in PACKAGE.rglob("*.py")}
GROUPS = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]["entry-points"]


@pytest.fixture(autouse=True)
def package(tmp_path, monkeypatch):
    lines = [
        line
        for group, points in GROUPS.items()
        for line in (f"[{group}]", *(f"{name} = {path}" for name, path in points.items()))
    ]
    site = install(tmp_path / "site", FILES, "\n".join(lines))
    monkeypatch.syspath_prepend(site)
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "mypackage"]:
        del sys.modules[name]


@pytest.mark.needs_fast
def test_every_kind_is_listed(sps):
    assert set(GROUPS) == {f"spsbench.{kind}" for kind in KINDS}
    rows = json.loads(sps("list", "--format", "json").out)
    found = {(row["kind"], row["name"]): row for row in rows if row["summary"] == "from theirs"}
    named = {(g.removeprefix("spsbench."), name) for g, points in GROUPS.items() for name in points}
    assert set(found) == named
    assert found["verifiers", "cautious"]["guarantee"] == "exact"


def test_a_text_by_drafter_verifier_schedule_and_engine(sps, pair):
    method = "--drafter", "repeat:times=2", "--verifier", "cautious:most=2"
    plain = "generate", "1 + 1 =", "-n", "24", "--temperature", "0", "--json"
    plain += "--engine", "counting", "--target", pair.target
    ran = sps(*plain, *method, "--schedule", "streak")
    assert ran.code == 0, ran.err
    made = json.loads(ran.out)
    assert {r["drafted"] for r in made["rounds"]} <= {0, 1, 2}
    assert sys.modules["mypackage.counting"].passes > len(made["rounds"])
    assert json.loads(sps(*plain, "-k", "0").out)["tokens"] == made["tokens"]


@pytest.mark.needs_fast
def test_the_rule_that_divides_by_p_is_exact_and_keeps_the_paper_s_tokens(sps, pair):
    rule = make("verifiers", Spec("dividing"))
    found = pairing("mine", rule, draft_kind_of(Spec("model")), "constant", lambda: Constant(2))
    assert (found.verdict, found.error) == ("exact", None)
    models = ("--target", pair.target, "--draft", pair.draft, "--k", "3")
    ran = sps("generate", "1 + 1 =", "-n", "24", "--verifier", "dividing", *models, "--json")
    assert ran.code == 0, ran.err
    assert sum(r["accepted"] for r in json.loads(ran.out)["rounds"]) > 0
    ran = sps(
        "generate", "1 +", "-n", "4", "--verifier", "dividing", "--drafter", "ngram", *models[:2]
    )
    assert ran.code == 2
    assert "it divides by p" in ran.err


@pytest.mark.slow
def test_a_run_by_task_decoder_and_reporter(sps, pair, tmp_path):
    out = ("--out", str(tmp_path / "run"))
    models = ("--target", pair.target, "--draft", pair.draft, "--engine", "eager")
    ran = sps("bench", "sums:count=2", "--decoder", "traced", *models, *out, "--format", "tsv")
    assert ran.code == 0, ran.err
    header, *rows = [line.split("\t") for line in ran.out.splitlines()]
    assert header[:4] == ["run", "K", "right", "speed-up"]
    assert [row[1] for row in rows] == ["0", "4"]
    assert re.search(r"^accepted \d of [1-4]$", ran.err, re.MULTILINE)
