"""Heads are told from their files; what does not fit is a line that names it, before any weight."""

import json
import os
import pickle
import re
import tomllib
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from spsbench.errors import DataError, SpsError, UsageError
from spsbench.hardware.environment import BOUND
from spsbench.heads.families import family_of
from spsbench.heads.files import load_pickle, open_files
from spsbench.heads.head import read_head, read_tensors
from spsbench.models.drafter_weights import load_head as load
from spsbench.settings.execution import Access
from spsbench.settings.models import ModelSpec
from tests.heads import writers
from tests.heads.stage import HeadSite
from tests.oracles.models import tiny

LAYERS = 8  # of the target


@pytest.fixture(scope="module")
def target():
    return tiny("llama", vocab=20, num_hidden_layers=LAYERS, dtype=torch.float32)


def look(folder, target, family="eagle3", name="org/tiny-chat", **answers):
    how = {"names": (name, "org/head"), "drafter": family, "overrides": answers}
    return read_head(folder, target.config.to_dict(), allow_pickle=False, **how)


def changed(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


FORMATS = {
    "EAGLE-1": (writers.eagle, "eagle", "EAGLE", ()),
    "EAGLE-3": (writers.eagle3, "eagle3", "EAGLE", (2, 4, 5)),
    "EAGLE-3.1": (writers.eagle31, "eagle3", "EAGLE", (2, 4, 5)),
    "SpecForge": (partial(writers.specforge, outputs=[1, 3, 6]), "eagle3", "SpecForge", (2, 4, 7)),
    "P-EAGLE": (writers.peagle, "peagle", "speculators", (2, 4, 5)),
    "speculators": (
        *(partial(writers.speculators, ids=[2, 4, 7], layers=2), "eagle3", "speculators"),
        (2, 4, 7),
    ),
    "Medusa": (partial(writers.medusa, dialect="TGI"), "medusa", "Medusa", ()),
    "Medusa, vLLM": (partial(writers.medusa, dialect="vLLM"), "medusa", "vLLM", ()),
    "MLP speculator": (writers.mlp, "mlp", "IBM", ()),
    "DFlash": (writers.dflash, "dflash", "z-lab", (2, 4)),
    "DSpark": (partial(writers.dflash, coupling="gated"), "dspark", "z-lab", (2, 4)),
    "DFlash, speculators": (writers.block_speculators, "dflash", "speculators", (2, 4)),
    "DSpark, speculators": (
        *(partial(writers.block_speculators, coupling="rnn"), "dspark", "speculators"),
        (2, 4),
    ),
    "MTP": (writers.mtp, "mtp", "speculators", ()),
    "blockwise": (writers.blockwise, "blockwise", "spsbench", ()),
    "Falcon": (writers.falcon, "falcon", "Falcon", ()),
}


ODD = r"mlp\.gate_proj|^1\.1\.weight|lm_heads\.1|head\.1\.weight|heads\.1\.up\.weight"
"""A tensor that the tests harm: a matrix that is not square."""


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_is_told_from_its_files(target, tmp_path, name):
    write, family, writer, features = FORMATS[name]
    folder = write(tmp_path, target)
    assert family_of(folder) == family
    found = look(folder, target, family)
    assert (found.family, found.writer) == (family, writer)
    assert getattr(found.shape, "features", ()) == features
    spare = {name for name in open_files(folder).headers if name.startswith("confidence_head")}
    assert {*found.names.values(), *spare} == open_files(folder).headers.keys()


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        pytest.param(name, harm, marks=[] if index % 5 == turn else pytest.mark.slow)
        for turn, harm in enumerate(("renamed", "missing", "added", "turned", "half"))
        for index, name in enumerate(FORMATS)
    ],
)
def test_files_that_do_not_fit(target, tmp_path, name, harm):
    write, family, _, _ = FORMATS[name]
    folder = write(tmp_path, target)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    odd = next(each for each in tensors if re.search(ODD, each))
    says = odd
    if harm == "renamed":
        tensors[f"{odd}_"] = tensors.pop(odd)
    elif harm == "missing":
        del tensors[odd]
        says = {"1.1.weight": "heads.1.lm_head.weight"}.get(odd, odd)  # Medusa's: by parameter
    elif harm == "added":
        tensors["extra.weight"], says = torch.zeros(2), "extra.weight"
    elif harm == "turned":
        tensors[odd] = tensors[odd].T.contiguous()
    save_file(tensors, path)
    if harm == "half":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        says = "model.safetensors"
    with pytest.raises(DataError, match=says.replace(".", r"\.")) as told:
        look(folder, target, family)
    assert "\n" not in str(told.value)


