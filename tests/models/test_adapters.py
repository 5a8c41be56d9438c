"""Merged adapters: the logits are those of PEFT's own unmerged model, and texts stay exact."""

from functools import cache
from types import SimpleNamespace

import pytest
import torch
from peft import IA3Config, LoHaConfig, LoKrConfig, OFTConfig
from safetensors.torch import load_file

from spsbench.audit.exact.enumeration import prove
from spsbench.audit.statistical.forward import reload_in_float32
from spsbench.models.loader import load_model
from spsbench.registry import BUILT_IN
from spsbench.settings.models import ModelSpec
from spsbench.store.provenance import hash_files
from tests.adapters import LINEAR, base_of, lora, save_adapter, unmerged
from tests.folders import random_model, save
from tests.oracles.models import tiny
from tests.oracles.written_rules import case

CONFIGS = {
    "lora": lora(),
    "ranks and alphas": lora(
        rank_pattern={"0.self_attn.q_proj": 2}, alpha_pattern={"v_proj": 3}, layers_to_transform=[0]
    ),
    "rslora": lora(use_rslora=True, target_modules=r".*\.(q_proj|down_proj)"),
    "dora": lora(use_dora=True),
    "saved modules": lora(modules_to_save=["lm_head"]),
    "embeddings": lora(target_modules=["embed_tokens", "q_proj"]),
    "head": lora(target_modules=["lm_head", "q_proj"]),
    "loha": LoHaConfig(r=4, alpha=8, target_modules=LINEAR),
    "lokr": LoKrConfig(r=4, alpha=8, target_modules=LINEAR),
    "oft": OFTConfig(oft_block_size=4, target_modules=LINEAR),
    "ia3": IA3Config(target_modules=["v_proj", "down_proj"], feedforward_modules=["down_proj"]),
    "conv1d": lora(target_modules=["c_attn", "c_proj"], fan_in_fan_out=True),
    "conv1d dora": lora(target_modules=["c_fc"], fan_in_fan_out=True, use_dora=True),
    "conv1d ia3": IA3Config(target_modules=["c_attn"], feedforward_modules=[], fan_in_fan_out=True),
}
pytestmark = pytest.mark.filterwarnings("ignore")  # PEFT's, and those it meets in transformers
IDS = torch.arange(20)[None] % 11


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def base(request, tmp_path_factory):
    model = random_model(scale=1.0, tie_word_embeddings=request.param)
    return save(tmp_path_factory.mktemp("base"), model)


def loaded(base, adapter, dtype="float32"):
    return load_model(base, ModelSpec("", adapter=str(adapter), dtype=dtype))


@pytest.mark.parametrize("name", CONFIGS)
def test_merged_logits_are_those_of_the_unmerged_model(base, name, tmp_path):
    if name.startswith("conv1d"):  # its weights are [in, out]
        base = save(tmp_path / "gpt2", tiny("gpt2", dtype=torch.float32))
    adapter = save_adapter(tmp_path / "adapter", base, CONFIGS[name])
    expected = unmerged(base, adapter, dtype=torch.float32)(IDS).logits
    assert not torch.allclose(base_of(base, torch.float32)(IDS).logits, expected, atol=1e-3)
    model = loaded(base, adapter)
    torch.testing.assert_close(model(IDS).logits, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(reload_in_float32(model)(IDS).logits, expected, atol=1e-5, rtol=0)
    narrow = (loaded(base, adapter, "bfloat16"), unmerged(base, adapter, dtype=torch.bfloat16))
    merged, rounded = ((model(IDS).logits.float() - expected).abs().max() for model in narrow)
    assert merged <= 2 * rounded  # PEFT's own model is off by its rounding too


def test_a_merge_is_the_sum_of_its_products_rounded_once(base, tmp_path):
    adapters = [save_adapter(tmp_path / name, base, seed=seed) for seed, name in enumerate("ab")]
    name = "model.layers.1.self_attn.v_proj"
    weight = base_of(base, torch.float32).get_submodule(name).weight
    for adapter, factor in zip(adapters, (0.5, -2.0), strict=True):
        tensors = load_file(adapter / "adapter_model.safetensors")
        low, up = (tensors[f"base_model.model.{name}.lora_{part}.weight"] for part in "AB")
        weight = weight + factor * (8 / 4) * up @ low
    for dtype in (torch.float32, torch.bfloat16):
        model = loaded(base, f"{adapters[0]}=0.5+{adapters[1]}=-2", str(dtype)[6:])
        merged = model.get_submodule(name).weight
        torch.testing.assert_close(merged, weight.to(dtype), atol=1e-6, rtol=1e-6)
        assert {tensor.dtype for tensor in model.parameters()} == {dtype}


def test_the_hash_of_a_model_has_those_of_its_adapters(base, tmp_path):
    adapter = save_adapter(tmp_path, base)
    plain, adapted = hash_files(base), hash_files(base, f"{adapter}=2")
    assert plain.items() < adapted.items()
    save_adapter(tmp_path, base, seed=1)
    changed = hash_files(base, f"{adapter}=2")
    assert [name for name in adapted if changed[name] != adapted[name]] == [
        "0/adapter_model.safetensors"
    ]


@pytest.fixture(scope="module")
def adapted_pair(tmp_path_factory):
    """A pair over three tokens, both with adapters, whose distributions are also PEFT's."""
    folder = tmp_path_factory.mktemp("pair")

    def distribution(name, seed):
        base = folder / name
        tiny("llama", vocab=3, seed=seed, dtype=torch.float32).save_pretrained(base)
        adapter = save_adapter(folder / f"{name}-adapter", base, seed=seed)
        models = loaded(base, adapter, "float64"), unmerged(base, adapter, dtype=torch.float64)

        @cache
        def after(prefix):
            ids = torch.tensor([prefix or (0,)])
            probs, expected = (model(ids).logits[0, -1].softmax(-1) for model in models)
            torch.testing.assert_close(probs, expected, atol=1e-12, rtol=0)
            return tuple(probs.tolist())

        return after

    return SimpleNamespace(vocab=3, q=distribution("target", 1), p=distribution("draft", 2))


EXACT = [e for e in BUILT_IN if (e.kind, e.guarantee) == ("verifiers", "exact")]


@pytest.mark.parametrize("entry", EXACT, ids=lambda entry: entry.name)
def test_texts_of_an_adapted_pair_are_distributed_as_the_unmerged_target(entry, adapted_pair):
    proof = prove(case(entry.name, entry.load()(), adapted_pair, tokens=2))
    assert proof.distance < 1e-12
    assert proof.mass == pytest.approx(1, abs=1e-12)
