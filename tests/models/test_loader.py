"""Models and tokenizers in memory: dtypes, devices, soundness, prompts."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from spsbench.checkpoints.config import hidden_settings
from spsbench.checkpoints.weights import token_weight_bytes
from spsbench.engines.eager import Eager
from spsbench.errors import DataError, OutOfMemoryError, UnavailableError, UsageError
from spsbench.models.loader import load_model
from spsbench.models.tokenizers import encode_text, eos_ids, load_tokenizer
from spsbench.settings.execution import Access
from spsbench.settings.models import ModelSpec
from tests.folders import edit


def load(folder, **changes):
    access = Access(allow_pickle=changes.pop("allow_pickle", False))
    return load_model(folder, ModelSpec("", **changes), access)


def pickled(folder, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    return tmp_path


def of_base(folder, tmp_path):
    """Without the prefix of the base model in names, and without a head, as its class saves it."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.base_model.save_pretrained(tmp_path)
    return tmp_path


def as_it_is(folder, tmp_path):
    return folder


def sharded(folder, tmp_path):
    """A copy in two shards; the second has a stale copy of a tensor that the index denies it."""
    made = shutil.copytree(folder, tmp_path / "sharded")
    tensors = load_file(made / "model.safetensors")
    (made / "model.safetensors").unlink()
    names = sorted(tensors)
    files = [f"model-{i}-of-2.safetensors" for i in (1, 2)]
    parts = [names[::2], names[1::2]]
    weight_map = {name: file for file, part in zip(files, parts, strict=True) for name in part}
    (made / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    for file, part in zip(files, parts, strict=True):
        save_file({name: tensors[name] for name in part}, made / file)
    stale = {names[0]: tensors[names[0]] + 1, **{name: tensors[name] for name in parts[1]}}
    save_file(stale, made / files[1])
    return made


@pytest.mark.parametrize(
    ("name", "write"),
    [
        *((name, write) for name in ("llama", "gpt2") for write in (as_it_is, pickled)),
        ("llama", sharded),
        ("gpt2", of_base),
    ],
)
def test_numbers_are_those_of_transformers(name, write, request, tmp_path):
    folder = request.getfixturevalue(name)
    written = write(folder, tmp_path)
    model = load(written, allow_pickle=True)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    theirs = plain.state_dict()
    for key, tensor in model.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, theirs[key]), key
    assert not model.training
    assert not any(p.requires_grad for p in model.parameters())
    ids = torch.arange(5)[None]
    assert torch.equal(model(ids).logits, plain.eval()(ids).logits)
    assert model.config.name_or_path == str(written)
    if write is sharded:
        assert token_weight_bytes(written, "float32") == token_weight_bytes(folder, "float32")


def test_what_is_read_of_an_index_and_a_whole_file_is_said(llama, tmp_path, said):
    made = sharded(llama, tmp_path)
    tensors = {name: tensor + 1 for name, tensor in load_file(llama / "model.safetensors").items()}
    save_file(tensors, made / "model.safetensors", metadata={"format": "pt"})
    norm = "model.norm.weight"
    assert torch.equal(load(made).state_dict()[norm], load(llama).state_dict()[norm])
    assert [line for line in said if "reading the shards of the index" in line]
    (made / "model-1-of-2.safetensors").unlink()
    assert torch.equal(load(made).state_dict()[norm], tensors[norm])
    assert [line for line in said if "reading model.safetensors, as model-1-of-2" in line]
    theirs = AutoModelForCausalLM.from_pretrained(made, dtype=torch.float32).state_dict()
    assert torch.equal(theirs[norm], tensors[norm])


def test_copies_that_transformers_itself_would_read_are_refused(llama, tmp_path):
    """Models with code of their own are loaded by transformers, which takes the last copy."""
    made = sharded(llama, tmp_path)
    with pytest.raises(DataError):
        load(made, trust_remote_code=True)
    shutil.copy(llama / "model.safetensors", made)
    with pytest.raises(DataError):
        load(made, trust_remote_code=True)


def test_dtypes_and_attention(llama, gpt2):
    assert load(llama, dtype="bfloat16").dtype == torch.bfloat16
    assert load(llama, dtype="float64").dtype == torch.float64
    assert load(gpt2, dtype="float16").dtype == torch.float16
    assert load(llama, attention="eager").config._attn_implementation == "eager"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"dtype": "int3"}, UsageError),
        ({"attention": "nonsense"}, DataError),
        *(({"device": name}, UnavailableError) for name in ("cuda:99", "gpu", "", "cuda:-1")),
    ],
)
def test_options_that_no_model_has_are_refused(llama, options, error):
    with pytest.raises(error) as caught:
        load(llama, **options)
    assert "\n" not in str(caught.value)


