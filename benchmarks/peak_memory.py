"""Peak memory of `sps generate` over an interpreter that has imported torch and transformers.

Makes a random Llama pair of a given size in a temporary folder, runs the command in a process of
its own and compares its peak resident memory with the models' sizes.

    .venv/bin/python benchmarks/peak_memory.py

writes results/peak-memory.json.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

OUT = Path(__file__).parents[1] / "results" / "peak-memory.json"
MIB = 2**20
BASELINE = "import torch, transformers; from transformers import AutoModelForCausalLM"


def make_model(folder: Path, layers: int, width: int) -> int:
    """Save a random model in bfloat16 with the bundled tokenizer; returns its parameters."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from spsbench.settings.models import BUNDLED

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(BUNDLED["nano"])
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        max_position_embeddings=4096,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def make_pair(folder: Path, layers: int, width: int) -> None:
    """Save a target and a draft, and how many parameters they have."""
    sizes = (
        make_model(folder / "target", layers, width),
        make_model(folder / "draft", 2, width // 2),
    )
    (folder / "parameters").write_text(str(sum(sizes)))


def peak(command: list[str]) -> int:
    """Peak resident bytes of one process (ru_maxrss is in KiB on Linux)."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise RuntimeError(f"{command} failed with status {status}")
    return usage.ru_maxrss * 1024


def main() -> None:
    """Run and write."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--layers", type=int, default=12)
    options.add_argument("--width", type=int, default=1024)
    options.add_argument("--prompt-words", type=int, default=1500)
    options.add_argument("--make", type=Path, help="only make the pair, in this folder")
    flags = options.parse_args()
    if flags.make:
        make_pair(flags.make, flags.layers, flags.width)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # Apart: a child's peak counts what its parent held when it was forked.
        shape = ["--layers", str(flags.layers), "--width", str(flags.width)]
        subprocess.run([sys.executable, __file__, "--make", name, *shape], check=True)
        numbers = int((folder / "parameters").read_text())
        prompt = folder / "prompt.txt"
        prompt.write_text("word " * flags.prompt_words)
        base = peak([sys.executable, "-c", BASELINE])
        sps = str(Path(sys.executable).with_name("sps"))
        pair = ["--target", f"{folder}/target", "--draft", f"{folder}/draft"]
        whole = peak([sps, "generate", *pair, "--prompt-file", str(prompt), "-n", "64"])
    head = 2 * flags.width  # keys and values
    cache = 4 * head * flags.layers * 2 * flags.prompt_words  # at most two tokens a word
    weights = 4 * numbers
    figures = {
        "interpreter_mib": base / MIB,
        "weights_fp32_mib": weights / MIB,
        "caches_mib_at_most": cache / MIB,
        "peak_mib": whole / MIB,
        "over_mib": (whole - base - weights) / MIB,
    }
    OUT.write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
