"""Heads on the command line: the drafter follows, runs go on, what does not fit is one line."""

import json

import pytest
import torch

import spsbench
from spsbench.engines.quantization.layers import OverCodes
from tests.folders import byte_tokenizer, random_model, save
from tests.heads import writers
from tests.variants import first


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("heads")
    model = random_model(scale=0.5, num_hidden_layers=6)
    save(folder / "target", model)
    draw = torch.Generator().manual_seed(1)
    texts = torch.randint(0, len(byte_tokenizer()), (4, 100), generator=draw).tolist()
    plain = ("eagle3", "mlp", "blockwise", "dflash", "falcon")
    heads = {name: getattr(writers, name)(folder / name, model) for name in plain} | {
        "eagle": writers.fitted(folder / "eagle", model, texts),
        "medusa": writers.medusa(folder / "medusa", model, dialect="TGI"),
    }
    return {name: str(path) for name, path in heads.items()} | {"target": str(folder / "target")}


WRITTEN = {
    "eagle": "EAGLE",
    "dflash": "z-lab",
    "eagle3": "EAGLE",
    "medusa": "Medusa, for org/tiny",
    "mlp": "IBM",
    "blockwise": "spsbench, for org/tiny",
    "falcon": "Falcon",
}


@pytest.mark.parametrize("head", first(1, WRITTEN))
def test_the_drafter_follows(sps, made, head):
    plain = ("generate", "the cat", "-n", "16", "--target", made["target"], "--temperature", "0")
    plain += ("--engine", "eager", "--json")
    ars = json.loads(sps(*plain, "-k", "0").out)
    ran = sps(*plain, "--draft", made[head])
    assert ran.code == 0, ran.err
    assert f"note: {made[head]} is a head: {head}, written by {WRITTEN[head]}" in ran.err
    told = json.loads(ran.out)
    assert told["tokens"] == ars["tokens"]
    assert told["settings"]["drafter"]["name"] == head


def test_trees_and_other_calls_of_a_pair(made):
    pair = spsbench.load(
        target=made["target"], draft=made["eagle"], engine="eager", max_new_tokens=12, k=3
    )
    chain = pair.generate("the cat", temperature=0.0)
    drafters = ("eagle:shape=2x2x1", "eagle:width=3,nodes=8", "ngram")
    for more in ({"draft": made["eagle3"]}, *({"drafter": name} for name in drafters)):
        assert pair.generate("the cat", temperature=0.0, **more).tokens == chain.tokens


@pytest.mark.slow
def test_a_run_with_two_heads_goes_on(sps, made, tmp_path):
    task, out = tmp_path / "p.jsonl", tmp_path / "run"
    task.write_text('{"id": "a", "prompt": "the cat"}\n')
    given = ("bench", f"jsonl:path={task}", "--target", made["target"])
    given += ("--draft", made["eagle"], "--draft", made["eagle3"], "--engine", "eager")
    given += ("-k", "2", "-n", "6", "--out", str(out), "--warmup", "0")
    ran = sps(*given)
    assert ran.code == 0, ran.err
    assert len(next(out.glob("records*.jsonl")).read_text().splitlines()) == 3
    again = sps(*given, "--resume")
    assert again.code == 0, again.err


@pytest.mark.parametrize("weights", first(1, ["int8", "blocks", "int4", "checkpoint"]))
def test_a_head_may_have_quantised_weights(weights):
    options = {"target": "nano", "drafter": "eagle3", "k": 3, "offline": True}
    pair = spsbench.load(**options, draft_weights=weights, temperature=0.0, max_new_tokens=12)
    plain = spsbench.load(target="nano", k=0, offline=True, temperature=0.0, max_new_tokens=12)
    assert str(pair.generate("import os")) == str(plain.generate("import os"))
    (network,) = pair.loaded.head.kept.values()
    codes = [module for module in network.modules() if isinstance(module, OverCodes)]
    assert bool(codes) == weights.startswith("int")
