"""The registry: names are found, and a package of someone else's joins by installing it."""

import os
import subprocess
import sys
from collections import Counter

import pytest

from spsbench.errors import UsageError
from spsbench.plugins import plug_in
from spsbench.registry import BUILT_IN, KINDS, find
from spsbench.spec import Spec

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "their-plug-ins"
version = "1.0"

[project.entry-points."spsbench.drafters"]
repeat = "their_plug_ins:Repeat"
model = "their_plug_ins:Shadow"

[project.entry-points."spsbench.verifiers"]
theirs = "their_plug_ins:Theirs"
broken = "their_plug_ins:Missing"
"""
CODE = '''
"""Drafts the newest token again and again, and matches as the built-in rule does."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from spsbench.loop.types import Draft, Drafter, Drawn, Guarantee
from spsbench.methods.verifiers.match import Match


@dataclass
class Repeat(Drafter):
    drawn: ClassVar[Drawn] = Drawn.POINT
    times: int = 2

    def draft(self, context, k, noise, go_on):
        again = context.tokens[-1:] * min(self.times, k)
        return Draft(torch.tensor(again, dtype=torch.int64), None)


class Theirs(Match):
    guarantee: ClassVar[Guarantee] = Guarantee.LOSSY


class Shadow:
    """Must not replace the built-in of its name."""
'''


@pytest.mark.needs_fast
def test_names_are_unique_and_lead_to_plug_ins():
    assert max(Counter((entry.kind, entry.name) for entry in BUILT_IN).values()) == 1
    for entry in BUILT_IN:
        assert entry.kind in KINDS
        assert isinstance(entry.load(), type) or entry.kind == "reporters"
        assert callable(entry.load())
        assert bool(entry.guarantee) == (entry.kind in ("verifiers", "schedules"))
        assert find(entry.kind, entry.name) is entry


def test_an_unknown_name_shows_the_known_ones():
    with pytest.raises(KeyError, match="no drafter 'beam': expected one of model, tli, "):
        find("drafters", "beam")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Another package, installed by pip into a folder of its own."""
    source = tmp_path_factory.mktemp("source")
    (source / "pyproject.toml").write_text(PROJECT)
    (source / "their_plug_ins").mkdir()
    (source / "their_plug_ins" / "__init__.py").write_text(CODE)
    site = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation"]
    offline = ["--no-index", "--disable-pip-version-check", "--quiet", "--target", str(site)]
    subprocess.run([*pip, *offline, str(source)], check=True, capture_output=True)
    return site


def sps(site, *arguments):
    program = "import sys; from spsbench.cli.main import main; sys.argv[0] = 'sps'; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=os.environ | {"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("kind", "name", "meant"),
    [
        ("drafters", "sufix", "suffix"),
        ("verifiers", "matsh", "match"),
        ("schedules", "constnt", "constant"),
        ("engines", "eagre", "eager"),
        ("decoders", "sglan", "sglang"),
        ("tasks", "humanevl", "humaneval"),
    ],
)
def test_an_unknown_name_is_refused_with_the_one_most_like_it(kind, name, meant):
    with pytest.raises(UsageError, match=rf"Did you mean {meant}\? See them with `sps list`"):
        plug_in(kind, Spec(name))
