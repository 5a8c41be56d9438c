"""What a user may name as a model, and folders that are broken: one line for each."""

import json
import os
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from spsbench.checkpoints import weights
from spsbench.errors import DataError, MissingError, PermissionDeniedError, UsageError
from spsbench.models import folder
from spsbench.models.folder import check_folder, locate
from spsbench.settings import models
from spsbench.settings.execution import Access
from spsbench.settings.models import ModelSpec


def check(path, **changes):
    trusted = ModelSpec("", trust_remote_code=changes.pop("trust_remote_code", False))
    check_folder(path, trusted, Access(**changes))


def refused(path, kind, words, **changes):
    with pytest.raises(kind, match=words) as caught:
        check(path, **changes)
    assert "\n" not in str(caught.value)
    assert ". " in str(caught.value)


def find(name):
    return locate(ModelSpec(name), Access(offline=True))


def test_good_folders(llama, gpt2):
    check(llama)
    check(gpt2)
    assert len(weights.weight_files(gpt2, allow_pickle=False)) > 1


def test_names_of_folders(llama, monkeypatch):
    assert find(str(llama)) == llama
    monkeypatch.setenv("HOME", str(llama.parent))
    assert find("~/llama") == llama
    monkeypatch.setenv("MODELS", str(llama.parent))
    assert find("$MODELS/llama") == llama
    monkeypatch.chdir(llama.parent)
    assert find("llama") == Path("llama")


def test_bundled_names(llama, monkeypatch):
    assert find("nano") == models.BUNDLED["nano"]
    monkeypatch.setattr(folder, "BUNDLED", {"other": llama / "nothing"})
    with pytest.raises(MissingError, match="not installed"):
        find("other")
    assert all(name in models.BUNDLED for pair in models.DEFAULT_DRAFT.items() for name in pair)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "-",
        "./nothing",
        "/nothing/here",
        "~/nothing-here",
        "https://huggingface.co/gpt2",
        "models/*/llama",
        "a/b/c",
        "a\0b",
        "..",
        "x" * 5000,
        "a b",
        "$UNSET_VARIABLE/x",
    ],
)
def test_names_of_nothing(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if name == "..":  # a folder, but no model
        refused(find(name), MissingError, r"no config\.json")
        return
    with pytest.raises(MissingError) as caught:
        find(name)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_folder_has_no_revisions(llama):
    with pytest.raises(UsageError, match="revision 'main' of the folder"):
        locate(ModelSpec(str(llama), "main"), Access(offline=True))


def test_a_file(llama):
    with pytest.raises(DataError, match="is a file"):
        find(str(llama / "config.json"))


def test_a_loop_of_links(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(MissingError):
        find(str(tmp_path / "a"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_folder(broken):
    broken.chmod(0)
    with pytest.raises(PermissionDeniedError):
        find(str(broken))
    broken.chmod(0o700)


def test_unreadable_files(broken, monkeypatch):
    def fail(path, limit):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("spsbench.checkpoints.config.read_file", fail)
    refused(broken, PermissionDeniedError, r"config\.json cannot be read")


def test_no_config(broken):
    (broken / "config.json").unlink()
    refused(broken, MissingError, r"no config\.json")
    (broken / "adapter_config.json").write_text("{}")
    refused(broken, DataError, "an adapter")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "3",
        '{"a": ' * 100_000,
        "[" * 100_000,
        "\udcff",
        '{"vocab_size": ' + "9" * 5000 + "}",
    ],
)
def test_config_that_is_no_object(broken, text):
    (broken / "config.json").write_bytes(text.encode(errors="surrogateescape"))
    refused(broken, DataError, r"config\.json")


def test_huge_config(broken):
    (broken / "config.json").write_text(" " * (5 << 20) + "{}")
    refused(broken, DataError, "expected at most")


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": -1},
        {"hidden_size": 10**12},
        {"hidden_size": 16.0},
        {"hidden_size": True},
        {"num_hidden_layers": "a"},
        {"num_hidden_layers": 0},
        {"num_attention_heads": 3, "head_dim": None},
        {"num_key_value_heads": 3},
        {"vocab_size": 1 << 40},
        {"vocab_size": [264]},
        {"max_position_embeddings": -5},
        {"rms_norm_eps": "x"},
        {"intermediate_size": 1 << 19},
        {"hidden_size": 1 << 16},
        {"text_config": {"hidden_size": -1}},
    ],
)
def test_absurd_sizes(broken, edit, change):
    edit(broken / "config.json", **change)
    refused(broken, DataError, r"config\.json")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "t5"}, "t5 is an encoder-decoder"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_type": "bert"}, "bert is an encoder"),
        ({"model_type": "rwkv"}, "rwkv is a recurrent"),
        ({"model_type": None}, "names no model_type"),
        ({"model_type": 3}, "names no model_type"),
    ],
)
def test_other_kinds_of_models(broken, edit, change, words):
    edit(broken / "config.json", **change)
    refused(broken, DataError, words)


