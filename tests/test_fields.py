"""Rooms name the fields of options; flags are the command line's."""

import re
from pathlib import Path

import pytest

from spsbench.cli.terminal import with_flags
from spsbench.errors import DataError, as_it_is, first_line
from tests.parsed import commands, strings

ROOT = Path(__file__).parents[1] / "spsbench"
FLAG = re.compile(r"--[a-z][a-z_-]*")
COMMAND = re.compile(r"\bsps [a-z](?:(?!(?<!\.)\. |`[ .,]).)*", re.S)  # to the end of its sentence
PROGRAMS = {  # what runs other programs, by their flags; plots have variables of CSS
    *("extensions/sandbox/levels.py", "extensions/sandbox/runner.py", "models/gguf/wheel.py"),
    *("extensions/cpu/kernels/native.py", "store/provenance.py"),
    "reports/plots.py",
    "extensions/conformance/plugin.py",  # options of pytest
    "planning/logs/tables.py",  # settings of engines, to be pasted there
}
OF_OTHERS = {  # flags of other programs, in messages
    *("--append-result", "--help", "--logits_all", "--merge", "--nproc-per-node", "--head"),
    *("--per-request-spec-decode-metrics", "--additional-config"),
    *("--save-result", "--save-detailed"),
    "--name-of-the-field",
    "--i-understand-this-runs-untrusted-code",  # long on purpose, and the same everywhere
}


def flags_in(text):
    """The flags that a text names outside of a whole command, such as `sps check URL --seed 1`."""
    commands = [command.span() for command in COMMAND.finditer(text)]
    for flag in FLAG.finditer(text):
        whole = any(start <= flag.start() < end for start, end in commands)
        if not whole and flag[0] not in OF_OTHERS:
            yield flag[0]


def test_no_room_names_a_flag():
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if name.startswith("cli/") or path.name == "command.py" or name in PROGRAMS:
            continue
        found += [f"{name}:{at}: {flag}" for at, text in strings(path) for flag in flags_in(text)]
    assert not found, "a message names the field, in backticks: the command line shows its flag"


def test_the_command_line_shows_flags():
    assert with_flags("`draft_dtype`: see `ray status`") == "--draft-dtype: see `ray status`"


@pytest.mark.needs_fast
def test_fields_in_messages_are_options():
    parameters = [parameter for _, command in commands() for parameter in command.params]
    flags = {flag.lstrip("-").replace("-", "_") for p in parameters for flag in (p.name, *p.opts)}
    named = {
        field: f"{path.relative_to(ROOT)}:{at}"
        for path in sorted(ROOT.rglob("*.py"))
        if "extensions/transformers" not in str(path)  # which names the fields of its `generate`
        for at, text in strings(path)
        for field in re.findall(r"`([a-z][a-z0-9_]*)`", text)
    }
    assert not {field: place for field, place in named.items() if field not in flags}


def test_words_of_others_are_shown_as_they_are():
    line = f"`top_p`: {as_it_is('`temperature` must be `positive`')}"
    assert with_flags(line) == "--top-p: `temperature` must be `positive`"
    assert first_line(ValueError("No field:\n  a bool.\nmore")) == "No field: a bool"
    assert with_flags(first_line(ValueError("`top_p` of the library"))) == "`top_p` of the library"
    assert with_flags(first_line(DataError("`top_p` of ours"))) == "--top-p of ours"


def test_an_error_is_short_enough_to_be_read():
    line = str(DataError("x" * 10**6))
    assert len(line) < 5_000
    assert line.endswith("x...")


def test_help_of_every_command_names_flags_and_no_fields():
    named = {
        f"{name} {parameter.name}": parameter.help
        for name, command in commands()
        for parameter in command.params
        if re.search(r"`[a-z_]+`", getattr(parameter, "help", None) or "")
    }
    assert not named
