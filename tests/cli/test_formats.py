"""One way to name a format, for all commands; and reporters of other packages."""

import json

import pytest

from spsbench.errors import Exit
from spsbench.store.manifest import RUN_SCHEMA
from tests.golden.make import GOLDEN
from tests.installed import install
from tests.parsed import commands

RUN = str(GOLDEN / str(RUN_SCHEMA))
THEIRS = """
from spsbench.reports.reporter import Report


def packed(report: Report) -> bytes:
    return b"\\x93\\x00" + report.title.encode()


def broken(report: Report) -> bytes:
    return report.rows


def nothing(report: Report) -> None:
    return None
"""
POINTS = "[spsbench.reporters]\n" + "".join(
    f"{name} = their_reports:{name}\n" for name in ("packed", "broken", "nothing")
)


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(install(tmp_path / "site", {"their_reports.py": THEIRS}, POINTS))


def test_every_command_names_its_format_alike():
    for name, command in commands():
        options = {option for parameter in command.params for option in parameter.opts}
        if not hasattr(command, "list_commands") and name != "sps lm-eval":  # of another program
            assert {"--format", "-f", "--json"} <= options, name


def test_the_short_form_is_the_long_one(sps):
    assert sps("list", "--format", "json").out == sps("list", "--json").out
    short = sps("report", RUN, "--json")
    assert short.out == sps("report", RUN, "--format", "json").out
    assert json.loads(short.out)["run"] == "golden"


@pytest.mark.usefixtures("theirs")
def test_a_reporter_of_another_package(sps, tmp_path):
    out = tmp_path / "report.bin"
    packed = sps("report", RUN, "--format", "packed", "--out", str(out))
    assert (packed.code, packed.out) == (0, "")
    assert out.read_bytes() == b"\x93\x00golden"


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize("name", ["broken", "nothing"])
def test_a_reporter_that_fails_is_named(sps, name):
    ran = sps("report", RUN, "--format", name)
    assert (ran.code, ran.out) == (Exit.DATA, "")
    assert f"--format {name} (from theirs, their_reports:{name}: " in ran.err


def test_bytes_are_for_no_terminal(sps, theirs, monkeypatch):
    monkeypatch.setattr("spsbench.cli.publish.is_terminal", lambda stream: True)
    ran = sps("report", RUN, "--format", "packed")
    assert (ran.code, ran.out) == (Exit.USAGE, "")
    assert "Name one with --out" in ran.err
