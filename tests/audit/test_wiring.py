"""The search for a head's wiring names what was planted, and nothing in a right head."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import spsbench
from spsbench.audit.wiring import damage, read, score, search, verify_head, wirings
from spsbench.heads.families import FLAGS
from spsbench.loop.drafter_context import TargetParts
from spsbench.settings.commands import HeadSearch
from spsbench.settings.models import BUNDLED
from tests.heads import head_faults, writers
from tests.heads.stage import KINDS, HeadSite
from tests.oracles.models import tiny
from tests.variants import first

pytestmark = pytest.mark.numeric

TEXTS = HeadSearch(count=6, tokens=96)
slow = pytest.mark.slow


def found(draft, drafter=None, plan=TEXTS, target="nano"):
    how = {"engine": "eager", "k": 2, "offline": True}
    return verify_head(spsbench.load(target=target, draft=str(draft), drafter=drafter, **how), plan)


PLANTED = {
    "eagle3:residual=normed": "eagle3:residual=raw",
    "eagle3:feedback=normed": "eagle3:feedback=raw",
    "eagle3:output=raw": "eagle3:output=normed",
    "eagle3:features=13-8-2": "eagle3:features=2-8-13",
    "eagle3:residual=normed,feedback=normed": "eagle3:residual=raw,feedback=raw",
    "eagle3:residual=normed,output=raw": "eagle3:residual=raw,output=normed",
    "medusa:features=15": "medusa:features=16",
    "mlp:features=15": "mlp:features=16",
    "mtp:order=feature": "mtp:order=embedding",
    "mtp:norms=zero": "mtp:norms=one",
    "mtp:order=feature,norms=zero": "mtp:order=embedding,norms=one",
}
"""Drafter with a wrong wiring -> the right one, which costs more than 2 % on nano."""
QUICK = ("medusa:features=15", "mtp:order=feature")


@pytest.mark.parametrize(
    "drafter", [name if name in QUICK else pytest.param(name, marks=slow) for name in PLANTED]
)
def test_a_planted_wiring_is_named(drafter):
    finding = found(f"nano-{drafter.partition(':')[0]}", drafter)
    assert finding.verdict == "wired otherwise"
    assert str(finding.drafter) == PLANTED[drafter]
    assert PLANTED[drafter] in finding.line
    assert not finding


@pytest.mark.parametrize("kind", [k if k == "mlp" else pytest.param(k, marks=slow) for k in KINDS])
def test_a_right_head_is_called_right(kind):
    finding = found(f"nano-{kind}")
    assert finding.verdict == "right"
    assert 0 < finding.least < finding.unbeaten[0].accepted / 2
    assert finding.unbeaten[0].accepted > 2 * finding.controls["random head"]


@slow
def test_the_head_of_smollm2_is_right_and_its_wrong_wiring_is_named():
    plan = HeadSearch(count=4, tokens=96)
    assert found("smollm2-eagle3", None, plan, "smollm2").verdict == "right"
    wrong = found("smollm2-eagle3", "eagle3:feedback=normed", plan, "smollm2")
    assert wrong.verdict == "wired otherwise"


def changed(folder, name, change):
    """A copy of a bundled head with one tensor changed."""
    path = shutil.copytree(BUNDLED[name], folder / name) / "model.safetensors"
    tensors = load_file(path)
    save_file(change(tensors), path, metadata={"format": "pt"})
    return path.parent


FC = "fc.weight"
DAMAGE = {
    "constant": (FC, lambda fc: torch.full_like(fc, 0.01), "constant"),
    "shards": (FC, lambda fc: fc.roll(len(fc) // 2, 0).contiguous(), "halves of rows"),
}


@pytest.mark.parametrize("what", first(1, DAMAGE))
def test_a_dead_head_is_called_dead_and_its_tensor_named(tmp_path, what):
    name, damage, words = DAMAGE[what]
    folder = changed(tmp_path, "nano-eagle3", lambda every: every | {name: damage(every[name])})
    finding = found(folder, "eagle3:anyway=true", HeadSearch(count=4, tokens=64))
    assert finding.verdict == "dead"
    assert any(mark.startswith(name) and words in mark for mark in finding.damage)


def test_a_transposed_projection_is_named_by_what_its_repair_accepts(tmp_path):
    name = "layers.0.self_attn.o_proj.weight"
    folder = changed(
        tmp_path, "nano-eagle3", lambda every: every | {name: every[name].T.contiguous()}
    )
    loaded = spsbench.load(target="nano", draft=str(folder), engine="eager", offline=True).loaded
    head, model, vocab = loaded.head, loaded.target, loaded.vocab_size
    ids = loaded.tokenizer.encode(Path(__file__).read_text())
    target = TargetParts.of(model, vocab)
    with torch.inference_mode():
        texts = [read(model, ids[i : i + 64], {2, 8, 13}, vocab) for i in range(0, 256, 64)]
        (mark,) = damage(head, lambda one: score(one, target, texts, 1))
    assert mark.startswith(name)
    assert mark.endswith("transposed")


@slow
@pytest.mark.parametrize("kind", ["eagle3"])
def test_a_head_of_another_target_is_dead(tmp_path, kind):
    """Its features are those of the target in another order of channels."""
    order = torch.randperm(192, generator=torch.Generator().manual_seed(1))

    def permute(tensors):
        fc = tensors[FC]
        return tensors | {FC: fc.view(len(fc), -1, 192)[:, :, order].flatten(1).contiguous()}

    finding = found(changed(tmp_path, f"nano-{kind}", permute), f"{kind}:anyway=true")
    assert finding.verdict == "dead"


def test_the_command_prints_wirings_and_exits_by_the_verdict(sps):
    texts = ("--count", "4", "--tokens", "96", "--json")
    plain = sps("verify", "head", "--draft", "nano-medusa", *texts)
    assert plain.code == 0, plain.err
    wrong = sps("verify", "head", "--draft", "nano-mlp", "--drafter", "mlp:features=15", *texts)
    assert wrong.code == 7, wrong.err
    values = json.loads(wrong.out)
    assert (values["exit"], values["drafter"]) == (7, "mlp:features=16")
    assert values["wirings"][0]["flags"] == {}
    few = ("--count", "1", "--tokens", "32", "--json")
    undecided = sps("verify", "head", "--draft", "nano-mlp", "--drafter", "mlp:features=15", *few)
    assert undecided.code == 6, undecided.err
    assert sps("verify", "head", "--drafter", "ngram", *texts).code == 2


FAMILIES = {**head_faults.FAMILIES, "peagle": writers.peagle}


@pytest.mark.parametrize("family", first(len(FAMILIES) - 1, FAMILIES))
def test_every_family_is_searched(tmp_path, family):
    """Random heads of a random target: each flag is tried, and none makes a head of it."""
    target = tiny("llama", vocab=12, num_hidden_layers=6, scale=1.0, dtype=torch.float32)
    head = HeadSite(FAMILIES[family](tmp_path, target), target).head()
    texts = torch.randint(12, (2, 40), generator=torch.Generator().manual_seed(0)).tolist()
    finding = search(head, target, texts, 12)
    tried = {name for flags in wirings(head, 6) for name, _ in flags}
    assert tried == FLAGS[head.family].keys()
    assert len(finding.scores[0].by_depth) == 3
    assert finding.verdict in ("dead", "not distinguished", "right")
