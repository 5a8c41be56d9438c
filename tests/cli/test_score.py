"""`sps score`: anyone's samples and our own runs, held, judged once, and told."""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from spsbench.errors import Exit
from spsbench.results import Cell, ModelRef, Record, RoundRecord, Spec
from spsbench.sandbox import choice
from spsbench.sandbox.selftest import Answer
from spsbench.store.log import iterate
from spsbench.store.manifest import Manifest
from spsbench.store.run import open_run
from spsbench.tasks.humaneval import HumanEval
from tests.cli.conftest import COMMAND, Ran

PROBLEMS = HumanEval().problems
FEW = list(PROBLEMS.values())[:6]
WRONG = "    return None\n"


@pytest.fixture(autouse=True)
def landlock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The level that needs nothing installed."""
    if reason := choice.AUTO[1].missing():
        pytest.skip(f"landlock: {reason}")
    monkeypatch.setattr(choice, "AUTO", choice.AUTO[1:])


def samples(path: Path, lines: list[dict[str, object]]) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def mixed(path: Path, right: int = 3) -> str:
    """Six problems, the first `right` of them answered as the package does."""
    return samples(
        path,
        [
            {"task_id": p.id, "completion": p.canonical_solution if i < right else WRONG}
            for i, p in enumerate(FEW)
        ],
    )


def results(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_anyones_samples_are_scored(sps: Callable[..., Ran], tmp_path: Path) -> None:
    ran = sps("score", mixed(tmp_path / "s.jsonl"), "--allow-partial")
    assert ran.code == 0
    assert "partial, 6 of 164 problems" in ran.out
    assert "pass@" not in ran.out.replace("no pass@k", "")
    found = results(tmp_path / "s.jsonl_results.jsonl")
    assert [one["passed"] for one in found] == [True] * 3 + [False] * 3
    assert found[0]["result"] == "passed"
    assert found[3]["result"].startswith("failed: ")
    assert [one["task_id"] for one in found] == [p.id for p in FEW]


@pytest.mark.parametrize("level", ["landlock", "bwrap"])
@pytest.mark.parametrize("count", [16, pytest.param(164, marks=pytest.mark.slow)])
def test_it_agrees_with_the_package(
    level: str, count: int, sps: Callable[..., Ran], tmp_path: Path
) -> None:
    """Canonical solutions pass, empty bodies do not."""
    chosen = random.Random(0).sample(list(PROBLEMS.values()), count)
    lines = [{"task_id": p.id, "completion": p.canonical_solution} for p in chosen]
    lines += [{"task_id": p.id, "completion": "    pass\n"} for p in chosen]
    file = samples(tmp_path / "s.jsonl", lines)
    ran = sps("score", file, "--allow-partial", "--sandbox", level, "--k", "1,2,3")
    if ran.code == Exit.SANDBOX:
        pytest.skip(ran.err)
    assert ran.code == 0
    found = [one["passed"] for one in results(tmp_path / "s.jsonl_results.jsonl")]
    assert found == [True] * count + [False] * count
    if count == len(PROBLEMS):  # one of two passes: pass@1 = 1/2, pass@2 = 1
        assert "0.500" in ran.out
        assert "1.000" in ran.out
        assert "n/a" in ran.out


def test_verdicts_are_kept_and_found_again(sps: Callable[..., Ran], tmp_path: Path) -> None:
    file = mixed(tmp_path / "s.jsonl")
    sps("score", file, "--allow-partial")
    log = tmp_path / "s.jsonl_verdicts.jsonl"
    first = log.read_bytes()
    settings = next(iterate(log))["settings"]
    assert settings["sandbox"] == "landlock"
    assert settings["limits"]["seconds"] == 3.0
    ran = sps("score", file, "--allow-partial")
    assert "0 programs to run" in ran.err
    assert log.read_bytes() == first


def test_verdicts_of_other_settings_are_not_mixed(sps: Callable[..., Ran], tmp_path: Path) -> None:
    file = mixed(tmp_path / "s.jsonl")
    sps("score", file, "--allow-partial")
    before = (tmp_path / "s.jsonl_verdicts.jsonl").read_bytes()
    ran = sps("score", file, "--allow-partial", "--timeout", "5")
    assert ran.code == Exit.MISMATCH
    assert "limits" in ran.err
    assert (tmp_path / "s.jsonl_verdicts.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("lines", "code", "said"),
    [
        ([{"task_id": "HumanEval/0", "completion": None}], Exit.DATA, "'completion' is NoneType"),
        ([{"task_id": "HumanEval/0"}], Exit.DATA, "no 'completion'"),
        ([{"task_id": "../../etc", "completion": "x"}], Exit.DATA, "unknown problem '../../etc'"),
        ([{"completion": "x"}], Exit.DATA, "no 'task_id'"),
        ([], Exit.DATA, "no completions"),
        ([{"task_id": "HumanEval/0", "completion": ""}], Exit.DATA, "1 of 164 problems"),
    ],
)
def test_bad_samples(
    lines: list[dict], code: int, said: str, sps: Callable[..., Ran], tmp_path: Path
) -> None:
    ran = sps("score", samples(tmp_path / "s.jsonl", lines))
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err
    assert len(ran.err.splitlines()) == 1
    assert not (tmp_path / "s.jsonl_results.jsonl").exists()


def test_half_a_surrogate_pair_is_a_program_that_fails(
    sps: Callable[..., Ran], tmp_path: Path
) -> None:
    line = {"task_id": "HumanEval/0", "completion": "    return '\ud800'"}
    sps("score", samples(tmp_path / "s.jsonl", [line]), "--allow-partial")
    assert results(tmp_path / "s.jsonl_results.jsonl")[0]["result"].startswith("failed: syntax")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--sandbox", "none"), "--i-understand-this-runs-untrusted-code"),
        (("--sandbox", "vm"), "expected one of auto, bwrap"),
        (("--i-understand-this-runs-untrusted-code",), "with --sandbox none only"),
        (("--timeout", "0"), "--timeout"),
        (("--memory", "1"), "--memory"),
        (("--workers", "0"), "--workers"),
        (("--k", "0"), "--k"),
        (("--image", "x"), "--sandbox docker or podman"),
    ],
)
def test_flags_that_cannot_be_meant(
    flags: tuple[str, ...], said: str, sps: Callable[..., Ran], tmp_path: Path
) -> None:
    ran = sps("score", mixed(tmp_path / "s.jsonl"), *flags)
    assert ran.code == Exit.USAGE
    assert said in ran.err


def test_without_a_sandbox_nothing_is_run(
    sps: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "holds", lambda level: Answer(False, "not here"))
    ran = sps("score", mixed(tmp_path / "s.jsonl"), "--allow-partial")
    assert (ran.code, ran.out) == (Exit.SANDBOX, "")
    assert "Install bubblewrap" in ran.err
    assert os.listdir(tmp_path) == ["s.jsonl"]


def test_none_is_possible_when_it_is_understood(sps: Callable[..., Ran], tmp_path: Path) -> None:
    file = mixed(tmp_path / "s.jsonl")
    understood = "--i-understand-this-runs-untrusted-code"
    ran = sps("score", file, "--allow-partial", "--sandbox", "none", understood)
    assert ran.code == 0
    assert sum(one["passed"] for one in results(tmp_path / "s.jsonl_results.jsonl")) == 3


def make_run(folder: Path) -> None:
    """A run of humaneval with two samples of six problems under ArS and SpS, half of them right."""
    base = Cell(target=ModelRef("nano"), task=Spec("humaneval"), verifier=Spec("sps"))
    ars = Cell(target=ModelRef("nano"), task=Spec("humaneval"), drafter=Spec("none"))
    manifest = Manifest(
        experiment={"parts": [{"title": "six problems"}]},
        cells={cell.id: asdict(cell) for cell in (ars, base)},
        fingerprint={},
        provenance={},
    )
    rounds = [RoundRecord(4, 1, 0, 1, 0.5, 0.01, 0.005, 0.004)]
    with open_run(folder, manifest) as writer:
        for cell in (ars, base):
            for number, problem in enumerate(FEW):
                for repeat in range(2):
                    right = number % 2 == 0
                    writer.append(
                        Record(
                            cell=cell.id,
                            sample=problem.id,
                            repeat=repeat,
                            prompt_tokens=9,
                            tokens=[1],
                            text=problem.canonical_solution if right else WRONG,
                            finish="stop",
                            prefill_seconds=0.1,
                            rounds=rounds,
                        )
                    )


def test_a_run_is_scored_and_reported(sps: Callable[..., Ran], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    make_run(folder)
    assert "pass@1" not in sps("report", str(folder)).out
    ran = sps("score", str(folder), "--k", "1,2,3")
    assert ran.code == 0
    assert "6 programs to run" in ran.err  # of 24 records: equal programs share a verdict
    assert ran.out.count("0.500") >= 4  # pass@1 of both arms, in both tables
    assert "over problems" in ran.out
    assert "over samples" in ran.out
    report = sps("report", str(folder), "--format", "json").out
    quality = [row["metrics"]["quality.pass@1"]["mean"] for row in json.loads(report)["rows"]]
    assert quality == [0.5, 0.5]
    assert "Programs ran in the sandbox landlock" in sps("report", str(folder)).out


def test_a_run_without_programs_is_refused(sps: Callable[..., Ran], tmp_path: Path) -> None:
    cell = Cell(target=ModelRef("nano"), task=Spec("xsum"))
    manifest = Manifest(experiment={}, cells={cell.id: asdict(cell)}, fingerprint={}, provenance={})
    with open_run(tmp_path / "run", manifest):
        pass
    ran = sps("score", str(tmp_path / "run"))
    assert ran.code == Exit.DATA
    assert "expected a run of humaneval" in ran.err


@pytest.mark.parametrize("kills", [4, pytest.param(50, marks=pytest.mark.slow)])
def test_a_killed_scorer_loses_and_doubles_nothing(kills: int, tmp_path: Path) -> None:
    chosen = list(PROBLEMS.values())[:40]
    lines = [
        {"task_id": p.id, "completion": p.canonical_solution + f"# {i}\n"}
        for p in chosen
        for i in range(max(1, kills // 5))
    ]
    file = samples(tmp_path / "s.jsonl", lines)
    log = tmp_path / "s.jsonl_verdicts.jsonl"
    command = [*COMMAND, "score", file, "--allow-partial", "--sandbox", "landlock"]
    draw, entries = random.Random(1), 0
    for _ in range(kills):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        goal = entries + draw.randint(1, 4)
        until = time.monotonic() + 60
        while len(log.read_bytes().splitlines() if log.exists() else []) < goal:
            if process.poll() is not None or time.monotonic() > until:
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        entries = len(log.read_bytes().splitlines())
    subprocess.run(command, check=True, capture_output=True, timeout=250)
    found = [values for values in iterate(log) if "settings" not in values]
    keys = [(one["task"], one["completion"]) for one in found]
    assert len(keys) == len(set(keys)) == len(lines)
    assert all(one["verdict"] == "passed" for one in found)


def test_without_asserts_the_verdicts_are_the_same(tmp_path: Path) -> None:
    """`python -O` would drop the tests of the programs, if they ran in this interpreter."""
    file = mixed(tmp_path / "s.jsonl")
    command = [COMMAND[0], "-O", *COMMAND[1:], "score", file, "--allow-partial"]
    command += ["--sandbox", "landlock"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    assert sum(one["passed"] for one in results(tmp_path / "s.jsonl_results.jsonl")) == 3
