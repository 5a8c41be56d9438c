"""One option is one line: the commands, the experiment file and the library have the same set."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Annotated, get_args, get_origin

import pytest
import typer

from spsbench import registry
from spsbench.cli.bench import bench
from spsbench.cli.generate import generate
from spsbench.cli.verify import EXCLUDED, pair
from spsbench.errors import UsageError
from spsbench.plugins import make
from spsbench.settings import cell_from_options
from spsbench.settings.cell_from_options import OF_CELL, TARGET, USUAL_ENGINE
from spsbench.settings.commands import AuditOptions
from spsbench.settings.execution import Access
from spsbench.settings.grid import Grid, Sweep, make_request
from spsbench.settings.models import ModelSpec
from spsbench.settings.options import options_of, parse, reads_numbers
from spsbench.spec import Spec

TABLE = tomllib.loads(Path(__file__).with_name("options.toml").read_text())
GIVEN, OUTSIDE = TABLE["given"], TABLE["outside"]


def flags_of(command):
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
    one, many, audited = map(flags_of, (generate, bench, pair))
    for name in OF_CELL:
        assert (name in audited) == (name not in EXCLUDED), name
        if name not in ("k", "seed"):  # of a table they are ranges
            assert one[name] == many[name] == audited.get(name, one[name])
    assert min(one.keys(), many.keys(), audited.keys(), key=len) >= options_of(Access).keys()
    assert audited.keys() >= options_of(AuditOptions).keys()


@pytest.mark.needs_fast
@pytest.mark.parametrize("name", GIVEN)
def test_a_file_has_each_option(name):
    table, _ = parse({"task": "xsum", name.replace("_", "-"): GIVEN[name]}, Sweep, Access)
    assert len(table.axes.get(name, getattr(table, name, ()))) == 1


def test_access_is_no_part_of_a_cell():
    grid, access = parse({"threads": 2, "offline": True, "k": 3}, Grid, Access)
    assert (access.threads, access.offline, grid.given) == (2, True, {"k": 3})
    for word, threads in (("auto", None), (None, None), ("3", 3)):  # as it is typed in
        assert parse({"threads": word}, Access) == (Access(threads=threads),)
    for wrong in 0, "many", "Auto", "1.5", "", "9" * 20:
        with pytest.raises(UsageError):
            parse({"threads": wrong}, Access)


def test_an_option_that_two_records_have_is_the_first_ones():
    table, grid = parse({"seed": "1..3", "top_p": 0.5}, Sweep, Grid)
    assert (table.seed, table.axes, grid.axes) == ((1, 2, 3), {"top_p": (0.5,)}, {})


def test_types_are_checked_in_the_library():
    for name, value in (("k", "4"), ("k", True), ("temperature", "0"), ("tempeature", 1.0)):
        with pytest.raises(UsageError):
            make_request(**{name: value})
    assert make_request(drafter=Spec("ngram")).drafter == Spec("ngram")
    assert make_request(temperature=1).temperature == 1.0
    assert make_request(target=Path("x")).target.id == "x"


FILLED = [  # options -> draft, drafter, K
    ({}, "nano-draft", "model", 4),
    ({"target": "folder"}, None, "ngram", 4),
    ({"drafter": "ngram:n=3"}, None, "ngram:n=3", 4),
    ({"drafter": "model", "k": 7}, "nano-draft", "model", 7),
    ({"drafter": "tree:shape=3x2x1"}, "nano-draft", "tree:shape=3x2x1", 3),
    ({"drafter": "topk:depth=6"}, "nano-draft", "topk:depth=6", 6),
    ({"drafter": "topk:depth=6", "k": 2}, "nano-draft", "topk:depth=6", 2),
    ({"drafter": "tree", "schedule": "constant:lookahead=7"}, "nano-draft", "tree", 7),
    ({"schedule": "other:a=1"}, "nano-draft", "model", None),
    ({"k": 0, "draft": "folder"}, None, "none", 0),
]


@pytest.mark.needs_fast
@pytest.mark.parametrize(("options", "draft", "drafter", "k"), FILLED, ids=str)
def test_what_is_left_out_is_filled_in(options, draft, drafter, k):
    cell = make_request(**options)
    assert (cell.draft, str(cell.drafter), cell.k) == (draft and ModelSpec(draft), drafter, k)
    assert str(cell.verifier) == "auto"


@pytest.mark.needs_fast
def test_revisions_and_the_trust_in_them_go_with_their_models():
    trusted = {"target": "a/b", "revision": "r", "trust_remote_code": True, "draft": "c/d"}
    pinned = make_request(**trusted, draft_revision="s")
    assert pinned.target == ModelSpec("a/b", "r", trust_remote_code=True)
    assert pinned.draft == ModelSpec("c/d", "s", trust_remote_code=True)
    assert make_request(**trusted).draft == ModelSpec("c/d")


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_value_out_of_range_is_refused_by_the_name_of_its_option(name):
    for value in OUTSIDE[name]:
        with pytest.raises(UsageError) as refused:
            make_request(**{name: value})
        assert str(refused.value).startswith(f"`{name}`")
        if name in ("temperature", "engine"):
            with pytest.raises(UsageError) as file:
                parse({"task": "xsum", name: value}, Sweep, where="e.toml")
            assert str(file.value).startswith(f"e.toml: {name} ")


def test_the_edges_are_allowed():
    make_request(k=1)
    make_request(k=64, max_new_tokens=0, temperature=0.0, top_p=1.0, top_k=0, seed=2**64 - 1)
    make_request(temperature=1e-12, top_p=1e-9, top_k=10**9)


def test_biases_and_penalties_are_recorded_in_one_way_however_they_are_given():
    biases = ("7=-1.5", " a=b=2")
    for given in (["7=-1.50", " a=b=2.0"], {7: -1.5, " a=b": 2}, biases):
        assert make_request(logit_bias=given).logit_bias == biases
    with pytest.raises(UsageError):
        make_request(logit_bias=7)
    for given in (1.1, "1.10", "1.1"):
        assert make_request(repetition_penalty=given).repetition_penalty == "1.1"
    for off in (1, 1.0, "1", "1:answer"):
        assert make_request(repetition_penalty=off) == make_request()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4", [4]),
        ("1..8", [1, 2, 3, 4, 5, 6, 7, 8]),
        ("1..8..3", [1, 4, 7]),
        ("8,1..3", [8, 1, 2, 3]),
        ("4,4", [4]),
        ("0", [0]),
        (" 1 .. 2 , 64 ", [1, 2, 64]),
        ("3..3", [3]),
    ],
)
def test_what_is_meant(text, expected):
    assert reads_numbers(0, 64)(text, "k") == tuple(expected)


@pytest.mark.parametrize(
    "text",
    [
        *("8..2", "1..8..0", "3-", "a,b", "", "1,,2", "-1", "1..10001", "1000000000", "1.5", "8:2"),
        *("0..9999,0", ",".join(["0..4000"] * 3)),  # more than anybody means
    ],
)
def test_what_cannot_be_meant_is_refused_of_ranges(text):
    with pytest.raises(UsageError) as refused:
        reads_numbers(0, 10_000)(text, "k")
    assert repr(text) in str(refused.value)


def test_a_cell_without_the_extension_runs_in_eager_and_a_line_says_so(monkeypatch, said):
    eager = Spec("eager")
    monkeypatch.setattr(cell_from_options, "DEFAULT_ENGINE", eager)
    monkeypatch.setitem(TARGET, "engine", replace(TARGET["engine"], default=eager))
    cell = make_request(target="nano")
    assert (cell.target.engine, cell.draft.engine) == (eager, eager)
    assert said == ["note: engine fast is not installed: eager runs, slower"]
    assert cell == make_request(target="nano", engine="eager")
    assert make_request(target="nano", engine="fast").target.engine == USUAL_ENGINE


def test_an_engine_of_an_absent_extension_is_refused_and_not_listed(monkeypatch):
    monkeypatch.setattr(registry, "is_installed", lambda path: not path.startswith(".extensions."))
    assert "fast" not in {entry.name for entry in registry.entries("engines")}
    assert "fast" not in registry.built_in("engines")
    with pytest.raises(UsageError):
        make("engines", Spec("fast"))
