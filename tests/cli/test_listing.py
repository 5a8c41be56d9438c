"""`sps list`: every plug-in once, one a line."""

import json

import pytest

from spsbench.loop.drafter_context import Drawn, Weights
from spsbench.registry import BUILT_IN, KINDS
from spsbench.settings.models import BUNDLED, FETCHED


@pytest.mark.needs_fast
@pytest.mark.parametrize("width", [40, 80, 400, None])
def test_every_plug_in_is_shown_once_in_lines_of_the_terminal(sps, monkeypatch, width):
    monkeypatch.setattr("spsbench.cli.terminal.is_terminal", lambda stream: bool(width))
    monkeypatch.setenv("COLUMNS", str(width))
    ran = sps("list")
    assert (ran.code, ran.err) == (0, "")
    _, *lines = ran.out.splitlines()
    assert not width or max(map(len, lines)) <= width
    shown = [tuple(line.split()[:2]) for line in lines if not line.startswith(" ")]
    assert {(entry.kind, entry.name) for entry in BUILT_IN} <= set(shown)
    assert len(shown) == len(set(shown))


@pytest.mark.parametrize("kind", KINDS)
def test_one_kind(sps, kind):
    rows = json.loads(sps("list", kind, "--json").out)
    assert {row["kind"] for row in rows} == {kind}
    assert {"kind", "name", "summary", "path", "guarantee", "needs", "allows"} == set(rows[0])


def test_guarantees_are_those_of_the_classes():
    for entry in BUILT_IN:
        if entry.kind == "verifiers":
            assert entry.guarantee == entry.load().guarantee.value


def test_every_drafter_says_what_it_needs_and_allows():
    """As its class does: weights, parts of the target, and whether its drafts are deterministic."""
    for entry in BUILT_IN:
        if entry.kind != "drafters":
            continue
        needs, allows = entry.needs, entry.allows
        plan = entry.load().plan()
        assert ("a head" in needs) == (plan.weights is Weights.HEAD), entry.name
        assert ("a draft model" in needs) == (plan.weights is Weights.MODEL), entry.name
        if entry.name not in ("none", "chains"):
            assert allows.startswith("deterministic") == (plan.drawn is Drawn.POINT), entry.name


def test_a_foreign_verifier_is_asked_what_it_promises(sps, registered):
    registered("verifiers", "good", "spsbench.methods.verifiers.sps:Sps")
    registered("verifiers", "broken", "no_such_package\x1b[2J:X")
    registered("verifiers", "silent", "types:SimpleNamespace")
    rows = {row["name"]: row for row in json.loads(sps("list", "verifiers", "--json").out)}
    assert rows["good"]["guarantee"] == "exact"
    assert rows["broken"]["guarantee"].startswith("cannot be loaded: ModuleNotFoundError")
    assert rows["silent"]["guarantee"].startswith("cannot be loaded: AttributeError")
    assert "\x1b" not in sps("list", "verifiers").out


def test_models_without_a_command_lists_which_are_bundled(sps):
    ran = sps("models")
    assert ran.code == 0
    rows = {line.split()[1]: line for line in ran.out.splitlines()[1:]}
    assert set(rows) == {*BUNDLED, *FETCHED}
    assert all("bundled, " in rows[name] for name in BUNDLED)
    assert not any((folder / "__init__.py").exists() for folder in BUNDLED.values())
