"""Rooms name the fields of options; flags are the command line's."""

import re
from pathlib import Path

from spsbench.cli.terminal import with_flags
from tests.parsed import commands, strings

ROOT = Path(__file__).parents[1] / "spsbench"
FLAG = re.compile(r"--[a-z][a-z_-]*")
COMMAND = re.compile(r"\bsps [a-z](?:(?!(?<!\.)\. |`[ .,]).)*", re.S)  # to the end of its sentence
PROGRAMS = {  # what runs other programs, by their flags; plots have variables of CSS
    *("extensions/sandbox/isolation.py", "extensions/sandbox/runner.py", "models/gguf/wheel.py"),
    *("extensions/cpu/kernels/native.py", "store/provenance.py"),
    "reports/plots.py",
    "planning/logs/tables.py",  # settings of engines, to be pasted there
}
OF_OTHERS = {  # flags of other programs, in messages
    *("--append-result", "--help", "--logits_all", "--merge", "--nproc-per-node", "--head"),
    *("--per-request-spec-decode-metrics", "--save-result", "--save-detailed"),
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


def test_help_of_every_command_names_flags_and_no_fields():
    named = {
        f"{name} {parameter.name}": parameter.help
        for name, command in commands()
        for parameter in command.params
        if re.search(r"`[a-z_]+`", getattr(parameter, "help", None) or "")
    }
    assert not named
