"""The demonstration: with SmolLM2 where it can be had, else with the bundled pair."""

import os
import subprocess

import pytest

import demo
import spsbench
from spsbench.errors import MissingError, UnavailableError
from spsbench.models.gguf import wheel


@pytest.fixture(autouse=True)
def pip_settings(monkeypatch):
    for name in demo.PIP:
        monkeypatch.setenv(name, "")


def test_a_fetched_model_is_compared_greedily(monkeypatch):
    monkeypatch.setattr(demo, "fetch", lambda name: None)
    assert demo.generation() == (*demo.COMPARE, *demo.SMOLLM2)
    assert {"--temperature", "--compare", "smollm2"} <= set(demo.generation())


@pytest.mark.parametrize("error", [UnavailableError("no index"), MissingError("no pip")])
def test_a_failed_fetch_leads_to_the_bundled_pair(monkeypatch, capsys, error):
    def refuse(name):
        raise error

    monkeypatch.setattr(demo, "fetch", refuse)
    assert demo.generation() == (*demo.COMPARE, *demo.NANO)
    shown = capsys.readouterr().err
    assert f"note: {error}" in shown
    assert "toy of 8 M parameters" in shown


def test_an_index_that_does_not_connect_is_tried_once(monkeypatch, tmp_path, capsys):
    settings = {}

    def download(command, **options):
        settings.update(os.environ)
        return subprocess.CompletedProcess(command, 1, "", "ERROR: no connection")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(wheel.subprocess, "run", download)
    assert demo.generation() == (*demo.COMPARE, *demo.NANO)
    assert demo.PIP.items() <= settings.items()
    assert "no connection" in capsys.readouterr().err


def test_the_prompt_of_the_bundled_pair_shows_the_same_text_as_plain_sampling():
    name, prompt = demo.NANO[1:]
    comparison = spsbench.load(target=name, temperature=0.0).compare(prompt, max_new_tokens=24)
    assert comparison.identical
    assert comparison.sps.record.text.startswith(" create")
