"""What a user may name as a model, and folders that are broken."""

import json
import os
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from spsbench.checkpoints import weights
from spsbench.errors import DataError, MissingError, UsageError
from spsbench.models import folder
from spsbench.models.folder import check_folder, locate
from spsbench.settings import models
from spsbench.settings.execution import Access
from spsbench.settings.models import ModelSpec
from tests.folders import edit


def check(path, **changes):
    trusted = ModelSpec("", trust_remote_code=changes.pop("trust_remote_code", False))
    check_folder(path, trusted, Access(**changes))


def refused(path, kind, **changes):
    with pytest.raises(kind) as caught:
        check(path, **changes)
    assert "\n" not in str(caught.value)


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
    with pytest.raises(UsageError):  # a folder has no revisions
        locate(ModelSpec(str(llama), "main"), Access(offline=True))
    with pytest.raises(DataError):
        find(str(llama / "config.json"))


def test_bundled_names(llama, monkeypatch):
    assert find("nano") == models.BUNDLED["nano"]
    monkeypatch.setattr(folder, "BUNDLED", {"other": llama / "nothing"})
    with pytest.raises(MissingError):
        find("other")
    assert all(name in models.BUNDLED for pair in models.DEFAULT_DRAFT.items() for name in pair)


@pytest.mark.parametrize(
    "name",
    [
        *("", "-", "./nothing", "/nothing/here", "~/nothing-here", "models/*/llama", "a/b/c"),
        *("https://huggingface.co/gpt2", "a\0b", "x" * 5000, "a b", "$UNSET_VARIABLE/x", "./loop"),
    ],
)
def test_names_of_nothing(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(MissingError) as caught:
        find(name)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def changed(**values):
    return lambda path: edit(path / "config.json", **values)


def config(text):
    return lambda path: (path / "config.json").write_bytes(text)


def spoiled(change):
    """The weights, changed."""

    def spoil(path):
        file = path / weights.WHOLE
        file.write_bytes(change(file.read_bytes()))

    return spoil


def header(text):
    return struct.pack("<Q", len(text)) + text


def one(**changes):
    """A file of one tensor, whose entry is changed."""
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes
    return spoiled(lambda data: header(json.dumps({"a": entry}).encode()) + bytes(8))


def index(weight_map):
    def write(path):
        (path / weights.INDEX).write_text(json.dumps({"weight_map": weight_map}))
        (path / weights.WHOLE).unlink()

    return write


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
BROKEN = {
    "nothing in it": lambda path: [file.unlink() for file in path.iterdir()],
    "no weights": lambda path: (path / weights.WHOLE).unlink(),
    "no tokenizer": lambda path: [file.unlink() for file in path.glob("tokenizer*")],
    "an adapter": lambda path: (path / "config.json").rename(path / "adapter_config.json"),
    "huge tokenizer": lambda path: os.truncate(path / "tokenizer.json", folder.TOKENIZER_LIMIT + 1),
    "no text": config(b""),
    "half": config(b"{"),
    "list": config(b"[]"),
    "number": config(b"3"),
    "deep object": config(b'{"a": ' * 100_000),
    "deep list": config(b"[" * 100_000),
    "no UTF-8": config(b"\xff"),
    "long number": config(b'{"vocab_size": ' + b"9" * 5000 + b"}"),
    "huge config": config(b" " * (5 << 20) + b"{}"),
    "negative": changed(hidden_size=-1),
    "beyond any": changed(hidden_size=10**12),
    "float": changed(hidden_size=16.0),
    "bool": changed(hidden_size=True),
    "words": changed(num_hidden_layers="a"),
    "no layers": changed(num_hidden_layers=0),
    "pointer for a config": config(LFS),
    "pointer for weights": spoiled(lambda data: LFS),
    "pointer for a tokenizer": lambda path: (path / "tokenizer.json").write_bytes(LFS),
    "another vocabulary": changed(vocab_size=300),
    "heads": changed(num_attention_heads=3, head_dim=None),
    "key heads": changed(num_key_value_heads=3),
    "huge vocabulary": changed(vocab_size=1 << 40),
    "listed vocabulary": changed(vocab_size=[264]),
    "positions": changed(max_position_embeddings=-5),
    "epsilon": changed(rms_norm_eps="x"),
    "an epsilon that is true": changed(rms_norm_eps=True),
    "an epsilon beyond floats": changed(rms_norm_eps=10**400),
    "beyond the weights": changed(intermediate_size=1 << 19),
    "wider than the weights": changed(hidden_size=1 << 16),
    "of the text": changed(text_config={"hidden_size": -1}),
    "encoder-decoder": changed(model_type="t5"),
    "encoder-decoder by its flag": changed(is_encoder_decoder=True),
    "encoder": changed(model_type="bert"),
    "recurrent": changed(model_type="rwkv"),
    "no type": changed(model_type=None),
    "number for a type": changed(model_type=3),
    "empty weights": spoiled(lambda data: b""),
    "four bytes": spoiled(lambda data: data[:4]),
    "cut header": spoiled(lambda data: data[:100]),
    "cut weights": spoiled(lambda data: data[:-1]),
    "longer weights": spoiled(lambda data: data + b"\0"),
    "long header": spoiled(lambda data: struct.pack("<Q", 1 << 60) + data[8:]),
    "longest header": spoiled(lambda data: b"\xff" * 8 + data[8:]),
    "deep header": spoiled(lambda data: header(b"[" * 90_000)),
    "listed header": spoiled(lambda data: header(b"[]")),
    "more than the header": spoiled(lambda data: header(b"{}") + b"1234"),
    "header of words": spoiled(lambda data: header(b"nonsense")),
    "number for an entry": spoiled(lambda data: header(b'{"a": 3}') + bytes(8)),
    "unknown dtype": one(dtype="X9"),
    "negative shape": one(shape=[-2]),
    "huge shape": one(shape=[1 << 60]),
    "one offset": one(data_offsets=[0]),
    "offsets swapped": one(data_offsets=[8, 0]),
    "offsets beyond": one(data_offsets=[0, 800]),
    "shard is gone": index({"a": "gone.safetensors"}),
    "shard above": index({"a": "../../x.safetensors"}),
    "shard elsewhere": index({"a": "/etc/passwd"}),
    "shard is a folder": index({"a": ".."}),
    "shard is a number": index({"a": 3}),
    "index of none": index({}),
    "listed index": index([]),
}
MISSING = {"nothing in it", "no weights", "no tokenizer"}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_folder_is_refused_by_type(broken, name):
    BROKEN[name](broken)
    refused(broken, MissingError if name in MISSING else DataError)


def test_code_of_the_model_needs_trust_and_a_commit(broken, monkeypatch):
    edit(broken / "config.json", auto_map={"AutoModelForCausalLM": "modeling_own.Own"})
    check(broken)  # transformers has a Llama of its own
    edit(broken / "config.json", model_type="own")
    refused(broken, DataError)
    check(broken, trust_remote_code=True)
    monkeypatch.setattr(folder, "fetch_snapshot", lambda ref, access: broken)
    spec = ModelSpec("org/own", trust_remote_code=True)
    for revision in (None, "main", "abc123"):
        with pytest.raises(DataError):
            locate(replace(spec, revision=revision), Access())
    assert locate(replace(spec, revision="0" * 40), Access()) == broken


def test_pickles_need_leave(broken):
    (broken / weights.WHOLE).unlink()
    (broken / "pytorch_model.bin").write_bytes(b"x" * 100_000)
    refused(broken, DataError)
    check(broken, allow_pickle=True)


def test_a_pointer_is_named(broken):
    (broken / weights.WHOLE).write_bytes(LFS)
    with pytest.raises(DataError) as caught:
        check(broken)
    assert "git lfs pull" in str(caught.value)


def test_heads_of_latent_attention_have_widths_of_their_own(broken):
    edit(broken / "config.json", head_dim=None, num_attention_heads=3, num_key_value_heads=3)
    refused(broken, DataError)
    edit(broken / "config.json", kv_lora_rank=8, qk_nope_head_dim=12)
    check(broken)


def test_an_adapter_and_weights_that_are_not_read_are_named(broken, said):
    check(broken)
    assert not said
    (broken / "adapter_config.json").write_text("{}")
    for name in ("adapter_model", "consolidated"):
        save_file({"a": torch.ones(1)}, broken / f"{name}.safetensors")
    (broken / "pytorch_model.bin").write_bytes(b"")
    check(broken)
    (line,) = said
    assert all(x in line for x in ("adapter_config", "adapter_model", "consolidated", "model.bin"))


def test_pieces_need_their_library(broken, monkeypatch):
    (broken / "tokenizer.json").unlink()
    (broken / "tokenizer.model").write_bytes(b"\n\x0e\n\x05<unk>")
    monkeypatch.setattr(folder, "find_spec", lambda name: None)
    refused(broken, MissingError)
    monkeypatch.setattr(folder, "find_spec", lambda name: name)
    check(broken)


NARROW = [torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("kind", NARROW)
def test_whole_numbers_for_weights_need_a_quantization_config(broken, kind):
    path, name = broken / "model.safetensors", "model.layers.1.mlp.up_proj.weight"
    tensors = load_file(path)
    mask = {"model.layers.0.attn.bias": torch.ones(2, 2, dtype=torch.uint8)}
    save_file(tensors | mask, path, metadata={"format": "pt"})
    check(broken)  # a mask of whole numbers is none
    packed = {name: (tensors[name] * 50).to(kind)}
    save_file(tensors | packed, path, metadata={"format": "pt"})
    refused(broken, DataError)
    edit(broken / "config.json", quantization_config={"quant_method": "any"})
    check(broken)