NAME = "model.layers.1.mlp.up_proj.weight"


def one_number(value):
    def change(tensors):
        tensors[NAME][3, 2] = value

    return change


def all_numbers(factor):
    return lambda tensors: tensors.update({NAME: tensors[NAME] * factor})


@pytest.mark.parametrize(
    ("change", "settings"),
    [
        *((one_number(float(value)), {}) for value in ("nan", "inf", "-inf")),
        *((all_numbers(factor), {}) for factor in (1e30, -1e10)),
        (lambda tensors: tensors.pop("model.layers.0.self_attn.q_proj.weight"), {}),
        (lambda tensors: tensors.update({NAME: tensors[NAME][:-1].clone()}), {}),
        (lambda tensors: None, {"intermediate_size": 48}),
        (lambda tensors: None, {"model_type": "llama99"}),
    ],
)
def test_weights_that_are_not_those_of_the_model_are_refused(broken, change, settings):
    """Numbers that no training leaves behind, tensors that are missing or have another shape."""
    tensors = load_file(broken / "model.safetensors")
    change(tensors)
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    edit(broken / "config.json", **settings)
    with pytest.raises(DataError) as caught:
        load(broken)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("model.layers.0.mlp.up_proj.bias", {}),
        ("model.layers.0.self_attn.q_proj.weight_scale", {}),
        ("model.norm.weight", {"num_hidden_layers": 1}),
    ],
)
def test_tensors_that_config_json_forgets_are_refused(broken, name, settings):
    tensors = load_file(broken / "model.safetensors")
    save_file({name: torch.ones(16)} | tensors, broken / "model.safetensors", {"format": "pt"})
    edit(broken / "config.json", **settings)
    with pytest.raises(DataError) as caught:
        load(broken)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "settings", [{"intermediate_size": 80}, {"num_hidden_layers": 9}, {"num_hidden_layers": 1}]
)
def test_config_json_is_compared_before_a_weight_is_read(broken, monkeypatch, settings):
    edit(broken / "config.json", **settings)
    reading: list[object] = []
    monkeypatch.setattr(PreTrainedModel, "from_pretrained", lambda *_, **__: reading.append(1))
    with pytest.raises(DataError):
        load(broken)
    assert not reading


def test_tensors_of_other_parts_are_named(broken, said):
    tensors = load_file(broken / "model.safetensors")
    more = {"vision.patch.weight": torch.ones(2)}
    save_file(tensors | more, broken / "model.safetensors", {"format": "pt"})
    load(broken)
    assert any("vision.patch.weight" in line for line in said)


@pytest.mark.parametrize(
    "settings",
    [
        *({"return_dict": False}, {"_attn_implementation": "flash_attention_2"}),
        *({"dtype": "torch.bfloat16"}, {"dtype": None, "torch_dtype": "auto"}),
        *({"use_cache": False}, {"attn_implementation": "flash_attention_2"}),
    ],
)
def test_what_trainings_leave_in_a_config_changes_nothing(llama, broken, settings):
    edit(broken / "config.json", **settings)
    ids = torch.arange(5)[None]
    assert torch.equal(load(broken)(ids).logits, load(llama)(ids).logits)
    assert load_tokenizer(broken, trust_remote_code=False).get_vocab()


def test_numbers_beyond_a_type_are_no_fault_of_the_cache(broken):
    tensors = load_file(broken / "model.safetensors")
    large = {n: t * 60_000 if "up_proj" in n or "gate" in n else t for n, t in tensors.items()}
    save_file(large, broken / "model.safetensors", {"format": "pt"})
    Eager().prepare(load(broken, dtype="float32"), known=None, threads=1)
    with pytest.raises(DataError) as caught:
        Eager().prepare(load(broken, dtype="float16"), known=None, threads=1)
    assert "float16" in str(caught.value)


def test_attention_by_cudnn_is_off_where_a_model_is_loaded(llama):
    torch.backends.cuda.enable_cudnn_sdp(True)
    load(llama)
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_larger_than_memory_is_said(llama, said, monkeypatch):
    monkeypatch.setattr("spsbench.models.devices.free_bytes", lambda place: 1000)
    load(llama)
    assert len(said) == 1
    assert said[0].startswith("warning: the weights of llama need")


def test_out_of_memory(llama, monkeypatch):
    def fail(*args, **options):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 1 bytes")

    monkeypatch.setattr("spsbench.models.loader.lazy_tensors", fail)
    with pytest.raises(OutOfMemoryError):
        load(llama)


