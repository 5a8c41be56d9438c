"""A drafter of another package with weights of its own, through every command, by path and name."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests import features
from tests.folders import random_model, save
from tests.installed import install

SOURCE = Path(features.__file__)
POINTS = "[spsbench.drafters]\nfeatures = theirs.features:Features\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A target, and tensors that foretell its hidden states: a linear fit over random tokens."""
    folder = tmp_path_factory.mktemp("own")
    model = random_model(scale=0.5)
    save(folder / "target", model)
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(0, model.config.vocab_size, (1, 400), generator=draw)
    with torch.no_grad():
        hidden = model(ids, output_hidden_states=True).hidden_states[-1][0]
        given = torch.cat([hidden[:-1], model.get_input_embeddings()(ids)[0, 1:]], 1)
        mix = torch.linalg.lstsq(given, hidden[1:]).solution.T.contiguous()
    width = len(mix)
    random = [0.01 * torch.randn(n, width, generator=draw) for n in (3 * width, width)]
    own = folder / "head"
    own.mkdir()
    save_file(
        {"mix.weight": mix, "qkv.weight": random[0], "out.weight": random[1]}, own / "a.safetensors"
    )
    (own / "config.json").write_text(json.dumps({"layer": model.config.num_hidden_layers}))
    return str(folder / "target"), str(own)


@pytest.fixture
def drafter(tmp_path, monkeypatch):
    """Its name, with the package installed."""
    files = {"theirs/__init__.py": "", "theirs/features.py": SOURCE.read_text()}
    monkeypatch.syspath_prepend(install(tmp_path / "site", files, POINTS))
    return "features"


@pytest.mark.needs_fast
@pytest.mark.parametrize("engine", ["eager", "fast"])
def test_greedy_texts_are_those_of_the_target(sps, made, drafter, engine):
    target, own = made
    plain = ("generate", "the cat", "-n", "24", "--target", target, "--temperature", "0", "--json")
    ars = json.loads(sps(*plain, "--engine", engine, "-k", "0").out)
    for arguments in ("", ":sampled=false"):
        ran = sps(*plain, "--engine", engine, "--draft", own, "--drafter", drafter + arguments)
        assert ran.code == 0, ran.err
        texts = json.loads(ran.out)
        assert texts["tokens"] == ars["tokens"]
        assert sum(each["accepted"] for each in texts["rounds"]) > 0
    assert texts["settings"]["verifier"]["name"] == "match"
