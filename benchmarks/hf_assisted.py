"""transformers' own assisted generation under audit: which of its ways follow the target's law.

Tiny random models on one core, sampled at temperature 1: an assistant of the same vocabulary,
prompt lookup, and an assistant with another tokenizer (the "universal" way). The audit sees tokens
alone.

    .venv/bin/python benchmarks/hf_assisted.py --out results/hf-assisted.json
"""

import argparse
import copy
import json
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers import models as tokenizer_models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from spsbench.audit.statistical.pair import audit_pair
from spsbench.audit.statistical.report import of_finding
from spsbench.audit.statistical.workbench import Prompt
from spsbench.methods.resolve import resolve
from spsbench.models.loader import encode
from spsbench.models.shelf import Shelf
from spsbench.settings.asked import make_cell
from spsbench.spec import Spec

PROSE = ("the cat sat on the mat and the dog ran over the hill to the old house by the sea",) * 9
CODE = ("def value(x):\n    return x + 1\n\nfor item in range(10):\n    print(value(item))\n",) * 9
PROMPTS = ("the cat sat", "def value(x):", "for item in the house", "print the dog", "over the sea")
SEED = 5


def tokenizer(lines: Iterable[str], size: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE: every byte, and merges that depend on the lines."""
    raw = Tokenizer(tokenizer_models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=alphabet,
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    raw.train_from_iterator(lines, trainer)
    ends = {"eos_token": "<|end|>", "bos_token": "<|end|>"}
    return PreTrainedTokenizerFast(tokenizer_object=raw, **ends)


def model(vocab: int, seed: int) -> LlamaForCausalLM:
    """Random, with wide weights, so that its laws are peaked and vary with the text."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=None,
    )
    made = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if weight.dim() > 1:
                wide = 1.0 if "embed" in name or "lm_head" in name else 3.0
                weight.copy_(torch.randn_like(weight) * wide / weight.shape[-1] ** 0.5)
        made.lm_head.weight.mul_(2.0)
    return made


def noisy(source: LlamaForCausalLM, amount: float) -> LlamaForCausalLM:
    """A draft that often agrees with `source`."""
    torch.manual_seed(SEED + 1)
    made = copy.deepcopy(source)
    with torch.no_grad():
        for weight in made.parameters():
            if weight.dim() > 1:
                weight.add_(torch.randn_like(weight) * weight.std() * amount)
    return made


def translated(
    source: LlamaForCausalLM, ours: PreTrainedTokenizerFast, theirs: PreTrainedTokenizerFast
) -> LlamaForCausalLM:
    """The draft with rows moved to another vocabulary's ids; tokens we lack get random rows."""
    made = model(len(theirs), SEED + 2)
    state = source.state_dict()
    for name, weight in made.state_dict().items():
        if weight.shape == state[name].shape:
            weight.copy_(state[name])
    own = ours.get_vocab()
    for token, theirs_id in theirs.get_vocab().items():
        if token in own:
            for part in ("model.embed_tokens", "lm_head"):
                made.state_dict()[f"{part}.weight"][theirs_id] = state[f"{part}.weight"][own[token]]
    return made


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--bias", type=float, default=0.03)
    parser.add_argument("--max-tokens", type=int, default=40_000)
    parser.add_argument("--k", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours, theirs = tokenizer(PROSE, 290), tokenizer(CODE, 310)
        target = model(len(ours), SEED)
        draft = noisy(target, 0.05)
        for place, made, words in (
            ("target", target, ours),
            ("same", draft, ours),
            ("other", translated(draft, ours, theirs), theirs),
        ):
            made.save_pretrained(folder / place)
            words.save_pretrained(folder / place)
        ways = {
            "assistant, same vocabulary": {"draft": str(folder / "same")},
            "prompt lookup": {"drafter": "ngram:n=2,min_n=1"},
            "assistant, another tokenizer (universal)": {"draft": str(folder / "other")},
        }
        for way, method in ways.items():
            cell = make_cell(
                target=str(folder / "target"), k=options.k, max_new_tokens=32, **method
            )
            cell = resolve(cell.but(decoder=Spec("hf")))
            loaded = Shelf().load(cell)
            prompts = [Prompt(p, tuple(encode(loaded.tokenizer, p))) for p in PROMPTS]
            found = audit_pair(cell, loaded, prompts, bias=options.bias, most=options.max_tokens)
            print(f"{way}: {found.line}")
            report = of_finding(found)
            for arm in (report["sps"], report["controls"]["ars"]):
                del arm["curve"]
            rows.append({"way": way, **report})
    if options.out:
        content = {
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "bias": options.bias,
            "k": options.k,
            "audits": rows,
        }
        options.out.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
