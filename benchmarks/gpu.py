"""The engine for CUDA beside transformers: random weights in real shapes, one device, batch 1.

    .venv/bin/python benchmarks/gpu.py --out benchmarks/results
    .venv/bin/python benchmarks/gpu.py --device cpu --quick     # the same lines over tiny shapes

For each pair, in one process, arms in turn: the device's copy bandwidth, passes of 1 and K + 1
tokens, ArS and SpS of our loop over `static` and over `eager`, transformers' `generate` plain and
assisted with the same K, and how often a round makes the host wait. Random models agree as they
like, so SpS is compared by the round: at equal K a round costs the same whatever is accepted, and
at equal tokens a round the time of a token is in proportion to it.
"""

import argparse
import json
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PreTrainedModel

import spsbench
from gpu_page import page
from spsbench.engines.eager import EagerLM
from spsbench.engines.static import StaticLM, unsupported
from spsbench.loop.decoder import Decoder
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Limits, Round
from spsbench.methods.decoders.hf import HfDecoder
from spsbench.methods.decoders.native import NativeDecoder
from spsbench.methods.drafters.model import ModelDrafter, NoDrafter
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.sps import Sps

IDS: dict[str, Any] = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}


def gpt2(layers: int, width: int, heads: int, vocab: int = 50257) -> GPT2Config:
    return GPT2Config(n_layer=layers, n_embd=width, n_head=heads, vocab_size=vocab, **IDS)


def llama(
    layers: int, width: int, heads: int, shared: int, inner: int, vocab: int, tied: bool = False
) -> LlamaConfig:
    return LlamaConfig(
        num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads,
        num_key_value_heads=shared, intermediate_size=inner, vocab_size=vocab,
        max_position_embeddings=4096, tie_word_embeddings=tied, **IDS,
    )  # fmt: skip


def llama_8b() -> LlamaConfig:
    return llama(32, 4096, 32, 8, 14336, 128256)


def llama_1b() -> LlamaConfig:
    return llama(16, 2048, 32, 8, 8192, 128256, tied=True)


SHAPES = {
    "gpt2-xl / gpt2": lambda: (gpt2(48, 1600, 25), gpt2(12, 768, 12)),
    "llama-1b / llama-100m": lambda: (llama_1b(), llama(4, 512, 8, 4, 2048, 128256, tied=True)),
    "llama-8b / llama-1b": lambda: (llama_8b(), llama_1b()),
}
QUICK = {
    "tiny gpt2": lambda: (gpt2(4, 64, 4, 300), gpt2(2, 32, 4, 300)),
    "tiny llama": lambda: (llama(4, 64, 4, 2, 128, 300), llama(2, 32, 4, 4, 64, 300)),
}


