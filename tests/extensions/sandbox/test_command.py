"""`sps score`: anyone's file of samples, a run, whatever is wrong with them; killed at any time."""

import contextlib
import gzip
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spsbench.errors import Exit
from spsbench.extensions.sandbox import confinement
from spsbench.extensions.sandbox.levels import JAIL_SCRIPT
from spsbench.settings.cell import Cell
from spsbench.settings.grid import make_request
from spsbench.settings.records import RoundRecord
from spsbench.spec import Spec
from spsbench.store.log import iterate
from spsbench.store.manifest import Manifest
from spsbench.store.run import open_run
from tests.extensions.sandbox.samples import LEVEL, PROBLEMS, right, written
from tests.oracles.command import COMMAND, PATIENCE, environment
from tests.oracles.inputs import KINDS, put, refused
from tests.simulation import record
from tests.waiting import wait_until

NAMES = list(PROBLEMS)
ALL = {name: problem["canonical_solution"] for name, problem in PROBLEMS.items()}
needs_sandbox = pytest.mark.skipif(
    confinement.landlock_abi() < confinement.FULL, reason=f"needs Landlock ABI {confinement.FULL}"
)


def results(path):
    lines = path.with_name(f"{path.name}_results.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def scoring(path):
    return json.loads(path.with_name(f"{path.name}_scoring.json").read_text())


def test_right_ones_pass_and_wrong_ones_fail(sps, tmp_path):
    """At the strongest level of this machine; a sample of what the slow tests do whole."""
    if confinement.landlock_abi() < confinement.FULL:
        pytest.skip("no sandbox holds here")
    good = right(10)
    bad = [(task, "    pass\n") for task, _ in good] + [(NAMES[0], "")]
    path = written(tmp_path / "samples.jsonl", [*good, *bad])
    ran = sps("score", str(path), "--allow-partial")
    assert ran.code == 0, ran.err
    assert "passed 10, failed 11" in ran.out
    assert "partial 10/164" in ran.out
    assert "pass@" not in ran.out
    found = results(path)
    assert [line["passed"] for line in found] == [True] * 10 + [False] * 11
    assert [(line["task_id"], line["completion"]) for line in found] == [*good, *bad]
    assert found[0]["result"] == "passed"
    assert found[10]["result"].startswith("failed: ")
    settings = scoring(path)["settings"]
    assert settings["sandbox"] in ("bwrap", "landlock")
    assert settings["limits"] == {"timeout": 3.0, "memory": 1024, "output": 10, "files": 32}
    assert settings["interpreter"] == sys.version.split()[0]
    assert settings["flags"]["landlock"] >= 1
    header = next(iterate(path.with_name("samples.jsonl_verdicts.jsonl")))
    assert header["settings"] == settings


@pytest.mark.slow
@needs_sandbox
@pytest.mark.parametrize("level", ["auto", "landlock"])
@pytest.mark.parametrize(("text", "passes"), [(None, 164), ("", 0), ("    pass\n", 0)])
def test_all_of_them(sps, tmp_path, level, text, passes):
    pairs = [(task, solution if text is None else text) for task, solution in ALL.items()]
    path = written(tmp_path / "samples.jsonl", pairs)
    ran = sps("score", str(path), "--sandbox", level)
    assert ran.code == 0, ran.err
    assert f"pass@1 {passes / 164:.4f}" in ran.out
    assert sum(line["passed"] for line in results(path)) == passes


def test_files_of_other_tools(sps, tmp_path):
    """More keys, gzip, CRLF and a byte order mark; whole programs, as EvalPlus writes them."""
    task = "HumanEval/0"
    whole = PROBLEMS[task]["prompt"] + ALL[task]
    lines = [
        {"task_id": task, "completion": ALL[task], "model": "x", "score": 0.5},
        {"task_id": task, "solution": whole, "_identifier": "HumanEval/0_1"},
        {"task_id": task, "completion": "\n```python\nprose\n```"},
        {"task_id": task, "completion": "    return 1\0\n"},
    ]
    text = "\ufeff" + "\r\n".join(json.dumps(line) for line in lines)
    path = tmp_path / "samples.jsonl.gz"
    path.write_bytes(gzip.compress(text.encode("utf-8")))
    ran = sps("score", str(path), "--allow-partial", *LEVEL)
    assert ran.code == 0, ran.err
    assert "note: nothing is isolated" in ran.err
    found = results(path)
    assert [line["passed"] for line in found] == [True, True, False, False]
    assert all(line["result"].startswith("failed: syntax: ") for line in found[2:])
    assert found[0]["model"] == "x"
    assert found[0]["score"] == 0.5


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ('{"task_id": "HumanEval/0"}', 65, "no 'completion' "),
        ('{"task_id": "HumanEval/999", "completion": ""}', 65, "unknown problem 'HumanEval/999'"),
        ('{"task_id": "../../etc/x", "completion": ""}', 65, "unknown problem"),
        ('{"task_id": "HumanEval/0", "comple', 65, "JSON"),
        ("\xff", 65, ""),
    ],
)
def test_bad_lines_are_named(sps, tmp_path, line, code, said):
    path = written(tmp_path / "samples.jsonl", [("HumanEval/0", "")])
    path.write_bytes(path.read_bytes() + line.encode("latin-1") + b"\n")
    ran = sps("score", str(path), *LEVEL)
    assert ran.code == code
    assert said in ran.err
    assert f"{path}:2" in ran.err
    assert len(ran.err.splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("abi", [0, confinement.FULL - 1])
def test_no_sandbox_no_verdict(sps, tmp_path, monkeypatch, abi):
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(confinement, "landlock_abi", lambda: abi)
    path = written(tmp_path / "samples.jsonl", right(4))
    ran = sps("score", str(path), "--allow-partial")
    assert ran.code == 3
    for words in ("bwrap: not installed", f"ABI is {abi}", "Install bubblewrap", LEVEL[-1]):
        assert words in ran.err
    assert len(ran.err.splitlines()) == 1
    assert list(tmp_path.glob("samples.jsonl_*")) == []


def test_it_goes_on_and_other_settings_do_not_mix(sps, tmp_path):
    path = written(tmp_path / "samples.jsonl", right(4))
    arguments = ("score", str(path), "--allow-partial", *LEVEL)
    assert sps(*arguments).code == 0
    log = path.with_name("samples.jsonl_verdicts.jsonl")
    before = log.read_bytes()
    again = sps(*arguments)
    assert again.code == 0
    assert "programs, " not in again.err
    assert log.read_bytes() == before
    with path.open("a") as file:
        file.write(json.dumps({"task_id": NAMES[5], "completion": ""}) + "\n")
    more = sps(*arguments)
    assert more.code == 0
    assert "1 programs" in more.err
    ran = sps(*arguments, "--timeout", "2")
    assert ran.code == Exit.MISMATCH
    assert '"timeout": 2' in ran.err
    assert sps(*arguments, "--timeout", "2", "--overwrite").code == 0
    assert log.with_name(f"{log.name}.old-1").exists()
    written(path, [(task, "    pass\n") for task, _ in right(4)])
    changed = sps(*arguments, "--timeout", "2")
    assert changed.code == Exit.MISMATCH
    assert "another program was judged as HumanEval/0/0" in changed.err


def jails():
    """Processes that hold, or run in, a sandbox of this checkout."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if JAIL_SCRIPT.encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
    return found


@needs_sandbox
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_it_and_every_jail(tmp_path, number):
    path = written(tmp_path / "samples.jsonl", right() * 3)
    log = path.with_name(f"{path.name}_verdicts.jsonl")
    process = subprocess.Popen(
        [*COMMAND, "score", str(path), "--allow-partial"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=environment(),
    )
    while not log.exists() or log.read_bytes().count(b"\n") < 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE)
    is_killed = number == signal.SIGKILL
    assert process.returncode == (-number if is_killed else 128 + number)
    assert is_killed or "Continue with: sps score" in err.decode()
    assert wait_until(lambda: not jails())


ROUNDS = [RoundRecord(0, 0, 0, 1, None, 0.1, 0.0, 0.1)]


def made_run(folder, texts, problems=164, planned=None):
    """A run of ArS and SpS whose texts are given, as `sps bench --samples 2` leaves it."""
    planned = problems if planned is None else planned
    task = Spec("humaneval")
    cells = [Cell.from_request(make_request(target="nano", k=k)).but(task=task) for k in (0, 4)]
    part = {
        "task": "humaneval",
        "title": "HumanEval",
        "prompt_version": "raw-1",
        "metrics": [],
        "limit": None if planned == 164 else planned,
        "samples": 2,
        "repeats": 1,
        "cells": [cell.id for cell in cells],
    }
    manifest = Manifest(
        experiment={"title": "made", "parts": [part], "samples": {"humaneval": NAMES[:planned]}},
        cells={cell.id: cell.to_json() for cell in cells},
        fingerprint={"made": 1},
    )
    with open_run(folder, manifest) as writer:
        for name in NAMES[:problems]:
            for repeat in range(2):
                for cell in cells:
                    text = texts(cell, name, repeat)
                    writer.append(record(cell, name, repeat, ROUNDS, text=text))
    return cells


def by_length(cell, name, repeat):
    """Right for the problems of even number, and for the first sample of the others under SpS."""
    good = int(name.split("/")[1]) % 2 == 0 or (cell.k != 0 and repeat == 0)
    return ALL[name] if good else "    raise RuntimeError\n"


def test_a_run(sps, tmp_path):
    folder, problems = tmp_path / "run", 8
    ars, sampled = made_run(folder, by_length, problems)
    assert sps("report", str(folder)).out.count("pass@1") == 0
    ran = sps("score", str(folder), *LEVEL)
    assert ran.code == 0, ran.err
    for shown in (ran.out, sps("report", str(folder)).out):
        flat = " ".join(shown.split())
        assert "pass@1 0.5000, 95 % [" in flat
        assert "pass@1 0.7500, 95 % [" in flat
        assert "over problems" in flat
        assert "difference +0.2500" in flat
        assert "Programs: sandbox" in flat
        assert "partial" in flat
    found = json.loads((folder / "scoring.json").read_text())
    assert found["cells"][ars.id]["verdicts"]["passed"] == problems
    assert found["cells"][sampled.id]["verdicts"]["passed"] == problems * 3 // 2
    rows = json.loads((folder / "summary.json").read_text())["rows"]
    assert [row["metrics"]["quality.pass@1"]["mean"] for row in rows] == [0.5, 0.75]


def test_an_unfinished_run_is_partial(sps, tmp_path):
    folder = tmp_path / "run"
    made_run(folder, by_length, 4, planned=6)
    ran = sps("score", str(folder), *LEVEL)
    assert ran.code == Exit.DATA
    assert "partial 4/6, 8 generations missing" in ran.err
    assert sps("score", str(folder), "--allow-partial", *LEVEL).code == 0
    found = json.loads((folder / "scoring.json").read_text())
    assert found["partial"].startswith("partial 4/6")
    assert all(cell["pass"] == {} for cell in found["cells"].values())


def test_verdicts_of_one_kind_are_merged(sps, tmp_path):
    folder = tmp_path / "run"
    made_run(folder, by_length, 2)
    assert sps("score", str(folder), *LEVEL).code == 0
    ran = sps("merge", str(folder), "--out", str(tmp_path / "same"))
    assert ran.code == 0, ran.err
    assert "pass@1" in ran.out
    assert (tmp_path / "same" / "verdicts.jsonl").exists()
    other = tmp_path / "other"
    made_run(other, by_length, 2)
    assert sps("score", str(other), *LEVEL, "--timeout", "2").code == 0
    ran = sps("merge", str(folder), str(other), "--out", str(tmp_path / "mixed"))
    assert ran.code == 0, ran.err
    assert "were made otherwise and are left out" in ran.err
    assert "pass@1" not in ran.out


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", KINDS)
def test_programs_that_cannot_be_read(kind, sps, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    put(Path("bad"), kind)
    refused(sps("score", "./bad"))


@pytest.fixture
def bench(sps, pair):
    """`sps bench humaneval` of one problem and four tokens, of the tiny target."""
    models = "--target", pair.target, "--drafter", "ngram", "--chat", "off", "--engine", "eager"
    few = "--limit", "1", "-n", "4", "--k", "2", "--warmup", "0"
    return lambda *more: sps("bench", "humaneval", *few, *models, *more)


@needs_sandbox
def test_bench_scores_at_its_end_in_a_process_of_its_own(bench, tmp_path):
    out = tmp_path / "run"
    ran = bench("--out", str(out), "--no-score")
    assert ran.code == 0, ran.err
    assert not (out / "verdicts.jsonl").exists()
    assert "pass@1" not in ran.out
    ran = bench("--out", str(out), "--resume")
    assert ran.code == 0, ran.err
    assert "pass@1" in ran.out
    assert "partial 1/164 problems" in " ".join(ran.out.split())
    assert len(list(iterate(out / "verdicts.jsonl"))) == 1 + 2


@pytest.mark.parametrize(
    ("flags", "code"),
    [(("--score",), Exit.SANDBOX), pytest.param((), Exit.OK, marks=pytest.mark.slow)],
)
def test_a_refused_sandbox_does_not_lose_the_run(bench, tmp_path, monkeypatch, flags, code):
    """The scorer's code if it was asked for by name; the run is whole, the next step is said."""
    monkeypatch.setattr("spsbench.benchmark.conduct.PROGRAM", "raise SystemExit(3)")
    out = tmp_path / "run"
    ran = bench("--out", str(out), *flags)
    assert ran.code == code
    assert "the run is complete, but its programs are not scored" in ran.err
    assert f"sps score {out}" in ran.err
    assert "speed-up" in ran.out
    assert (out / "summary.json").exists()
