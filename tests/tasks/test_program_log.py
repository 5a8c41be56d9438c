"""The log of verdicts: resumed only as what it is, merged only with its like."""

import pytest

from spsbench.errors import DataError
from spsbench.tasks.program_log import NAME, VerdictLog, merge_verdicts, read_verdicts, scores
from spsbench.tasks.program_texts import Program
from spsbench.tasks.verdicts import Outcome, ProgramVerdict

SETTINGS = {"sandbox": "landlock", "limits": {"timeout": 3.0}, "interpreter": "3.11.7"}
PASSED = Outcome(ProgramVerdict.PASSED, "", 0.25)
FAILED = Outcome(ProgramVerdict.FAILED, "AssertionError: \x1b[31m \ud800", 0.5)


def program(number):
    return Program(("cell", f"HumanEval/{number}", 0), "x = 1")


def filled(folder, numbers):
    folder.mkdir(exist_ok=True)
    with VerdictLog(folder / NAME, SETTINGS) as log:
        for number in numbers:
            log.add(program(number), PASSED if number % 2 else FAILED)
    return folder


def test_what_is_written_is_read(tmp_path):
    settings, judged = read_verdicts(filled(tmp_path, range(3)) / NAME)
    assert settings == SETTINGS
    assert [each.key for each in judged] == [program(n).key for n in range(3)]
    assert [each.verdict for each in judged] == ["failed", "passed", "failed"]
    assert judged[0].detail == FAILED.detail
    assert [s.metrics["passed"] for s in scores(tmp_path)] == [0.0, 1.0, 0.0]
    assert read_verdicts(tmp_path / "absent") == ({}, [])


def test_verdicts_of_runs_are_united_unless_two_differ(tmp_path):
    one, two = filled(tmp_path / "one", range(4)), filled(tmp_path / "two", range(2, 6))
    assert merge_verdicts([one, two], tmp_path) == ""
    settings, judged = read_verdicts(tmp_path / NAME)
    assert settings == SETTINGS
    assert [each.sample for each in judged] == [f"HumanEval/{n}" for n in range(6)]
    with VerdictLog(two / NAME, SETTINGS) as log:
        log.add(program(1), FAILED)
    with pytest.raises(DataError):
        merge_verdicts([one, two], tmp_path)