def test_code_of_the_model(broken, edit):
    code = {"AutoModelForCausalLM": "modeling_own.Own"}
    edit(broken / "config.json", auto_map=code)
    check(broken)  # transformers has a Llama of its own
    edit(broken / "config.json", model_type="own")
    refused(broken, DataError, "`trust_remote_code`")
    check(broken, trust_remote_code=True)


@pytest.mark.parametrize("revision", [None, "main", "abc123"])
def test_code_of_the_model_needs_a_commit(broken, edit, revision, monkeypatch):
    edit(broken / "config.json", auto_map={"AutoModelForCausalLM": "modeling_own.Own"})
    monkeypatch.setattr(folder, "fetch", lambda ref, access: broken)
    spec = ModelSpec("org/own", revision, trust_remote_code=True)
    with pytest.raises(DataError, match="commit"):
        locate(spec, Access())
    assert locate(replace(spec, revision="0" * 40), Access()) == broken


def test_no_weights(broken):
    (broken / "model.safetensors").unlink()
    refused(broken, MissingError, "no weights")
    (broken / "other.safetensors").write_bytes(b"")
    refused(broken, MissingError, r"only other\.safetensors")
    (broken / "pytorch_model.bin").write_bytes(b"x" * 100_000)
    refused(broken, DataError, "`allow_pickle`")
    check(broken, allow_pickle=True)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: data[:4],
        lambda data: data[:100],
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: struct.pack("<Q", 1 << 60) + data[8:],
        lambda data: b"\xff" * 8 + data[8:],
        lambda data: header(b"[" * 90_000),
        lambda data: header(b"[]"),
        lambda data: header(b"{}") + b"1234",
        lambda data: header(b"nonsense"),
        lambda data: header(one(dtype="X9")) + bytes(8),
        lambda data: header(one(shape=[-2])) + bytes(8),
        lambda data: header(one(shape=[1 << 60])) + bytes(8),
        lambda data: header(one(data_offsets=[0])) + bytes(8),
        lambda data: header(one(data_offsets=[8, 0])) + bytes(8),
        lambda data: header(one(data_offsets=[0, 800])) + bytes(8),
        lambda data: header(b'{"a": 3}') + bytes(8),
    ],
)
def test_safetensors_that_lie(broken, spoil):
    path = broken / "model.safetensors"
    path.write_bytes(spoil(path.read_bytes()))
    refused(broken, DataError, r"model\.safetensors")


def header(text):
    return struct.pack("<Q", len(text)) + text


def one(**changes):
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes
    return json.dumps({"a": entry}).encode()


@pytest.mark.parametrize(
    ("weight_map", "words"),
    [
        ({"a": "gone.safetensors"}, "shard gone.safetensors is missing"),
        ({"a": "../../x.safetensors"}, "inside the folder"),
        ({"a": "/etc/passwd"}, "inside the folder"),
        ({"a": ".."}, "inside the folder|is missing"),
        ({"a": 3}, "is missing"),
        ({}, "no weight_map"),
        ([], "no weight_map"),
    ],
)
def test_index_that_leads_nowhere(broken, weight_map, words):
    (broken / weights.INDEX).write_text(json.dumps({"weight_map": weight_map}))
    (broken / weights.WHOLE).unlink()
    refused(broken, DataError, words)


def test_tokenizer_files(broken):
    os.truncate(broken / "tokenizer.json", folder.TOKENIZER_LIMIT + 1)
    refused(broken, DataError, r"tokenizer\.json has \d+ bytes")
    for path in broken.glob("tokenizer*"):
        path.unlink()
    refused(broken, MissingError, "no tokenizer")


@pytest.mark.parametrize("kind", [torch.int8, torch.uint8])
def test_whole_numbers_for_weights(broken, edit, kind):
    """A mask of whole numbers is none, and packed weights are said to be packed."""
    path, name = broken / "model.safetensors", "model.layers.1.mlp.up_proj.weight"
    tensors = load_file(path)
    mask = {"model.layers.0.attn.bias": torch.ones(2, 2, dtype=torch.uint8)}
    save_file(tensors | mask, path, metadata={"format": "pt"})
    check(broken)
    packed = {name: (tensors[name] * 50).to(kind)}
    save_file(tensors | packed, path, metadata={"format": "pt"})
    with pytest.raises(DataError, match=rf"{name} has the dtype [UI]8 .*no quantization_config"):
        check(broken)
    edit(broken / "config.json", quantization_config={"quant_method": "any"})
    check(broken)
