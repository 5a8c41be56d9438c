"""Our engine, transformers, OpenVINO GenAI and llama.cpp on one pair, by one `sps bench`.

    .venv/bin/python benchmarks/peers.py --pair gpt2-large --dtype bfloat16 \
        --peers-python PEERS/bin/python

makes the pair and its forms for the other engines, and runs them as decoders. Results are kept by
processor in results/peers.json and peers.md; `native over it` is the ratio of our time to theirs on
the same prompt, of a plain token and of a speculative round. A peer that ends in a trial of four
tokens is a row that says so. The draft is the target's first layers; later ones are scaled until
tau at K = 4 is 3.5. The peers have an environment of their own, for `--peers-python` (without it
ours and transformers' run):

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
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from corpora import stdlib
from pairs.random_pairs import SHAPES
from spsbench.settings.models import BUNDLED, DEFAULT_DRAFT
from spsbench.store.manifest import Manifest
from spsbench.store.records import records
from timing import RESULTS, keep, milliseconds, ratio

BENCHMARKS = Path(__file__).parent
WORK = Path("~/.cache/spsbench/peers").expanduser()
OURS, PEERS = ("native", "hf"), ("llamacpp", "openvino")
FORMS = {"llamacpp": "gguf", "openvino": "openvino"}
TRIAL_TOKENS = 4


@dataclass(frozen=True)
class Pair:
    """Two folders in transformers' format."""

    name: str
    target: Path
    draft: Path
    work: Path  # where its converted forms are kept
    random: bool  # its weights


def find_pair(text: str, layers: int, work: Path) -> Pair:
    """Return a bundled pair, TARGET:DRAFT folders, or one of a named shape or a config.json.

    The last two are made if need be, with a draft of `layers` layers (0: the shape's own number).
    """
    if text in DEFAULT_DRAFT:
        draft = BUNDLED[DEFAULT_DRAFT[text]]
        return Pair(text, BUNDLED[text], draft, work / text, random=False)
    if ":" in text:
        target, draft = (Path(part).resolve() for part in text.split(":", 1))
        name = f"{target.name}-{draft.name}"
        return Pair(name, target, draft, work / name, random=False)
    shape, name, path = text, text, Path(text).resolve()
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        shape, name = str(path), path.parent.name
    folder = work / (name if layers == 0 else f"{name}-{layers}")
    if not (folder / "pair.json").exists():
        run(sys.executable, "-m", "pairs.random_pairs", str(folder), shape, str(layers))
    return Pair(name, folder / "target", folder / "draft", folder, random=True)


def run(*command: str, **variables: str) -> None:
    """Run a command with this folder on the path.

    Raises:
        CalledProcessError: it failed.
    """
    path = os.pathsep.join(filter(None, (str(BENCHMARKS), os.environ.get("PYTHONPATH"))))
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": path, **variables})


def make_prompts(pair: Pair, count: int, length: int) -> list[str]:
    """Return random characters for random weights, a token each, else held-out functions.

    Raises:
        ValueError: there are fewer functions than `count`.
    """
    if pair.random:
        source = random.Random(length)
        return ["".join(map(chr, source.choices(range(33, 127), k=length))) for _ in range(count)]
    prompts = [text[: 4 * length] for text in islice(functions(), count)]
    if len(prompts) < count:
        raise ValueError(f"{len(prompts)} prompts: expected {count}")
    return prompts


def write_prompts(path: Path, texts: Sequence[str]) -> None:
    """Write prompts as the task `jsonl` reads them."""
    lines = [json.dumps({"id": str(i), "prompt": text}) for i, text in enumerate(texts)]
    path.write_text("\n".join(lines) + "\n")


def functions() -> Iterator[str]:
    """Yield each held-out module of the standard library from its first function on."""
    for module in stdlib.load(pinned=False):
        start = module.text.find("\ndef ") + 1
        if module.split == "heldout" and start:
            yield module.text[start:]


def decoder_of(pair: Pair, engine: str, dtype: str, python: str) -> str:
    """Return a peer's decoder over both models in its own form."""
    out = pair.work / FORMS[engine] / dtype
    target = converted(pair.target, out / "target", engine, dtype, python)
    draft = converted(pair.draft, out / "draft", engine, dtype, python)
    return f"{engine}:path={target},draft={draft}"


def converted(folder: Path, out: Path, engine: str, dtype: str, python: str) -> Path:
    """Return a model in the form that a peer reads, made once."""
    if engine == "llamacpp":
        out = out.with_suffix(".gguf")
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        unfinished = out.with_name(f"unfinished-{out.name}")
        run(python, "-m", "pairs.exports", FORMS[engine], str(folder), str(unfinished), dtype)
        unfinished.rename(out)
    return out


