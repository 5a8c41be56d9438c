"""The log of verdicts: resumed only as what it is, merged only with its like."""

import pytest

from spsbench.errors import DataError, InUseError, MismatchError
from spsbench.tasks.program_log import NAME, VerdictLog, merge, read, scores
from spsbench.tasks.program_texts import Program
from spsbench.tasks.verdicts import Outcome, ProgramVerdict

SETTINGS = {"sandbox": "landlock", "limits": {"timeout": 3.0}, "interpreter": "3.11.7"}
PASSED = Outcome(ProgramVerdict.PASSED, "", 0.25)
FAILED = Outcome(ProgramVerdict.FAILED, "AssertionError: \x1b[31m \ud800", 0.5)


def program(number, source="x = 1"):
    return Program(("cell", f"HumanEval/{number}", 0), source)


def filled(folder, numbers, settings=SETTINGS):
    folder.mkdir(exist_ok=True)
    with VerdictLog(folder / NAME, settings) as log:
        for number in numbers:
            log.append(program(number), PASSED if number % 2 else FAILED)
    return folder


def test_what_is_written_is_read(tmp_path):
    settings, judged = read(filled(tmp_path, range(3)) / NAME)
    assert settings == SETTINGS
    assert [each.key for each in judged] == [program(n).key for n in range(3)]
    assert [each.verdict for each in judged] == ["failed", "passed", "failed"]
    assert judged[0].detail == FAILED.detail
    assert [s.metrics["passed"] for s in scores(tmp_path)] == [0.0, 1.0, 0.0]
    assert read(tmp_path / "absent") == ({}, [])


def test_it_goes_on_where_it_was(tmp_path):
    filled(tmp_path, range(2))
    wanted = [program(n) for n in range(4)]
    with VerdictLog(tmp_path / NAME, SETTINGS) as log:
        assert log.missing(wanted) == wanted[2:]
        with pytest.raises(InUseError):
            VerdictLog(tmp_path / NAME, SETTINGS)
        with pytest.raises(MismatchError):
            log.missing([program(1, "x = 2")])


@pytest.mark.parametrize("changed", [{"sandbox": "bwrap"}, {"interpreter": "3.12.0"}, {"more": 1}])
def test_other_settings_are_refused(tmp_path, changed):
    path = filled(tmp_path, range(3)) / NAME
    before = path.read_bytes()
    with pytest.raises(MismatchError):
        VerdictLog(path, SETTINGS | changed)
    assert path.read_bytes() == before
    with VerdictLog(path, SETTINGS | changed, overwrite=True) as log:
        assert log.judged == {}
    assert path.with_name(f"{NAME}.old-1").read_bytes() == before


def test_merged_only_if_made_alike(tmp_path):
    one, two = filled(tmp_path / "one", range(4)), filled(tmp_path / "two", range(2, 6))
    (tmp_path / "none").mkdir()
    out = tmp_path / "out"
    out.mkdir()
    assert merge([one, tmp_path / "none", two], out) == ""
    settings, judged = read(out / NAME)
    assert settings == SETTINGS
    assert [each.sample for each in judged] == [f"HumanEval/{n}" for n in range(6)]
    other = filled(tmp_path / "other", range(2), SETTINGS | {"sandbox": "bwrap"})
    (tmp_path / "out2").mkdir()
    told = merge([one, other], tmp_path / "out2")
    assert 'sandbox: "bwrap", there "landlock"' in told
    assert not (tmp_path / "out2" / NAME).exists()
    assert merge([tmp_path / "none"], tmp_path / "none") == ""


def test_two_verdicts_on_one_program_are_an_error(tmp_path):
    one = filled(tmp_path / "one", range(2))
    two = tmp_path / "two"
    two.mkdir()
    with VerdictLog(two / NAME, SETTINGS) as log:
        log.append(program(1), FAILED)
    with pytest.raises(DataError):
        merge([one, two], tmp_path)
