"""Golden acceptance: stored once, held by other engines, parted from by what is fed wrongly."""

import json
from unittest.mock import patch

import pytest
import torch

from spsbench.audit.statistical.golden import along, by_depth
from spsbench.audit.statistical.replay import rates_in
from spsbench.audit.verify import verify_head
from spsbench.errors import DataError
from spsbench.methods.drafters.eagle import EagleNetwork
from spsbench.pair.load import load
from tests.cli.conftest import Ran, sps  # noqa: F401
from tests.folders import byte_tokenizer, random_model, save
from tests.heads import writers


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A target, a head that really foretells it, prompts, and golden acceptance of the two."""
    folder = tmp_path_factory.mktemp("golden")
    model = random_model(scale=0.5, num_hidden_layers=3)
    save(folder / "target", model)
    draw = torch.Generator().manual_seed(1)
    texts = torch.randint(0, len(byte_tokenizer()), (4, 100), generator=draw).tolist()
    writers.fitted(folder / "head", model, texts)
    task = folder / "prompts.jsonl"
    task.write_text('{"id": "a", "prompt": "the cat"}\n{"id": "b", "prompt": "a dog sat"}\n')
    given = {
        "target": str(folder / "target"),
        "draft": str(folder / "head"),
        "golden": str(folder / "golden.json"),
        "k": 3,
    }
    found = verify_head(task=(f"jsonl:path={task}",), tokens=10, **given)
    assert found.made
    assert found.golden.depths[0].acceptance > 0.5
    return given


def test_other_engines_hold_it(made):
    assert verify_head(**made, engine="fast")
    rounded = verify_head(**made, dtype="bfloat16", engine="eager")
    assert rounded
    assert rounded.now.run["dtype"] == "bfloat16"


def test_a_head_that_is_fed_wrongly_parts(made):
    """The fault that costs only speed: the hidden state of a layer before."""
    init = EagleNetwork.__init__

    def wrong(self, shape, layers):
        init(self, shape, layers)
        self.layers = (layers - 1,)

    with patch.object(EagleNetwork, "__init__", wrong):
        found = verify_head(**made, engine="eager")
    assert not found
    assert found.line.startswith("PARTED at depth 1: acceptance ")


@pytest.mark.slow
def test_expected_acceptance_is_what_a_run_keeps(made):
    """The overlap at a place is the chance that the loop keeps that token there."""
    pair = load(target=made["target"], draft=made["draft"], engine="eager", max_new_tokens=1)
    cell, loaded = pair.configured(k=1, max_new_tokens=2)
    ids = tuple(byte_tokenizer().encode("the cat"))
    slots = along(cell, loaded, ids, (40, 41), 1)
    kept = [pair.generate(list(ids), k=1, max_new_tokens=2, seed=s) for s in range(150)]
    share = sum(text.rounds[0].accepted for text in kept) / len(kept)
    assert abs(share - slots[0][0].overlap) < 4 * 0.5 / len(kept) ** 0.5


def test_a_golden_file_of_another_pair_is_refused(made, tmp_path):
    with pytest.raises(DataError, match="is of another pair: sampling"):
        verify_head(**made | {"k": 2})
    other = tmp_path / "golden.json"
    other.write_text("{}")
    with pytest.raises(DataError, match="no golden acceptance of schema 1"):
        verify_head(**made | {"golden": str(other)})


def test_logs_of_other_engines(made, tmp_path):
    log = tmp_path / "engine.log"
    log.write_text(
        "INFO metrics: Per-position acceptance rate: 0.1, 0.1\n"
        "INFO SpecDecoding metrics: Mean acceptance length: 2.1, "
        "Per-position acceptance rate: 0.800, 0.600, 0.300\n"
    )
    assert rates_in(log) == [0.8, 0.6, 0.3]
    assert by_depth([0.8, 0.6, 0.3]) == pytest.approx([0.8, 0.75, 0.5])
    counts = tmp_path / "metrics.json"
    counts.write_text(json.dumps({"num_accepted_tokens_per_pos": [4, 1], "num_drafts": 8}))
    assert rates_in(counts) == [0.5, 0.125]
    counts.write_text("[]")
    with pytest.raises(DataError, match="no acceptance by position"):
        rates_in(counts)
    log.write_text("Per-position acceptance rate: 0.001, 0.0005\n")
    found = verify_head(**made, engine="eager", log=str(log))
    assert (found.log_parts, bool(found)) == (1, False)


def test_it_is_told_on_screen(sps, made):  # noqa: F811
    flags = [part for name, value in made.items() for part in (f"--{name}", str(value))]
    flags[flags.index("--k")] = "-k"
    ran = sps("verify", "head", *flags, "--engine", "eager", "--json")
    assert ran.code == 0, ran.err
    shown = json.loads(ran.out)
    assert [each["depth"] for each in shown["golden"]["depths"]] == [1, 2, 3]
    assert "held: acceptance within" in ran.err