def test_heads_for_another_target_are_refused_with_both_names(target, tmp_path):
    for other in (
        tiny("llama", vocab=21, num_hidden_layers=LAYERS),
        tiny("llama", vocab=20, num_hidden_layers=LAYERS, hidden_size=40),
    ):
        folder = writers.speculators(tmp_path / str(other.config.vocab_size), other, ids=[1, 2, 3])
        with pytest.raises(
            DataError, match="org/head is a head for org/tiny, not for org/tiny-chat"
        ):
            look(folder, target)
    near = writers.speculators(tmp_path / "near", target, ids=[1, 2, 3])
    with pytest.raises(DataError, match="org/head is a head for org/tiny, not for other/model"):
        look(near, target, name="other/model")
    assert look(near, target, name="other/model", anyway=True)
    deep = writers.speculators(tmp_path / "deep", target, ids=[1, 2, LAYERS])
    with pytest.raises(DataError, match=f"it reads hidden state {LAYERS}, and the target has"):
        look(deep, target)


def test_flags_with_two_meanings_are_asked(target, tmp_path):
    silent = writers.speculators(tmp_path / "a", target, norm_before_residual="absent")
    with pytest.raises(UsageError, match="`drafter` eagle3:residual=normed, or residual=raw"):
        look(silent, target)
    for said, normed in (("normed", True), ("raw", False)):
        assert look(silent, target, residual=said).shape.normed_residual is normed
    forged = writers.speculators(tmp_path / "b", target, ids=[1, LAYERS // 2 - 1, LAYERS - 4])
    with pytest.raises(UsageError, match="features=1-3-4, or features=2-4-5"):
        look(forged, target)
    assert look(forged, target, features="2-4-5").shape.features == (2, 4, 5)
    more = writers.specforge(tmp_path / "c", target, [1, 2, 3, 4])
    changed(more, eagle_config=None)
    with pytest.raises(UsageError, match="does not say which 4 hidden states"):
        look(more, target)


HARM = {
    "ids for offsets": (
        "eagle3",
        lambda held: held["d2t"].add_(torch.arange(7)),
        "expected offsets",
    ),
    "a nan": (
        *("eagle3", lambda held: held["norm.weight"][:1].fill_(float("nan"))),
        r"norm\.weight has numbers that are not finite",
    ),
    "a second layer": (
        *("falcon", lambda held: held.update({"layers.1.self_attn.q_proj.weight": torch.ones(4)})),
        r"2 layers .*expected 1",
    ),
}


@pytest.mark.parametrize("harm", HARM)
def test_numbers_that_no_head_has_are_refused(target, tmp_path, harm):
    family, change, says = HARM[harm]
    folder = getattr(writers, family)(tmp_path, target)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(DataError, match=says):
        HeadSite(folder, target).drafter()


ODD_CONFIGS = tomllib.loads(Path(__file__).with_name("odd_configs.toml").read_text())


@pytest.mark.parametrize("name", ODD_CONFIGS)
def test_what_a_config_cannot_mean_is_refused(target, tmp_path, name):
    kind, change, says = ODD_CONFIGS[name]
    write, family, _, _ = FORMATS[kind]
    folder = write(tmp_path, target)
    changed(folder, **change)
    with pytest.raises(DataError, match=says) as told:
        look(folder, target, family)
    assert "\n" not in str(told.value)
    assert str(folder) in str(told.value)


def test_the_index_decides_between_copies_of_a_tensor_of_a_head(target, tmp_path):
    folder = writers.eagle3(tmp_path, target)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    save_file({"norm.weight": tensors["norm.weight"]}, folder / "model-1-of-2.safetensors")
    weight_map = dict.fromkeys(tensors, "model-2-of-2.safetensors")
    index = {"weight_map": weight_map | {"norm.weight": "model-1-of-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    stale = {**tensors, "norm.weight": tensors["norm.weight"] + 1}
    save_file(stale, folder / "model-2-of-2.safetensors")
    found = read_tensors(look(folder, target, "eagle3"))
    assert torch.equal(found["norm.weight"], tensors["norm.weight"])


LAYERED = ("EAGLE-1", "EAGLE-3", "EAGLE-3.1", "SpecForge", "P-EAGLE", "speculators", "Falcon")
COPIED = {
    "layers": {"num_hidden_layers": 40},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "biases of its kind": {"model_type": "qwen2"},
    "norms of its kind": {"model_type": "qwen3"},
    "sizes": {"intermediate_size": 999, "num_key_value_heads": 4, "head_dim": 8},
}
"""Fields of published heads that were copied from their target's config."""


@pytest.mark.parametrize("fields", COPIED)
@pytest.mark.parametrize("name", [*LAYERED, "Medusa", "Medusa, vLLM", "DFlash", "DSpark"])
def test_the_file_decides_over_a_config_copied_from_its_target(target, tmp_path, name, fields):
    write, family, _, _ = FORMATS[name]
    folder = write(tmp_path, target)
    answers = {"recurrence": "text"} if family == "falcon" else {}
    plain = look(folder, target, family, **answers)
    config = json.loads((folder / "config.json").read_text())
    inner = config.get("transformer_layer_config", config)
    inner |= COPIED[fields]
    if "medusa_num_heads" in config:
        config["medusa_num_layers"] = 40
    changed(folder, **config)
    found = look(folder, target, family, **answers)
    assert (found.shape, found.names, found.writer) == (plain.shape, plain.names, plain.writer)


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ("org/tiny-chat", "org/head does not fit org/tiny-chat, which it names"),
        ("org/x", "org/head is a head for org/x, not for org/tiny-chat"),
    ],
)
def test_a_head_of_another_size_says_what_it_expects(target, tmp_path, stated, says):
    wide = tiny("llama", vocab=20, num_hidden_layers=LAYERS, hidden_size=40)
    folder = writers.medusa(tmp_path, wide, dialect="TGI")
    changed(folder, base_model_name_or_path=stated)
    with pytest.raises(DataError, match=f"{says}.*: expected a target with hidden_size 40, and "):
        look(folder, target, "medusa", anyway=True)


def weights(folder, target, family="eagle3", pickle=False):
    return load(
        ModelSpec(str(folder)),
        Access(offline=True, allow_pickle=pickle),
        drafter=family,
        overrides={},
        target=("org/tiny", target.config.to_dict()),
    )


class Evil:
    def __reduce__(self):
        return os.system, ("touch evil",)


def test_pickles_are_looked_at_without_being_run(target, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    folder = writers.eagle(tmp_path / "a", target, pickle=True)
    assert family_of(folder) == "eagle"
    assert os.environ["GOMP_SPINCOUNT"] == BOUND  # before torch is imported for it
    with pytest.raises(DataError, match="`allow_pickle`"):
        weights(folder, target, "eagle")
    found = weights(folder, target, "eagle", pickle=True)
    whole = torch.load(folder / "pytorch_model.bin", weights_only=True)
    assert torch.equal(found.tensors["fc.weight"], whole["fc.weight"])
    torch.save({"fc.weight": Evil()}, folder / "pytorch_model.bin")
    for harmful in (pickle.dumps(Evil()), (folder / "pytorch_model.bin").read_bytes()):
        (folder / "pytorch_model.bin").write_bytes(harmful)
        with pytest.raises(DataError, match=r"pytorch_model\.bin cannot be read"):
            load_pickle(folder / "pytorch_model.bin", "meta")
        with pytest.raises(SpsError):
            weights(folder, target, "eagle", pickle=True)
    assert not (tmp_path / "evil").exists()


def test_the_wrong_drafter_and_no_head_at_all(target, tmp_path):
    folder = writers.eagle3(tmp_path / "a", target)
    with pytest.raises(UsageError, match="that is a head of eagle3"):
        look(folder, target, "eagle")
    save_file({"x": torch.zeros(1)}, folder / "model.safetensors")
    assert family_of(folder) is None
    with pytest.raises(DataError, match="no head that is known"):
        look(folder, target)
    changed(folder, speculators_model_type="new")
    with pytest.raises(DataError, match="but one of kind new"):
        family_of(folder)
    target.save_pretrained(tmp_path / "model")
    assert family_of(tmp_path / "model") is None


def test_how_an_lstm_is_run_is_asked(target, tmp_path):
    folder = writers.falcon(tmp_path, target, recurrence="")
    assert family_of(folder) == "falcon"
    with pytest.raises(UsageError, match=r"`drafter` falcon:recurrence=text .*or recurrence=none"):
        look(folder, target, "falcon")
    for said, runs in (("text", True), ("none", False)):
        assert look(folder, target, "falcon", recurrence=said).shape.recurrent is runs
    for wrong, says in (
        ({"recurrence": "both"}, "recurrence is 'both'"),
        ({"recurrence": "text", "k_mask": None}, "no k_mask"),
    ):
        changed(folder, **wrong)
        with pytest.raises(DataError, match=says):
            look(folder, target, "falcon")
