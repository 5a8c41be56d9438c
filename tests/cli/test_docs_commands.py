"""Command lines in the docs: each parses, and those that need no hub and no file run."""

import re
import shlex
from functools import cache
from pathlib import Path

import pytest
import typer

from spsbench.cli.main import app
from spsbench.registry import entries
from spsbench.spec import Spec

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(?:sh|bash)\n(.*?)^```", re.S | re.M)
INLINE = re.compile(r"`(sps [^`]+)`")
ENDS = {"|", "&&", ">", ";", "2>"}
OF_PLUGINS = {"repeat", "cautious", "streak"}  # what docs/plugins.md installs
KINDS = {"drafter": "drafters", "verifier": "verifiers", "schedule": "schedules"}


def commands(lines):
    """Arguments of each `sps` command in lines of shell, without placeholders such as `...`."""
    for line in lines:
        for part in re.split(r"\s&&\s|\s\|\s", line):
            words = shlex.split(part.strip(), comments=True)
            if words[:1] == ["sps"]:
                end = next((i for i, word in enumerate(words) if word in ENDS), len(words))
                given = words[1:end]
                prompt = given[:1] == ["generate"]
                yield [w for w in given if not w.endswith("...") or (prompt and w == "...")]


def blocks(page):
    text = "\n".join(BLOCK.findall(page.read_text()))
    return list(commands(iter(re.sub(r"\\\n", "", text).splitlines())))


def sentences(page):
    found = INLINE.findall(BLOCK.sub("", page.read_text()))
    return list(commands(re.sub(r"\s+", " ", each) for each in found))


@cache
def root():
    return typer.main.get_command(app)


@cache
def names_of(kind):
    return frozenset(entry.name for entry in entries(kind))


def parsed(given):
    """Parameters of a command line by the command's own parser; the command does not run."""
    command = root()
    context, rest = None, given
    while hasattr(command, "get_command") and rest:
        context = command.make_context("sps", [rest[0]], parent=context)
        _, command, _ = command.resolve_command(context, rest)
        rest = rest[1:]
    return dict(command.make_context("sps", list(rest), parent=context).params)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_command_lines_parse(page):
    for given in [*blocks(page), *sentences(page)]:
        try:
            params = parsed(given)
        except Exception as error:
            if re.search("Missing|requires an argument|^0?$", str(error)):  # only named
                continue
            raise AssertionError(f"sps {shlex.join(given)}: {error}") from error
        for option, kind in KINDS.items():
            values = params.get(option) or ()
            for value in [values] if isinstance(values, str) else values:
                name = Spec.parse(value).name
                known = name in names_of(kind) | OF_PLUGINS or ".py:" in value or name.isupper()
                assert known, f"sps {shlex.join(given)}: {name}"


def runs_here(given):
    """Whether the bundled models are all that the command asks for."""
    words = {"--target", "--draft", "--prompt-file", "--parallel", "--engine"}
    return given[:1] == ["generate"] and len(given) > 1 and not words & set(given) and not any(
        ".py" in word or word.startswith("/") or "FILE" in word or ".json" in word for word in given
    ) and "repeat" not in str(given)  # fmt: skip


RUN = [given for page in PAGES for given in blocks(page) if runs_here(given)]


@pytest.mark.slow
@pytest.mark.parametrize("given", RUN, ids=lambda given: shlex.join(given)[:60])
def test_example_on_bundled_models_runs(given, sps, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = sps(*given, "-n", "4", stdin=b"")
    assert ran.code == 0, ran.err
    assert ran.out or any(tmp_path.iterdir())