@pytest.mark.parametrize(
    "section",
    [
        {"model": {"type": "BPE", "vocab": [], "merges": 3}},
        {"pre_tokenizer": {"type": "Nonsense"}},
        {
            "pre_tokenizer": {
                "type": "Split",
                "pattern": {"Regex": "(((("},
                "behavior": "Isolated",
                "invert": False,
            }
        },
    ],
)
def test_a_broken_tokenizer_is_refused(broken, section):
    edit(broken / "tokenizer.json", **section)
    with pytest.raises(DataError):
        load_tokenizer(broken, trust_remote_code=False)


def test_prompt_starts_with_the_bos_the_tokenizer_adds(llama, gpt2):
    with_bos = load_tokenizer(llama, trust_remote_code=False)
    assert encode_text(with_bos, "the")[0] == with_bos.bos_token_id
    without = load_tokenizer(gpt2, trust_remote_code=False)
    assert without.decode(encode_text(without, "the cat")) == "the cat"


def test_special_tokens_in_a_prompt_are_text(llama):
    tokenizer = load_tokenizer(llama, trust_remote_code=False)
    ids = encode_text(tokenizer, "a</s>b")
    assert tokenizer.eos_token_id not in ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a</s>b"


def test_blank_and_broken_prompts(llama, gpt2):
    with_bos, without = (
        load_tokenizer(folder, trust_remote_code=False) for folder in (llama, gpt2)
    )
    for text in ("", " ", "\n\t "):
        ids = encode_text(with_bos, text)
        assert ids[0] == with_bos.bos_token_id
        assert ids.count(ids[0]) == 1
        with pytest.raises(DataError):
            encode_text(without, text)
    for text in ("a\0b", "a\ud800b"):
        with pytest.raises(DataError):
            encode_text(with_bos, text)


@pytest.mark.parametrize(
    ("config", "generation", "ids"),
    [
        ({"eos_token_id": 7}, {"eos_token_id": [5, 263]}, {5, 260, 263}),
        ({"eos_token_id": [7, 8]}, None, {7, 8, 260}),
        ({"eos_token_id": 7}, {}, {260}),
        ({}, {"eos_token_id": None}, {260}),
        ({}, None, {260}),  # the default of Llama's class is 2
        ({"text_config": {"eos_token_id": 9}}, None, {9, 260}),
        ({}, {"eos_token_id": [5, None]}, {5, 260}),
    ],
)
def test_a_text_ends_at_ids_that_files_name(llama, tmp_path, config, generation, ids):
    (tmp_path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    tokenizer = load_tokenizer(llama, trust_remote_code=False)
    assert eos_ids(tmp_path, tokenizer) == ids


@pytest.mark.parametrize("value", [[[0, 1]], "0", 1.5, {}, True])
def test_an_end_of_text_that_is_no_id(llama, broken, value):
    edit(broken / "generation_config.json", eos_token_id=value)
    with pytest.raises(DataError):
        eos_ids(broken, load_tokenizer(llama, trust_remote_code=False))


def test_settings_that_are_not_applied(broken):
    path = broken / "generation_config.json"
    assert hidden_settings(broken) == {}
    edit(path, temperature=0.7, top_k=20, top_p=1.0, repetition_penalty=1, do_sample=True)
    assert hidden_settings(broken) == {"temperature": 0.7, "top_k": 20}
    path.write_text("[]")
    with pytest.raises(DataError):
        hidden_settings(broken)
    path.unlink()
    assert hidden_settings(broken) == {}


LOAD = """
import resource, sys
from pathlib import Path
import torch, transformers.models.llama.modeling_llama
from spsbench.models.loader import load_model
from spsbench.settings.models import ModelSpec
torch.set_num_threads(1)
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
model = load_model(Path(sys.argv[1]), ModelSpec(""))
print(peak() - before, sum(p.nbytes for p in model.parameters()))
"""


@pytest.mark.slow
def test_peak_memory_has_one_copy(tmp_path):
    """42 MB of bfloat16 become 84 MB of float32; a second copy of either would show."""
    sizes = {"vocab_size": 40_000, "hidden_size": 256, "intermediate_size": 512}
    config = LlamaConfig(**sizes, num_hidden_layers=1, num_attention_heads=4)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path)
    run = [sys.executable, "-c", LOAD, str(tmp_path)]
    done = subprocess.run(run, check=True, capture_output=True, text=True)
    extra, weights = map(int, done.stdout.split())
    assert 80e6 < weights < 90e6
    assert extra < weights + 30e6