class Bench:
    """What all measurements share."""

    def __init__(self, flags: argparse.Namespace) -> None:
        self.flags, self.device = flags, torch.device(flags.device)
        self.dtype = getattr(torch, flags.dtype)
        self.prompt = [(7 * i) % 251 for i in range(flags.prompt)]

    def wait(self) -> None:
        """For all that is queued."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, act: Callable[[], object], times: int) -> float:
        """Of one `act`: many are queued, and the queue is waited for once."""
        self.wait()
        began = time.perf_counter()
        for _ in range(times):
            act()
        self.wait()
        return (time.perf_counter() - began) / times

    def bandwidth(self) -> float:
        """Bytes a second of a copy, reads and writes counted: the best of several."""
        size = 1 << (22 if self.flags.quick else 31)
        a = torch.zeros(size, dtype=torch.uint8, device=self.device)
        b = torch.empty_like(a)
        return 2 * size / min(self.seconds(lambda: b.copy_(a), 5) for _ in range(5))

    def model(self, config: Any) -> PreTrainedModel:
        """Random weights in the shape of `config`, made on the device."""
        torch.manual_seed(0)
        with self.device:
            made = AutoModelForCausalLM.from_config(config, dtype=self.dtype)
        return made.requires_grad_(False).eval()

    def step(self, lm: EagerLM, m: int) -> float:
        """Seconds of a pass of `m` tokens after the prompt, with what brings the cache back."""
        tokens = torch.arange(m, device=self.device)
        length = len(self.prompt)

        def act() -> None:
            lm.append(tokens, keep=m)
            lm.commit(length)

        lm.commit(0)
        lm.append(torch.tensor(self.prompt), keep=0)
        self.seconds(act, 3)
        return self.seconds(act, self.flags.steps)

    def rounds(self, decoder: Decoder, seed: int) -> list[Round]:
        """One generation, without its first round: there transformers has the prefill."""
        made = decoder(
            self.prompt,
            limits=Limits(self.flags.tokens),
            warp=Warp(),
            noise=PhiloxStream(seed),
            stop=lambda tokens: False,
        )
        return list(made)[1:-1]

    def waits(self, decoder: Decoder) -> float | None:
        """Times a round makes the host wait, as PyTorch's debug mode tells; None off CUDA.

        Ours without the prefill and the first round; transformers' with them, for its rounds
        cannot be told apart while it runs.
        """
        if self.device.type != "cuda":
            return None
        made = decoder(
            self.prompt,
            limits=Limits(self.flags.tokens),
            warp=Warp(),
            noise=PhiloxStream(0),
            stop=lambda tokens: False,
        )
        if getattr(decoder, "live", True):
            next(made)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                rest = list(made)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        seen = sum("called a synchronizing" in str(one.message) for one in caught)
        return seen / len(rest)


def weight_bytes(model: PreTrainedModel) -> int:
    """Bytes that one token reads: all weights, of the look-up tables a row at most."""
    head, table = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    looked_up = {id(table)} - {id(head)}
    looked_up |= {id(w) for name, w in model.named_parameters() if name.endswith("wpe.weight")}
    read = {id(w): w for w in model.parameters() if id(w) not in looked_up}
    return sum(w.numel() * w.element_size() for w in read.values())


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def opened(model: PreTrainedModel) -> EagerLM:
    """A session as of the engine `static`."""
    return StaticLM(model) if unsupported(model) is None else EagerLM(model)


def arms(target: PreTrainedModel, draft: PreTrainedModel, k: int) -> dict[str, Decoder]:
    made: dict[str, Decoder] = {
        "ArS transformers": HfDecoder(target, None, 0),
        "SpS transformers": HfDecoder(target, draft, k),
    }
    for name, kind in (("eager", EagerLM), ("static", opened)):
        plain = NativeDecoder(kind(target), NoDrafter(), Sps(), Constant(0))
        made[f"ArS {name}"] = plain
        drafter = ModelDrafter(kind(draft))
        made[f"SpS {name}"] = NativeDecoder(kind(target), drafter, Sps(), Constant(k))
    return made


def measure(bench: Bench, pair: tuple[Any, Any]) -> dict[str, Any]:
    """All figures of a pair; times in milliseconds."""
    k, repeats = bench.flags.k, bench.flags.repeats
    target, draft = (bench.model(config) for config in pair)
    limit = weight_bytes(target) / bench.bandwidth()

    sessions = {"target": opened(target), "draft": opened(draft)}
    reasons = {"target": unsupported(target), "draft": unsupported(draft)}
    wanted = [("target", 1), ("target", k + 1), ("draft", 1), ("draft", 2)]
    steps: dict[tuple[str, int], list[float]] = {what: [] for what in wanted}
    for _ in range(repeats):
        for name, m in wanted:
            steps[name, m].append(1e3 * bench.step(sessions[name], m))
    del sessions

    decoders = arms(target, draft, k)
    for decoder in decoders.values():  # first calls, and compilation
        for seed in range(2):
            bench.rounds(decoder, seed)
    spent: dict[str, list[float]] = {name: [] for name in decoders}
    emitted: dict[str, list[int]] = {name: [] for name in decoders}
    for seed in range(repeats):
        for name, decoder in decoders.items():
            made = bench.rounds(decoder, seed)
            spent[name].append(1e3 * sum(turn.seconds for turn in made) / len(made))
            emitted[name] += [len(turn.tokens) for turn in made]
    per_round = {name: statistics.median(times) for name, times in spent.items()}
    return {
        "reasons": reasons,
        "weight_bytes": weight_bytes(target),
        "limit_ms": 1e3 * limit,
        "steps_ms": {f"{name}({m})": spread(times) for (name, m), times in steps.items()},
        "round_ms": {name: spread(times) for name, times in spent.items()},
        "tokens_a_round": {name: statistics.mean(n) for name, n in emitted.items()},
        "waits_a_round": {name: bench.waits(decoder) for name, decoder in decoders.items()},
        "ars_share_of_limit": 1e3 * limit / per_round["ArS static"],
        f"v({k})": statistics.median(
            many / one for one, many in zip(steps["target", 1], steps["target", k + 1], strict=True)
        ),
        "transformers_over_ours_at_equal_tau": per_round["SpS transformers"]
        / per_round["SpS static"],
        "peak_bytes": torch.cuda.max_memory_allocated() if bench.device.type == "cuda" else None,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print and write."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--device", default="cuda")
    options.add_argument("--dtype", default="bfloat16")
    options.add_argument("--quick", action="store_true", help="tiny shapes: does it run?")
    options.add_argument("--k", type=int, default=4)
    options.add_argument("--prompt", type=int, default=64)
    options.add_argument("--tokens", type=int, default=128)
    options.add_argument("--steps", type=int, default=50)
    options.add_argument("--repeats", type=int, default=7)
    options.add_argument("--out", type=Path, help="folder: gpu.json and gpu.md")
    flags = options.parse_args(arguments)
    bench = Bench(flags)
    cuda = bench.device.type == "cuda"
    results: dict[str, Any] = {
        "command": sys.argv,
        "device": torch.cuda.get_device_name(bench.device) if cuda else platform.processor(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "spsbench": spsbench.__version__,
        "copy_bytes_per_second": bench.bandwidth(),
        "dtype": flags.dtype,
        "k": flags.k,
        "pairs": {},
    }
    for name, shape in (QUICK if flags.quick else SHAPES).items():
        results["pairs"][name] = measure(bench, shape())
        if cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    text = json.dumps(results, indent=1)
    print(text)
    if flags.out:
        (flags.out / "gpu.json").write_text(text + "\n")
        (flags.out / "gpu.md").write_text(page(results))


if __name__ == "__main__":
    main()
