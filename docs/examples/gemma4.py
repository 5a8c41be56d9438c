"""Sampling with a Gemma 4 assistant in transformers 5.23.0, end to end on a tiny random pair.

Prints chi2 of 450 texts of three tokens against the target's distribution, with the assistant and
without: 841 and 120 on 124 degrees of freedom (torch 2.13.0, CPU, three minutes on a busy core).
"""

import torch
from transformers import (
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
)

torch.manual_seed(0)
modes = Gemma4TextConfig.kv_sharing_modes  # it refuses a model all of whose layers share
Gemma4TextConfig.kv_sharing_modes = property(
    lambda c: (
        ["reuse"] * c.num_hidden_layers
        if c.num_kv_shared_layers == c.num_hidden_layers
        else modes.fget(c)
    )
)
SHAPE = {
    "vocab_size": 5,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_global_key_value_heads": 1,
    "head_dim": 16,
    "global_head_dim": 16,
    "sliding_window": 16,
    "num_kv_shared_layers": 2,
    "pad_token_id": None,
    "eos_token_id": None,
    "bos_token_id": None,
}
KINDS = ["sliding_attention", "full_attention"]
PER_LAYER = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 5}
NONE = dict.fromkeys(PER_LAYER, 0)
config = Gemma4TextConfig(
    hidden_size=32, num_hidden_layers=4, layer_types=2 * KINDS, **SHAPE, **PER_LAYER
)
small = Gemma4TextConfig(hidden_size=32, num_hidden_layers=2, layer_types=KINDS, **SHAPE, **NONE)
target = Gemma4ForCausalLM(config).eval()
draft = Gemma4AssistantForCausalLM(
    Gemma4AssistantConfig(text_config=small, backbone_hidden_size=32)
).eval()
for model in (target, draft):
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.12)
draft.generation_config.num_assistant_tokens = 3


def next_probs(ids):
    """Return the target's distribution of the token after `ids`."""
    return target(torch.tensor([ids])).logits[0, -1].softmax(-1)


probs = torch.zeros(5, 5, 5)
with torch.no_grad():
    for a, first in enumerate(next_probs([1, 2, 3])):
        for b, second in enumerate(next_probs([1, 2, 3, a])):
            probs[a, b] = first * second * next_probs([1, 2, 3, a, b])
for assistant in (draft, None):
    seen = torch.zeros(5, 5, 5)
    for _ in range(450):
        text = target.generate(
            torch.tensor([[1, 2, 3]]),
            assistant_model=assistant,
            do_sample=True,
            max_new_tokens=3,
            top_k=0,
        )
        seen[tuple(text[0, 3:].tolist())] += 1
    chi2 = float(((seen - 450 * probs) ** 2 / (450 * probs)).sum())
    print("with the assistant" if assistant else "plain", round(chi2), "on 124")
