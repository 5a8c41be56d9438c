"""`sps verify`: reports in every form, exit codes, and what is refused before a model is loaded."""

import json
import os
from functools import partial
from unittest.mock import patch

import pytest

from spsbench.errors import Exit
from spsbench.reports.run_tables import report_on
from tests.oracles.defects import SPS, Lenient

pytestmark = pytest.mark.usefixtures("few_settings")

FEW = ("--max-new-tokens", "24", "--prompts", "4", "--workers", "1")


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    rows = [{"id": f"p{i}", "prompt": f"the cat {i}"} for i in range(4)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def pair_audit(sps, pair, prompts):
    def run(*arguments):
        models = ("--target", pair.target, "--draft", pair.draft)
        return sps("verify", "pair", *models, "--task", f"jsonl:path={prompts}", *FEW, *arguments)

    return run


def test_a_planted_bias_exits_7_and_a_short_audit_6(pair_audit):
    with patch(SPS + "Sps", partial(Lenient, 0.5)):
        ran = pair_audit("--bias", "0.05")
    assert ran.code == Exit.BIAS
    assert "BIAS FOUND" in ran.err
    advice = " ".join(ran.out.split())
    assert "A drafter that misreports p, a wrong residual and a row of q or p" in advice
    assert "`sps verify rules --verifier sps --drafter model`" in advice
    ran = pair_audit("--bias", "0.001", "--max-tokens", "100")
    assert ran.code == Exit.NOT_VALID
    assert "not valid" in ran.err


def test_greedy(pair_audit):
    ran = pair_audit("--temperature", "0", "--prompts", "2", "--format", "json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["audits"][0]["counts"] == {"identical": 2}


def test_a_run_is_audited_from_its_records(sps, pair, prompts, tmp_path):
    folder = tmp_path / "run"
    models = ("--target", pair.target, "--draft", pair.draft, "--k", "3", "--temperature", "1")
    few = ("--data", prompts, "--chat", "off", "--warmup", "0", "-n", "16", "--samples", "2")
    assert sps("bench", "jsonl", *few, *models, "--out", str(folder)).code == 0
    ran = sps("verify", "run", str(folder), "--keep", "--format", "json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)["audits"][0]
    assert found["settings"]["ars"] == "of the run"
    assert found["sps"]["tokens"] > 100
    kept = json.loads((folder / "audit.json").read_text())["audits"][0]
    assert kept["sps"] == found["sps"]
    assert kept["settings"] == found["settings"]
    assert kept["settings"]["records"] == 8
    (section,) = report_on([folder]).sections
    assert (section.line, len(section.figures)) == (kept["line"], 1)


@pytest.fixture
def one_core():
    """Leave one core to this process: it enumerates by itself, with what is planted in it."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


def test_rules(sps, one_core):
    only = ("--drafter", "model", "--schedule", "constant", "--schedule", "ema:least=0.1")
    ran = sps("verify", "rules", "--verifier", "sps", "--verifier", "synthetic", *only)
    assert "ema:least=0.1" in ran.out
    assert ran.code == 0, ran.err
    assert "held: " in ran.err
    assert "single rounds up to K = 6" in ran.err.splitlines()[-1]
    assert "; not enumerated: larger K, " in ran.err.splitlines()[-1]
    assert "lossy" in ran.out
    with patch(SPS + "Sps", partial(Lenient, 0.5)):
        ran = sps("verify", "rules", "--verifier", "sps", *only[:4], "--format", "json")
    assert ran.code == Exit.BIAS
    first = json.loads(ran.out)["rows"][0]
    assert first["verdict"] == "BIASED"
    assert "2 tokens, K = 1; after every text q = (1/3, 2/3)" in first["smallest"][0]
