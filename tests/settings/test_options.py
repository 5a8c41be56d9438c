"""One option is one line: the commands, the experiment file and the library have the same set."""

from pathlib import Path
from typing import Annotated, get_args, get_origin

import pytest
import typer

from spsbench.api.load import OF_ACCESS, access_of
from spsbench.cli.bench import bench
from spsbench.cli.generate import generate
from spsbench.cli.main import app
from spsbench.cli.verify.command import EXCLUDED, pair
from spsbench.errors import UsageError
from spsbench.settings.cell_from_options import OF_CELL, make_cell
from spsbench.settings.commands import OF_AUDIT
from spsbench.settings.models import KNOWN
from spsbench.settings.sweep import LISTED, OF_SWEEP, SINGLE, sweep
from spsbench.spec import Spec

GIVEN = {
    "target": "folder",
    "revision": "main",
    "weights": "random",
    "trust_remote_code": True,
    "engine": "eager",
    "device": "cuda",
    "dtype": "float16",
    "attention": "eager",
    "parallel": "tp:2",
    "draft": "other",
    "draft_revision": "v1",
    "draft_weights": "random",
    "draft_trust_remote_code": True,
    "draft_engine": "eager",
    "draft_device": "cuda:1",
    "draft_dtype": "bfloat16",
    "draft_attention": "sdpa",
    "draft_parallel": "tp:4",
    "random_weights": True,
    "k": 3,
    "drafter": "ngram:n=3",
    "verifier": "block",
    "schedule": "constant:lookahead=2",
    "decoder": "hf",
    "max_new_tokens": 9,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 7,
    "min_p": 0.1,
    "seed": 5,
    "stop": ["x"],
    "ignore_eos": True,
}
"""A value of each option that is not its default."""


def options_of(command):
    """Flag -> its default in words, of a command as typer sees it."""
    found = {}
    for name, annotation in command.__annotations__.items():
        if get_origin(annotation) is Annotated:
            for told in get_args(annotation)[1:]:
                if isinstance(told, typer.models.OptionInfo):
                    found[name] = told.show_default
    return found


def test_every_option_has_a_value_here():
    assert GIVEN.keys() == OF_CELL.keys()


def test_the_commands_have_the_same_options_with_the_same_defaults():
    one = options_of(generate)
    many = options_of(bench)
    audited = options_of(pair)
    for name in OF_CELL:
        assert name in one, name
        assert name in many, name  # `k` as a range
        assert (name in audited) == (name not in EXCLUDED), name
        if name not in ("k", *SINGLE):
            assert one[name] == many[name] == audited.get(name, one[name])
    for name in OF_ACCESS:
        assert name in one
        assert name in many
        assert name in audited
    assert audited.keys() >= OF_AUDIT.keys()


def test_a_file_and_the_library_have_them_as_well():
    for name, value in GIVEN.items():
        if name in LISTED:
            table = sweep({"task": "xsum", name.replace("_", "-"): value}, "e.toml")
            assert len(table.cells[name]) == 1
        else:
            assert name in (*OF_SWEEP, *SINGLE)
        asked = {"target": "t", "draft": "d", "revision": "r", "draft_revision": "s"}
        plain = make_cell(**asked)
        changed = make_cell(**asked | {name: value})
        assert changed.id != plain.id, f"{name} changes nothing"


def test_access_is_no_part_of_a_cell():
    access, rest = access_of({"threads": 2, "offline": True, "k": 3})
    assert (access.threads, access.offline, rest) == (2, True, {"k": 3})
    with pytest.raises(UsageError, match=r"--threads is 0: expected 1\.\.1024"):
        access_of({"threads": 0})
    for word in "auto", None:
        assert access_of({"threads": word})[0] == access_of({})[0]
    assert access_of({"threads": "3"})[0].threads == 3  # as it is typed in
    for wrong in "many", "Auto", "1.5", "", "9" * 20:
        with pytest.raises(UsageError, match="expected a number, or auto"):
            access_of({"threads": wrong})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("temperature", -1.0, "is -1.0: expected 0 or more"),
        ("top_p", 0.0, "is 0.0: expected above 0 and at most 1"),
        ("top_k", -1, "is -1: expected 1 or more, or 0 for off"),
        ("max_new_tokens", -1, "is -1: expected 0 or more"),
        ("weights", "int3", f"is int3: expected {KNOWN}"),
        ("verifier", "sps:x", "'sps:x': expected key=value, got 'x'"),
        ("draft_engine", ":", "':': expected NAME or NAME:key=value,..."),
    ],
)
def test_the_same_refusals_everywhere(name, value, said):
    flag = OF_CELL[name].flag
    with pytest.raises(UsageError) as library:
        make_cell(**{name: value})
    assert str(library.value) == f"{flag} {said}"
    for command in (["generate", "x"], ["verify", "pair"], ["bench", "xsum"]):
        if command[0] == "verify" and name in EXCLUDED:
            continue
        with pytest.raises(UsageError) as line:
            app([*command, flag, str(value)], standalone_mode=False)
        assert str(line.value) == str(library.value)
    with pytest.raises(UsageError) as file:
        sweep({"task": "xsum", name: value}, "e.toml")
    assert str(file.value) == f"e.toml: {name} {said}"


def test_types_are_checked_in_the_library():
    for name, value in (("k", "4"), ("k", True), ("temperature", "0"), ("ignore_eos", 1)):
        with pytest.raises(UsageError, match=f"{OF_CELL[name].flag} is .*: expected"):
            make_cell(**{name: value})
    with pytest.raises(
        UsageError, match=r"unknown option tempeature: expected .*\. Did you mean temperature\?"
    ):
        make_cell(tempeature=1.0)
    assert make_cell(drafter=Spec("ngram")).method.drafter == Spec("ngram")
    assert make_cell(temperature=1).sampling.temperature == 1.0
    assert make_cell(target=Path("x")).models.target.id == "x"
