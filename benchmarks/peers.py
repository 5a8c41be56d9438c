"""Our engines beside transformers, OpenVINO GenAI and llama.cpp, on one pair, by `sps bench`.

    .venv/bin/python benchmarks/peers.py --pair gpt2-large --dtype bfloat16 \
        --peers-python PEERS/bin/python

makes the pair and its forms for the other engines, runs one `sps bench` over all of them as
decoders, and prints its table and the ratios of ours to each (docs/reference/engines.md).
The draft is the target's first layers; later ones are scaled until tau at K = 4 is 3.5. The peers
have an environment of their own, for `--peers-python` (without it ours and transformers' run):

    python3 -m venv peers-venv && . peers-venv/bin/activate
    pip install "optimum-intel[openvino]" openvino-genai openvino-tokenizers gguf safetensors
    pip uninstall -y torchvision  # where it does not fit torch, optimum-intel fails
    CMAKE_ARGS="-DGGML_NATIVE=ON" pip install --no-binary llama-cpp-python llama-cpp-python
"""

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from corpora import stdlib
from pairs.random_pairs import SHAPES
from spsbench.metrics.rates import speedup
from spsbench.metrics.surfaces import typical
from spsbench.settings.cell import Cell
from spsbench.settings.models import BUNDLED, DEFAULT_DRAFT
from spsbench.settings.records import Record
from spsbench.store.manifest import Manifest
from spsbench.store.records import records

BENCHMARKS = Path(__file__).parent
WORK = Path("~/.cache/spsbench/peers").expanduser()
OURS, PEERS = ("native", "hf"), ("llamacpp", "openvino")
FORMS = {"llamacpp": "gguf", "openvino": "openvino"}


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
        run(sys.executable, "-m", "pairs.random_pairs", str(folder), given, str(layers))
    return Pair(name, folder / "target", folder / "draft", folder, made=True)


def run(*command: str, **variables: str) -> None:
    """Run a command with this folder on the path.

    Raises:
        CalledProcessError: it failed.
    """
    path = os.pathsep.join(filter(None, (str(BENCHMARKS), os.environ.get("PYTHONPATH"))))
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": path, **variables})


def make_prompts(pair: Pair, count: int, length: int) -> list[str]:
    """Random characters for random weights, which have a token each; else held-out functions."""
    if pair.made:
        source = random.Random(length)
        return ["".join(map(chr, source.choices(range(33, 127), k=length))) for _ in range(count)]
    found = [text[: 4 * length] for text in islice(functions(), count)]
    if len(found) < count:
        raise ValueError(f"{len(found)} prompts: expected {count}")
    return found


def write_prompts(path: Path, texts: Sequence[str]) -> None:
    """Write prompts as the task `jsonl` reads them."""
    lines = [json.dumps({"id": str(i), "prompt": text}) for i, text in enumerate(texts)]
    path.write_text("\n".join(lines) + "\n")


def functions() -> Iterator[str]:
    """The first function of each held-out module of the standard library."""
    for module in stdlib.load(pinned=False):
        start = module.text.find("\ndef ") + 1
        if module.split == "heldout" and start:
            yield module.text[start:]


def convert(pair: Pair, name: str, dtype: str, python: str) -> str:
    """The decoder of a peer over both models in its own form."""
    folders = {"target": pair.target, "draft": pair.draft}
    forms = [
        converted(each, pair.work / FORMS[name] / dtype / part, name, dtype, python)
        for part, each in folders.items()
    ]
    return f"{name}:path={forms[0]},draft={forms[1]}"


def converted(folder: Path, out: Path, name: str, dtype: str, python: str) -> Path:
    """A model in the form that a peer reads, made once."""
    if name == "llamacpp":
        out = out.with_suffix(".gguf")
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        unfinished = out.with_name(f"unfinished-{out.name}")
        run(python, "-m", "pairs.exports", FORMS[name], str(folder), str(unfinished), dtype)
        unfinished.rename(out)
    return out


def flags(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options; `words` instead of the command line's."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument(
        "--pair",
        default="gpt2-large",
        help=f"{', '.join(SHAPES)}, nano, a folder with a config.json, or TARGET:DRAFT",
    )
    options.add_argument("--draft-layers", type=int, default=0, help="of a made pair; 0: its own")
    options.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    options.add_argument("--quantised", choices=("int8", "int4"), help="weights of all engines")
    options.add_argument("--k", type=int, default=4)
    options.add_argument("--temperature", type=float, default=0.0)
    options.add_argument("--tokens", type=int, default=48)
    options.add_argument("--prompt-tokens", type=int, default=64)
    options.add_argument("--repeats", type=int, default=5, help="prompts, each under all engines")
    options.add_argument("--engines", nargs="+", default=[], help=f"of {', '.join(OURS + PEERS)}")
    options.add_argument("--threads", type=int, help="for all; default: as each chooses")
    options.add_argument(
        "--peers-python",
        default=os.environ.get("SPS_ENGINES_PYTHON"),
        help="interpreter with openvino-genai and llama-cpp-python ($SPS_ENGINES_PYTHON)",
    )
    options.add_argument("--work", type=Path, default=WORK, help="made and converted models")
    options.add_argument("--out", type=Path, help="folder of the run")
    return options.parse_args(words)