def parse_flags() -> argparse.Namespace:
    """Read the command line."""
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
    return options.parse_args()


def usable_decoders(
    flags: argparse.Namespace, pair: Pair, failures: dict[str, str]
) -> Iterator[str]:
    """Yield the decoder of each engine that writes a few tokens; note why another does not.

    A peer may end its process, as llama.cpp did on a file of its own: the others are compared.
    """
    python = flags.peers_python
    threads = f",threads={flags.threads}" if flags.threads else ""
    prompts, out = pair.work / "trial.jsonl", pair.work / "trial"
    write_prompts(prompts, make_prompts(pair, 1, flags.prompt_tokens))
    trial = argparse.Namespace(**vars(flags) | {"tokens": TRIAL_TOKENS})
    for engine in flags.engines or [*OURS, *(PEERS if python else ())]:
        if engine not in PEERS:
            yield engine
            continue
        if not python:
            raise SystemExit(f"{engine}: expected --peers-python, an interpreter that has it")
        try:
            decoder = decoder_of(pair, engine, flags.quantised or flags.dtype, python) + threads
            run(*command(trial, pair, [OURS[0], decoder], prompts, out), SPS_ENGINES_PYTHON=python)
            yield decoder
        except subprocess.CalledProcessError as error:
            failures[engine] = f"ended with exit code {error.returncode}"


def command(
    flags: argparse.Namespace, pair: Pair, decoders: Iterable[str], prompts: Path, out: Path
) -> list[str]:
    """Return the `sps bench` over decoders."""
    words = [sys.executable, "-m", "spsbench", "bench", f"jsonl:path={prompts}"]
    for decoder in decoders:
        words += ["--decoder", decoder]
    words += ["--target", str(pair.target), "--draft", str(pair.draft), "--dtype", flags.dtype]
    words += ["--weights", flags.quantised] if flags.quantised else []
    words += ["--threads", str(flags.threads)] if flags.threads else []
    words += ["-k", str(flags.k), "--temperature", str(flags.temperature), "-n", str(flags.tokens)]
    return [*words, "--ignore-eos", "--offline", "--out", str(out), "--overwrite", "--format", "md"]


class Times(NamedTuple):
    """Of a text, without its prefill."""

    seconds: float
    tokens: int
    rounds: int


def times_of(folder: Path) -> dict[tuple[str, bool], dict[tuple[str, int], Times]]:
    """Return the times of a run by decoder and whether it drafts, then by prompt and repeat."""
    cells = Manifest.load(folder).configurations(folder)
    times: dict[tuple[str, bool], dict[tuple[str, int], Times]] = defaultdict(dict)
    for record in records(folder):
        if record.error is None and record.rounds and "first" not in record.flags:
            cell, rounds = cells[record.cell], record.rounds
            seconds, tokens = sum(r.seconds for r in rounds), sum(r.emitted for r in rounds)
            key = record.sample, record.repeat
            times[cell.decoder.name, bool(cell.k)][key] = Times(seconds, tokens, len(rounds))
    return times


def compare(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row of results for each engine of a run."""
    times = times_of(folder)
    for engine in dict.fromkeys(name for name, _ in times):
        row: dict[str, Any] = {"engine": engine}
        for drafts, method, unit in ((False, "plain", "tokens"), (True, "speculative", "rounds")):
            ours, theirs = times["native", drafts], times[engine, drafts]
            row[f"{method}, ms a token"] = milliseconds(
                [t.seconds / t.tokens for t in theirs.values()]
            )
            seconds = (
                [texts[key].seconds / getattr(texts[key], unit) for key in theirs if key in ours]
                for texts in (ours, theirs)
            )
            row[f"native over it, {method}"] = ratio(*seconds)
        yield row


def main() -> None:
    """Make what is missing, run, and keep the results."""
    flags = parse_flags()
    pair = find_pair(flags.pair, flags.draft_layers, flags.work.resolve())
    pair.work.mkdir(parents=True, exist_ok=True)
    prompts, out = pair.work / "prompts.jsonl", flags.out or pair.work / "run"
    write_prompts(prompts, make_prompts(pair, flags.repeats, flags.prompt_tokens))
    peers = {"SPS_ENGINES_PYTHON": flags.peers_python} if flags.peers_python else {}
    failures: dict[str, str] = {}
    run(*command(flags, pair, list(usable_decoders(flags, pair, failures)), prompts, out), **peers)
    rows = [
        *compare(out),
        *({"engine": e, "plain, ms a token": why} for e, why in failures.items()),
    ]
    keep(RESULTS / "peers", f"{pair.name}, {flags.quantised or flags.dtype}", rows)


if __name__ == "__main__":
    main()
