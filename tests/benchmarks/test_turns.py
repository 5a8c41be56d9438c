"""Workers are processes of their own that run one at a time; engines take turns and may fail."""

import os
from pathlib import Path

import pytest

from arena.contenders.contender import Setting
from arena.process import Engine, EngineError, Process, environment
from arena.turns import Arena

FAKES = "tests.benchmarks.fakes"
PROMPTS = [[0, 1], [10, 11], [20, 21]]


@pytest.fixture
def setting(tmp_path):
    return Setting(
        target="", draft="", dtype="float32", k=4, temperature=0.0, threads=None, cores=2,
        context=64, work=str(tmp_path),
    )  # fmt: skip


def fake(kind):
    return Engine(kind, f"{FAKES}:Fake:{kind}", converts=kind == "fast")


def measure(setting, *kinds, bytes_=0):
    logs = Path(setting.work) / "logs"
    engines, reader = [fake(kind) for kind in kinds], Engine("bandwidth", f"{FAKES}:Reader")
    return Arena(engines, setting, logs, bytes_, reader).measure(PROMPTS, 20)


def test_every_repeat_has_every_engine_on_the_same_prompt(setting):
    run = measure(setting, "fast", "slow")
    assert run.failures == {}
    assert run.bandwidth == [{"made up": 2.0}] * 4  # before the steps of each
    for name in ("fast", "slow"):
        facts = run.engines[name]
        assert facts["arms"] == ["ars", "sps"]
        assert [t["tokens"][0] for t in facts["turns"]["sps"]] == [10, 20]
        assert [found["bandwidth"] for found in facts["steps"]] == [[2.0]] * 2
        assert facts["notes"]["settled"]
        assert len(facts["loads"]) == 1
    pids = {facts["notes"]["pid"] for facts in run.engines.values()}
    assert len(pids | {os.getpid()}) == 3


def test_models_are_converted_once_and_in_a_process_of_their_own(setting):
    measure(setting, "fast", "slow", bytes_=2**60)  # no memory for two: loaded again each repeat
    assert (Path(setting.work) / "converted").read_text() == "x"


def test_engines_that_do_not_fit_together_are_loaded_anew(setting):
    run = measure(setting, "fast", "slow", bytes_=2**60)
    assert len(run.engines["slow"]["turns"]["ars"]) == 2
    assert sum(len(facts["loads"]) for facts in run.engines.values()) > 2


@pytest.mark.parametrize(("kind", "why"), [("broken", "planted"), ("dying", "status 3")])
def test_an_engine_that_fails_is_named_and_the_others_go_on(setting, kind, why):
    run = measure(setting, kind, "slow")
    assert list(run.failures) == [kind]
    assert why in run.failures[kind]
    assert len(run.engines["slow"]["turns"]["sps"]) == 2


def test_a_worker_is_frozen_while_it_has_nothing_to_do(setting, tmp_path):
    process = Process(fake("slow"), tmp_path / "log")
    process.ask("load", setting=setting.__dict__)
    pid = process.ask("warm", prompt=[0])["notes"]["pid"]
    status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    assert status == "T"
    process.stop()
    assert not process.runs
    assert "noise on the standard output" in (tmp_path / "log").read_text()


def test_a_request_that_fails_says_why(setting, tmp_path):
    process = Process(Engine("none", f"{FAKES}:Missing"), tmp_path / "log")
    with pytest.raises(EngineError, match="none at 'load': AttributeError"):
        process.ask("load", setting=setting.__dict__)
    process.stop()


def test_threads_are_inherited_from_no_one():
    given = {"OMP_NUM_THREADS": "7", "PYTHONPATH": "mine", "HOME": "here"}
    free, told = environment(given), environment(given, threads=1)
    assert "OMP_NUM_THREADS" not in free
    assert told["OMP_NUM_THREADS"] == "1"
    assert free["PYTHONPATH"].endswith("mine")
    assert free["HOME"] == "here"
