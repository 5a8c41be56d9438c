"""The demonstration: with SmolLM2 where it can be had, else with the bundled pair."""

import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import demo
import spsbench
from spsbench.settings.models import fetched_folder

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"


def test_without_an_index_the_bundled_pair_is_shown(monkeypatch, tmp_path, capsys):
    for name, value in {"XDG_CACHE_HOME": str(tmp_path), "PIP_NO_INDEX": "1", **demo.PIP}.items():
        monkeypatch.setenv(name, value)
    assert demo.generation() == (*demo.COMPARE, *demo.NANO)
    assert "toy of 8 M parameters" in capsys.readouterr().err


def test_the_prompt_of_the_bundled_pair_shows_the_same_text_as_plain_sampling():
    name, prompt = demo.NANO[1:]
    comparison = spsbench.load(target=name, temperature=0.0).compare(prompt, max_new_tokens=8)
    assert comparison.identical
    assert comparison.sps.record.text.startswith(" create")


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_readmes_picture_shows_the_command_and_its_text(theme):
    if not fetched_folder("smollm2").is_dir():
        pytest.skip("SmolLM2 is not here: sps models fetch smollm2")
    picture = ElementTree.parse(ROOT / "docs" / f"terminal-{theme}.svg")
    drawn = "".join("".join(text.itertext()) for text in picture.iter(f"{SVG}text"))
    arguments = [word for word in (*demo.COMPARE, *demo.SMOLLM2) if word != "--compare"]
    command = [sys.executable, "-m", "spsbench", *arguments, "--no-stats"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for shown in (shlex.join((*demo.COMPARE, *demo.SMOLLM2)).replace("'", '"'), text):
        assert "".join(shown.split()) in "".join(drawn.split())
