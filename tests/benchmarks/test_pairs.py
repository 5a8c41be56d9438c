"""Pairs of a tiny shape: the draft is the target's beginning, and agrees as often as asked for."""

import json

import pytest
import torch
from transformers import GPT2Config, LlamaConfig, Qwen2Config

from pairs.random_pairs import (
    PROMPT_TOKENS,
    PROMPTS,
    TOKENS,
    acceptance,
    first_layers,
    later_outputs,
    make,
    random_target,
    rescale,
)
from spsbench.benchmark.generation import Generation
from spsbench.methods.resolve import resolve
from spsbench.models.cache import ModelCache
from spsbench.settings.cell_from_options import make_cell
from spsbench.settings.execution import Access

VOCAB, K = 400, 4


def config(kind):
    if kind == "gpt2":
        return GPT2Config(n_layer=4, n_embd=64, n_head=4, vocab_size=VOCAB, n_positions=128)
    if kind == "qwen2":
        return Qwen2Config(
            num_hidden_layers=4, hidden_size=64, intermediate_size=128, num_attention_heads=4,
            num_key_value_heads=2, vocab_size=VOCAB, max_position_embeddings=128,
        )  # fmt: skip
    return LlamaConfig(
        num_hidden_layers=4, hidden_size=64, intermediate_size=128, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=VOCAB, max_position_embeddings=128,
        tie_word_embeddings=True,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen2"])
def test_the_draft_is_the_target_without_its_later_layers(kind):
    target = random_target(config(kind))
    draft, late = first_layers(target, 2), later_outputs(target, 2)
    ids = torch.randint(VOCAB, (1, 20), generator=torch.Generator().manual_seed(0))
    before = target(input_ids=ids).logits - draft(input_ids=ids).logits
    rescale(late, [weight.clone() for weight in late], 0.0)
    after = target(input_ids=ids).logits - draft(input_ids=ids).logits
    assert before.abs().max() > 1
    assert after.abs().max() == 0
    assert acceptance(target, draft, 0.0).tau == pytest.approx(K + 1, abs=0.2)  # near-ties


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_pair_agrees_as_measured_when_our_loop_runs_it(tmp_path, kind, capsys):
    make(tmp_path, config(kind), 2)
    facts = json.loads((tmp_path / "pair.json").read_text())["acceptance"]
    assert 3 <= facts["tau"] <= 4
    assert facts["distinct"] > 0.6
    target, draft = str(tmp_path / "target"), str(tmp_path / "draft")
    cell = resolve(
        make_cell(target=target, draft=draft, k=K, temperature=0.0, max_new_tokens=TOKENS,
                  dtype="bfloat16", ignore_eos=True)
    )  # fmt: skip
    loaded = ModelCache(Access(offline=True)).load(cell)
    source = torch.Generator().manual_seed(1)
    prompts = torch.randint(VOCAB, (PROMPTS, PROMPT_TOKENS), generator=source).tolist()
    emitted = rounds = 0
    for prompt in prompts:
        generation = Generation(cell, loaded, prompt)
        for _ in generation:
            pass
        whole = generation.record.rounds[:-1]  # the budget cuts the last one
        emitted, rounds = emitted + sum(r.emitted for r in whole), rounds + len(whole)
    assert emitted / rounds == pytest.approx(facts["tau"], rel=0.2)  # near-ties in bfloat16