def command(given: argparse.Namespace, pair: Pair, prompts: Path) -> list[str]:
    """The `sps bench` over all engines."""
    python = given.peers_python
    engines = given.engines or [*OURS, *(PEERS if python else ())]
    threads = f",threads={given.threads}" if given.threads else ""
    made = [sys.executable, "-m", "spsbench", "bench", f"jsonl:path={prompts}"]
    for name in engines:
        if name in PEERS and not python:
            raise SystemExit(f"{name}: expected --peers-python, an interpreter that has it")
        peer = name in PEERS and convert(pair, name, given.quantised or given.dtype, python)
        made += ["--decoder", peer + threads if peer else name]
    made += ["--target", str(pair.target), "--draft", str(pair.draft), "--dtype", given.dtype]
    made += ["--weights", given.quantised] if given.quantised else []
    made += ["--threads", str(given.threads)] if given.threads else []
    made += ["-k", str(given.k), "--temperature", str(given.temperature), "-n", str(given.tokens)]
    made += ["--ignore-eos", "--offline", "--out", str(given.out or pair.work / "run")]
    return [*made, "--overwrite", "--format", "md"]


class Times(NamedTuple):
    """Of a text: seconds without its prefill, and until its last token, with it."""

    seconds: float
    tokens: int
    rounds: int
    answer: float = 0.0


Arm = Mapping[tuple[str, int], Times]  # by sample and repeat


def times(made: Record) -> Times:
    """The sums over a record's rounds."""
    seconds, tokens = (
        sum(getattr(each, n) for each in made.rounds) for n in ("seconds", "emitted")
    )
    return Times(seconds, tokens, len(made.rounds), made.prefill_seconds + seconds)


def arms(folder: Path) -> list[tuple[Cell, Arm]]:
    """The times of each cell of a run."""
    cells = Manifest.load(folder).configurations(folder)
    found: dict[str, dict[tuple[str, int], Times]] = {name: {} for name in cells}
    for made in records(folder):
        if made.error is None and made.rounds and "first" not in made.flags:
            found[made.cell][made.sample, made.repeat] = times(made)
    return [(cells[name], arm) for name, arm in found.items()]


def ratio(
    one: Arm, other: Arm, per: str = "tokens", time: str = "seconds"
) -> dict[str, list[float | None]]:
    """Time of `one` over that of `other`, a token or round: median over prompts, and of totals."""
    keys = [key for key in one if key in other]
    ours, theirs = (
        [(getattr(a[key], time), getattr(a[key], per)) for key in keys] for a in (one, other)
    )
    each = np.array([(s / n) / (t / m) for (s, n), (t, m) in zip(ours, theirs, strict=True)])
    return {"median": list(typical(each)), "totals": list(speedup(ours, theirs)[:3])}


def ratios(folder: Path) -> dict[str, dict[str, Any]]:
    """Ours over each other engine of a run: plain token time, and time of a speculative round."""
    found = {(str(cell.decoder.name), bool(cell.k)): arm for cell, arm in arms(folder)}
    return {
        name: {
            "plain": ratio(found["native", False], found[name, False]),
            "pass": ratio(found["native", True], found[name, True], "rounds"),
        }
        for name in dict.fromkeys(name for name, _ in found)
        if name != "native"
    }


def main() -> None:
    """Make what is missing, run, and print the ratios."""
    given = flags()
    pair = find_pair(given.pair, given.draft_layers, given.work.resolve())
    pair.work.mkdir(parents=True, exist_ok=True)
    prompts = pair.work / "prompts.jsonl"
    write_prompts(prompts, make_prompts(pair, given.repeats, given.prompt_tokens))
    peers = {"SPS_ENGINES_PYTHON": given.peers_python} if given.peers_python else {}
    run(*command(given, pair, prompts), **peers)
    print("\nOurs over theirs, median over prompts with its interval: below 1 ours is faster.\n")
    for name, found in ratios(given.out or pair.work / "run").items():
        shown = (
            f"{what} {middle:.2f} ({low:.2f} to {high:.2f})"
            for what, each in found.items()
            for middle, low, high in [each["median"]]
        )
        print(f"- {name}: {', '.join(shown)}")


if __name__ == "__main__":
    main()
