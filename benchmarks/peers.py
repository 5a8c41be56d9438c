"""Our engines beside transformers, OpenVINO GenAI and llama.cpp, on one pair, in one run.

    .venv/bin/python benchmarks/peers.py --pair gpt2-large --dtype bfloat16 \
        --peers-python PEERS/bin/python

writes benchmarks/results/peers-PAIR-DTYPE.json and .md. Every engine runs in a process of its own,
one at a time; docs/peers.md tells what is measured, how, and how the peers are installed.
"""

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from arena.contenders.contender import Setting
from arena.pairs import SHAPES
from arena.process import environment
from arena.prompts import code_prompts, random_prompts
from arena.report import record, write
from arena.roster import QUANTISED, roster
from arena.turns import Arena
from spsbench.hardware.environment import cpu_name, package_version, usable_cores
from spsbench.models.weights import BYTES, weight_bytes
from spsbench.registry import entries
from spsbench.settings.models import BUNDLED, DEFAULT_DRAFT

BENCHMARKS = Path(__file__).parent
WORK = Path("~/.cache/spsbench/peers").expanduser()
QUICK_TOKENS, QUICK_REPEATS = 16, 2
PACKAGES = ("torch", "transformers", "spsbench")


@dataclass(frozen=True)
class Pair:
    """Two folders in transformers' format."""

    name: str
    target: Path
    draft: Path
    work: Path  # where its converted forms are kept
    made: bool  # random weights, made here


def find_pair(given: str, layers: int, work: Path) -> Pair:
    """A bundled pair, TARGET:DRAFT folders, a named shape or a config.json; made if need be."""
    if given in DEFAULT_DRAFT:
        draft = BUNDLED[DEFAULT_DRAFT[given]]
        return Pair(given, BUNDLED[given], draft, work / given, made=False)
    if ":" in given:
        target, draft = (Path(part).resolve() for part in given.split(":", 1))
        name = f"{target.name}-{draft.name}"
        return Pair(name, target, draft, work / name, made=False)
    name, path = given, Path(given).resolve()
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        given, name = str(path), path.parent.name
    folder = work / (name if layers == 0 else f"{name}-{layers}")
    if not (folder / "pair.json").exists():
        subprocess.run(
            [sys.executable, "-m", "arena.pairs", str(folder), given, str(layers)],
            check=True,
            env=environment(os.environ),
        )
    return Pair(name, folder / "target", folder / "draft", folder, made=True)


def make_prompts(pair: Pair, count: int, length: int) -> list[list[int]]:
    """One to warm up, then one for each repeat."""
    if not pair.made:
        return code_prompts(pair.target, count, length)
    config = json.loads((pair.target / "config.json").read_text())
    return random_prompts(config["vocab_size"], count, length)


def flags() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument(
        "--pair",
        default="gpt2-large",
        help=f"{', '.join(SHAPES)}, nano, a folder with a config.json, or TARGET:DRAFT",
    )
    options.add_argument("--draft-layers", type=int, default=0, help="of a made pair; 0: its own")
    options.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    options.add_argument("--k", type=int, default=4)
    options.add_argument("--temperature", type=float, default=0.0)
    options.add_argument("--tokens", type=int, default=48)
    options.add_argument("--prompt-tokens", type=int, default=64)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--quick", action="store_true", help="few tokens, few repeats")
    options.add_argument("--engines", nargs="+", default=[], help="default: all there are")
    options.add_argument(
        "--quantised",
        nargs="+",
        default=[],
        choices=QUANTISED,
        help="beside them these: ours, and the peers' of as many bits",
    )
    options.add_argument("--threads", type=int, help="for all; default: each one's fastest")
    options.add_argument("--compile", action="store_true", help="transformers' compiled variant")
    options.add_argument(
        "--peers-python",
        default=os.environ.get("SPSBENCH_PEERS_PYTHON"),
        help="interpreter with openvino-genai and llama-cpp-python ($SPSBENCH_PEERS_PYTHON)",
    )
    options.add_argument("--work", type=Path, default=WORK, help="made and converted models")
    options.add_argument("--out", type=Path, default=BENCHMARKS / "results")
    return options.parse_args()


def main() -> None:
    """Run and write."""
    given = flags()
    tokens, repeats = given.tokens, given.repeats
    if given.quick:
        tokens, repeats = min(tokens, QUICK_TOKENS), min(repeats, QUICK_REPEATS)
    engines = roster(given.engines, given.peers_python, given.quantised)
    pair = find_pair(given.pair, given.draft_layers, given.work.resolve())
    setting = Setting(
        target=str(pair.target),
        draft=str(pair.draft),
        dtype=given.dtype,
        k=given.k,
        temperature=given.temperature,
        threads=given.threads,
        cores=usable_cores(),
        context=given.prompt_tokens + max(tokens, 4 * (given.k + 1)) + 2 * (given.k + 1),
        compiled=given.compile,
        work=str(pair.work),
    )
    target, draft = (weight_bytes(folder, given.dtype) for folder in (pair.target, pair.draft))
    size = {"bytes": target, "weights": target + draft}
    arena = Arena(engines, setting, pair.work / "logs", size["weights"])
    prompts = make_prompts(pair, repeats + 1, given.prompt_tokens)
    run = arena.measure(prompts, tokens)
    acceptance = json.loads((pair.work / "pair.json").read_text()) if pair.made else {}
    about = {
        "command": shlex.join(["python", "benchmarks/peers.py", *sys.argv[1:]]),
        "cpu": cpu_name(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: package_version(name) for name in PACKAGES},
        "prompts": repeats,
        "prompt_tokens": given.prompt_tokens,
        "tokens": tokens,
        "itemsize": BYTES[given.dtype],
        "ours": [entry.name for entry in entries("engines")],
    }
    described = {"name": pair.name, **size, **acceptance}
    made = record(run, setting, described, about)
    path = write(made, given.out, f"peers-{pair.name}-{given.dtype}")
    print(path.read_text())


if __name__ == "__main__":
    main()
