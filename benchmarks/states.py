"""What a pass over a draft costs where layers keep states: v(n), and the share of the mixers.

    .venv/bin/python benchmarks/states.py                                  # three shapes, minutes
    .venv/bin/python benchmarks/states.py --shapes lfm2 --threads 2 --turns 30
    .venv/bin/python benchmarks/states.py --tiny --turns 2                 # tries the script

Random weights in real shapes, in bfloat16, a few layers of each kind. A layer is timed by hooks,
and a kind of layer counts as often as the whole model has it; embeddings, the last norm and the
head count once. v(n) is a pass over n tokens in passes over one; its mixers run row by row. Passes
of all sizes take turns, and the least times are compared. Qwen3-Next has fewer experts here
(`--experts`), of which as many are active. Writes results/states.json and .md.
"""

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from spsbench.engines.session.recurrent import RecurrentLM, register
from spsbench.engines.session.state_cache import ByRows
from spsbench.hardware.files import in_words

RESULTS = Path(__file__).parent / "results"
SIZES = (1, 2, 4, 8)
PAST = 64  # tokens

LINEAR, FULL = "linear_attention", "full_attention"
SHAPES: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {
    # name -> family, sizes with one layer of each kind, layers of each kind in the whole model
    "qwen3-next-80b-a3b": (
        "qwen3_next",
        {
            "layer_types": [LINEAR, FULL],
            "num_hidden_layers": 2,
            "num_experts_per_tok": 10,
        },  # the rest is the family's default
        {LINEAR: 36, FULL: 12},
    ),
    "lfm2-1.2b": (
        "lfm2",
        {
            "layer_types": ["conv", FULL],
            "num_hidden_layers": 2,
            "vocab_size": 65536,
            "hidden_size": 2048,
            "intermediate_size": 12288,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
        },
        {"conv": 10, FULL: 6},
    ),
    "falcon-h1-1.5b": (
        "falcon_h1",
        {
            "num_hidden_layers": 1,
            "vocab_size": 65537,
            "hidden_size": 2048,
            "intermediate_size": 4096,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "mamba_d_ssm": 3072,
            "mamba_n_heads": 48,
            "mamba_d_head": 64,
            "mamba_d_state": 256,
        },
        {"hybrid": 24},
    ),
}
TINY: dict[str, Any] = {"hidden_size": 64, "vocab_size": 256, "intermediate_size": 64}


def model_of(name: str, experts: int, tiny: bool) -> PreTrainedModel:
    """Return a registered model of random weights with one layer of each kind."""
    family, sizes, _ = SHAPES[name]
    fields = {**sizes, **(TINY if tiny else {})}
    if family == "qwen3_next":
        fields |= {"num_experts": experts}
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **fields)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    register(model.requires_grad_(False))
    return model


class Watch:
    """Seconds of decoder layers by kind, and of the mixers within them, by hooks."""

    def __init__(self, model: PreTrainedModel, kinds: list[str]) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        lists = [x for x in model.modules() if isinstance(x, nn.ModuleList)]
        for layer, kind in zip(lists[0], kinds, strict=True):
            self._time(layer, kind)
            for module in layer.modules():
                if isinstance(module, ByRows):
                    self._time(module, f"mixer of {kind}")

    def _time(self, module: nn.Module, name: str) -> None:
        began: list[float] = []
        module.register_forward_pre_hook(lambda *_: began.append(time.perf_counter()))

        def end(*_: Any) -> None:
            self.seconds[name] += time.perf_counter() - began.pop()

        module.register_forward_hook(end)


@torch.inference_mode()
def measured(name: str, turns: int, experts: int, tiny: bool) -> dict[str, Any]:
    """Return the least seconds of a pass and its parts, by the number of tokens."""
    model, counts = model_of(name, experts, tiny), SHAPES[name][2]
    watch, lm = Watch(model, list(counts)), RecurrentLM(model)
    lm.append(torch.arange(PAST), keep=0)
    least: dict[int, dict[str, float]] = {size: {} for size in SIZES}
    for _ in range(turns):
        for size, parts in least.items():
            watch.seconds.clear()
            began = time.perf_counter()
            lm.append(torch.arange(size), keep=size)
            whole = time.perf_counter() - began
            lm.commit(PAST)
            rest = whole - sum(watch.seconds[kind] for kind in counts)
            for part, seconds in {**watch.seconds, "rest": rest}.items():
                parts[part] = min(seconds, parts.get(part, seconds))
    row = sum(
        counts[kind] * state_bytes(lm, number)
        for number, kind in enumerate(counts)
        if number in lm._cache.stateful
    )
    return {"shape": name, "row_bytes": row, "seconds": least, "whole": scaled(least, counts)}


def state_bytes(lm: RecurrentLM, layer: int) -> int:
    """Return the bytes of a layer's states."""
    states = lm._cache.layers[layer]
    tensors = (*states.conv_states.values(), *states.recurrent_states.values())
    return sum(state.nbytes for state in tensors if state is not None)


def scaled(
    least: dict[int, dict[str, float]], counts: dict[str, int]
) -> dict[int, dict[str, float]]:
    """Return seconds of a pass of the whole model, and of the mixers in it."""
    whole = {}
    for size, parts in least.items():
        mixers = sum(n * parts.get(f"mixer of {kind}", 0.0) for kind, n in counts.items())
        layers = sum(n * parts[kind] for kind, n in counts.items())
        whole[size] = {"pass": parts["rest"] + layers, "mixers": mixers}
    return whole


def table(results: list[dict[str, Any]]) -> str:
    """Return the results in Markdown."""
    sizes = [size for size in SIZES if size > 1]
    heads = ["shape", "states a row", "pass over 1 (ms)", *(f"v({n})" for n in sizes)]
    heads += [f"mixers at {n}" for n in SIZES]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for result in results:
        whole = result["whole"]
        one = whole[1]["pass"]
        cells = [result["shape"], in_words(result["row_bytes"]), f"{1e3 * one:.1f}"]
        cells += [f"{whole[n]['pass'] / one:.2f}" for n in sizes]
        cells += [f"{whole[n]['mixers'] / whole[n]['pass']:.0%}" for n in SIZES]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure the shapes and write the results."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--shapes", nargs="*", default=list(SHAPES), help=", ".join(SHAPES))
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    options.add_argument("--turns", type=int, default=20)
    options.add_argument("--experts", type=int, default=128, help="of a layer, of 512")
    options.add_argument("--tiny", action="store_true", help="small sizes; writes nothing")
    flags = options.parse_args()
    names = [name for name in SHAPES if any(name.startswith(each) for each in flags.shapes)]
    if not names:
        options.error(f"{', '.join(flags.shapes)}: expected {', '.join(SHAPES)}")
    torch.set_num_threads(flags.threads)
    experts = 16 if flags.tiny else flags.experts
    results = [measured(name, flags.turns, experts, flags.tiny) for name in names]
    print(table(results))
    if not flags.tiny:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "states.md").write_text(table(results))
        content = {"threads": flags.threads, "experts": flags.experts, "results": results}
        (RESULTS / "states.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
