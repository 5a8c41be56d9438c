"""Expectations, files for pipelines, the pytest plug-in, and the action's shell."""

import json
import os
import socket
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import numpy as np
import pytest
import yaml

from spsbench.audit.statistical.finding import AuditVerdict
from spsbench.errors import DataError
from spsbench.extensions.conformance.expect import Expectation, deviations, read_expectation
from tests.extensions.check.stubs import of_stub
from tests.oracles.stub import Engine, Stub, serving

ROOT = Path(__file__).parents[3]
SARIF = json.loads(Path(__file__).with_name("sarif.json").read_text())
PLUGIN = "spsbench.extensions.conformance.plugin"
QUICK = ["--only", "greedy", "--only", "law", "--bias", "0.15", "-n", "16"]
TESTS = """
    from spsbench.extensions.conformance.plugin import assert_cache, assert_sampled

    def test_sampled(sps_server):
        assert_sampled(sps_server, bias=0.15, max_new_tokens=16)

    def test_logprobs_need_weights(sps_server):
        from spsbench.extensions.conformance.plugin import assert_logprobs
        assert_logprobs(sps_server)
"""


def counts(rounds, *shares, seed=None):
    rng, reached = np.random.default_rng(seed), [rounds]
    for share in shares:
        n = reached[-1]
        reached.append(round(n * share) if seed is None else int(rng.binomial(n, share)))
    return Expectation(0.05, {}, {"law": "held"}, reached=reached)


def test_lost_acceptance_deviates_and_noise_alarms_no_more_often_than_stated():
    assert deviations(counts(2000, 0.741, 0.6), counts(2000, 0.635, 0.6))
    assert not deviations(counts(2000, 0.741, 0.6), counts(2000, 0.73, 0.6))
    pairs = (
        (counts(700, 0.74, 0.6, 0.5, seed=i), counts(400, 0.74, 0.6, 0.5, seed=-i - 1 & 2**31))
        for i in range(1000)
    )
    assert sum(bool(deviations(*pair)) for pair in pairs) <= 50


def test_a_position_accepted_more_often_than_the_one_before_is_compared():
    assert not deviations(*[Expectation(0.05, {}, {}, reached=[100, 50, 80])] * 2)


@pytest.mark.parametrize("level", ["0.0", "1.0", "nan"])
def test_an_expectation_with_a_level_that_is_no_chance_is_refused(tmp_path, level):
    path = tmp_path / "expect.toml"
    path.write_text(f"level = {level}\n[versions]\n[parts]\n")
    with pytest.raises(DataError, match="level"):
        read_expectation(path)


@pytest.mark.slow
def test_texts_of_unchanged_engines_alarm_no_more_often_than_stated():
    def found(seed):
        made = [Engine().generate([i % 8], 32, 1.0, 1000 * seed + i) for i in range(16)]
        accepted = np.concatenate([text.accepted for text in made])
        return Expectation(0.05, {}, {}, reached=[int((accepted >= k).sum()) for k in range(4)])

    pairs = [(found(2 * i), found(2 * i + 1)) for i in range(100)]
    assert sum(bool(deviations(*pair)) for pair in pairs) <= 5


@pytest.mark.slow
def test_sixty_honest_servers_hold():
    results = [
        of_stub(Stub(Engine()), seed=1000 * i, level=(0.001, 0.05)[i % 2]) for i in range(60)
    ]
    biased = [i for i, result in enumerate(results) if result.verdict is AuditVerdict.BIAS]
    assert not [i for i in biased if i % 2 == 0]
    assert len(biased) <= 5  # of 30 at 0.05: more with a probability of 0.003


def test_a_worse_verdict_deviates_and_a_better_one_does_not():
    held, undecided = (
        Expectation(0.001, {}, {"law": word}) for word in ("held", "cannot be decided")
    )
    assert deviations(held, undecided) == ["law: cannot be decided, expected held"]
    assert deviations(held, Expectation(0.001, {}, {}))
    assert not deviations(undecided, held)


def test_a_check_is_compared_with_what_is_kept_of_another(sps, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept, junit = tmp_path / "sps.toml", tmp_path / "junit.xml"
    with serving(Stub(Engine())) as url:
        assert sps("check", url, *QUICK, "--write-expect", kept).code == 0
        assert (
            sps("check", url, *QUICK, "--expect", kept, "--junit", junit, "--keep", "b").code == 0
        )
    values = tomllib.loads(kept.read_text())
    assert values["parts"] == {"law": "held", "greedy": "held"}
    assert values["reached"] == sorted(values["reached"], reverse=True)
    assert len(values["reached"]) == 4
    suite = ElementTree.parse(junit).getroot()
    assert (suite.tag, suite.get("tests"), suite.get("failures")) == ("testsuite", "3", "0")
    with serving(Stub(Engine(defect="verifies greedily"))) as url:
        more = ("--keep", "c", "--expect", kept, "--junit", junit, "--format", "sarif")
        ran = sps("check", url, *QUICK, *more)
    assert ran.code == 8
    log = json.loads(ran.out)
    jsonschema.validate(log, SARIF)
    assert {"sps/law", "sps/expectation"} <= {r["ruleId"] for r in log["runs"][0]["results"]}
    assert ElementTree.parse(junit).getroot().findall(".//testcase[@name='law']/failure")


@pytest.mark.parametrize(("defect", "failed"), [(None, 0), ("verifies greedily", 1)])
def test_the_plug_in_fails_on_a_biased_server_alone(tmp_path, defect, failed):
    (tmp_path / "test_lossless.py").write_text(textwrap.dedent(TESTS))
    with serving(Stub(Engine(defect=defect))) as url:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:sps",
            "-p",
            PLUGIN,
            "--sps-server",
            url,
            "-rxf",
        ]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        taken = subprocess.run([*command, "--sps-command", "true"], cwd=tmp_path)
    assert taken.returncode == 1  # the address is another server's, not the command's
    assert ran.returncode == failed, ran.stdout
    assert "1 xfailed" in ran.stdout
    assert ("BIAS FOUND" in ran.stdout and "again: sps check" in ran.stdout) == bool(failed)


def test_the_shell_of_the_action_starts_a_server_and_ends_it(tmp_path):
    action = yaml.safe_load((ROOT / "recipes/ci/action.yml").read_text())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (step,) = action["runs"]["steps"]
    inputs = {name: value.get("default", "") for name, value in action["inputs"].items()}
    inputs["url"], inputs["arguments"] = f"http://127.0.0.1:{port}", " ".join(QUICK)
    inputs["command"] = f"{sys.executable} {ROOT / 'docs/examples/server.py'} {port} --greedy"
    given = {k: inputs[v.split(".")[1].split()[0]] for k, v in step["env"].items()}
    place = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", "-c", step["run"]],
        cwd=tmp_path,
        env={**os.environ, **given, "PATH": place},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 7, ran.stderr
    assert (tmp_path / "sps-check.xml").exists()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), 1)
