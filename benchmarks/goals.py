"""The goals of speculation on real models, and how far this processor is from each.

    .venv/bin/python benchmarks/goals.py                       # the table of what is recorded
    .venv/bin/python benchmarks/goals.py --measure --peers-python PEERS/bin/python   # 45 minutes
    .venv/bin/python benchmarks/goals.py --measure nano codes  # these, anew

A measurement is a command of another benchmark, whose arms take turns. They run one at a time on a
machine that should do nothing else; figures are kept in results/goals.json under the processor's
name, family, model and instructions as soon as one ends, so that --measure goes on where it was
stopped. Writes results/goals.md.

Ratios of times are medians over prompts, with the order statistics of their 95 % interval; beside
them ratios of totals, as the tables of runs have them, where long texts weigh more. Tau is of all
rounds; v(4) is a median over turns with its quartiles; passes of eight texts are least times.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import peers
from pairs.random_pairs import WIDTHS
from spsbench.hardware.environment import cpu_kind, usable_cores
from spsbench.metrics.intervals import Jackknife, over
from spsbench.registry import entries
from spsbench.settings.models import BUNDLED
from spsbench.store.atomic import replace_file
from spsbench.store.manifest import Manifest

HERE = Path(__file__).parent
KEPT = HERE / "results" / "goals.json"
TABLE1 = HERE.parent / "results" / "table1-smollm2"
SPS = (sys.executable, "-m", "spsbench")
Figure = dict[str, Any]  # "median" and perhaps "totals": [value, low, high]; "note": what it is of
NARROW = "AVX2"  # the end of a processor's name here
FASTEST = ("llamacpp", "openvino")  # peers
LIMITED = "ONEDNN_MAX_CPU_ISA" in os.environ  # OpenVINO's models in bfloat16 do not run then
BEST, HEAD, SELF = "best", "smollm2-eagle3", "self:int4"
PEERS = "--peers-python, an interpreter with the other engines"
MISSING = {"articles": "--articles FILE, articles with id, document and summary a line"}


class Goal(NamedTuple):
    """A figure of a measurement, and its bound: at most or at least."""

    words: str
    bound: float
    measurement: str
    figure: str
    least: bool = False  # the bound is the least
    narrow: float | None = None  # the bound where the widest instructions are AVX2


GOALS = (
    Goal("bundled pair, code, K = 4, T = 1: speed-up", 1.5, "nano", "stdlib", True),
    Goal("bundled pair, news, K = 4, T = 1: speed-up", 2.2, "nano", "news", True),
    Goal("a token of `nano-draft` over the time of its weights", 1.5, "draft-token", "token"),
    Goal("nano, plain token beside llama.cpp", 1.0, "peers-nano", "plain", narrow=0.9),
    Goal("nano, SpS by pass beside the better of two", 0.9, "peers-nano", "pass", narrow=0.8),
    Goal(
        "SmolLM2, bfloat16, plain token beside llama.cpp",
        1.0,
        "peers-smollm2",
        "plain",
        narrow=0.85,
    ),
    Goal(f"SmolLM2, a round of `{HEAD}`, K = 3, in plain passes", 1.35, "methods", "round"),
    Goal("SmolLM2, its tau, HumanEval, greedy", 2.1, "methods", "tau humaneval", True),
    Goal("SmolLM2, its tau, articles, greedy", 1.8, "methods", "tau xsum", True),
    Goal(
        "SmolLM2, best method, HumanEval, greedy",
        1.8,
        "methods",
        "best humaneval 0",
        True,
        narrow=2.0,
    ),
    Goal("SmolLM2, best method, articles, greedy", 1.5, "methods", "best xsum 0", True),
    Goal("SmolLM2, best method, HumanEval, T 0.8", 2.0, "methods", "best humaneval 0.8", True),
    Goal("SmolLM2, best method, articles, T 0.8", 1.3, "methods", "best xsum 0.8", True),
    Goal("SmolLM2, Table 1, articles, greedy", 1.3, "table1", "best xsum 0", True),
    Goal("SmolLM2, Table 1, HumanEval, greedy", 1.3, "table1", "best humaneval 0", True),
    Goal("SmolLM2, Table 1, articles, sampled", 1.1, "table1", "best xsum 1", True),
    Goal("SmolLM2, Table 1, HumanEval, sampled", 1.1, "table1", "best humaneval 0.8", True),
    Goal("SmolLM2, real articles, token, greedy", 1.5, "articles", "best xsum 0", True),
    Goal("SmolLM2, real articles, token, top-p 0.8", 1.2, "articles", "best xsum 1", True),
    Goal("SmolLM2, real articles, whole answer, greedy", 1.35, "articles", "answer xsum 0", True),
    Goal("SmolLM2, first token after 64, beside the better", 1.0, "prefill", "64", narrow=1.1),
    Goal("SmolLM2, first token after 512, beside the better", 1.0, "prefill", "512", narrow=1.1),
    Goal("SmolLM2, `self:int4`, HumanEval, greedy", 1.4, "methods", "self humaneval 0", True),
    Goal("a product of SmolLM2's, bfloat16, one row over the read", 1.15, "rows", "one row"),
    Goal("SmolLM2's shape, v(4), bfloat16", 1.25, "codes", "smollm2-135m bfloat16"),
    Goal("SmolLM2's shape, v(4), int8", 1.25, "codes", "smollm2-135m int8"),
    Goal("SmolLM2's shape, v(4), int4", 1.25, "codes", "smollm2-135m int4", narrow=1.5),
    Goal("gpt2-large, v(4), bfloat16", 1.2, "codes", "gpt2-large bfloat16"),
    Goal("gpt2-large, v(4), int8", 1.25, "codes", "gpt2-large int8"),
    Goal("gpt2-large, v(4), int4", 1.25, "codes", "gpt2-large int4", narrow=1.5),
    Goal("SmolLM2's shape, int8, plain token beside Q8_0", 1.0, "peers-int8", "plain", narrow=0.8),
    Goal("SmolLM2's shape, int4, plain token beside Q4_0", 1.0, "peers-int4", "plain", narrow=0.85),
    Goal("SmolLM2's shape, int8, SpS by pass beside Q8_0", 0.7, "peers-int8", "pass", narrow=0.5),
    Goal("SmolLM2's shape, int4, SpS by pass beside Q4_0", 0.8, "peers-int4", "pass", narrow=0.7),
    Goal("gpt2-large, bfloat16, SpS by pass beside the better", 0.85, "peers-gpt2-large", "pass"),
    Goal("SmolLM2, a pass of 8 texts in plain passes", 1.5, "batches", "pass"),
    Goal("SmolLM2, batch 8, harness a text and pass, ms", 0.1, "batches", "harness"),
    Goal("SmolLM2, batch 8, `suffix` over transformers", 1.0, "batches", "transformers", True),
    Goal("SmolLM2, batch 8, `suffix` over llama.cpp", 1.0, "batches", "llama.cpp", True),
)


WHY = {  # a measurement and figures that begin so -> what bounds them
    "nano ": (
        "the weights of `nano` lie in caches and its products are of float32: a pass of five rows "
        "takes 1.8 to 2.1 passes of one on an AMD EPYC, and tau / 1.8 is what a free draft would "
        "gain; a target of 18 M parameters (36 MB, the bound) takes 2.3 (docs/dead-ends.md). In "
        "bfloat16 it takes 1.5, and the pair gains 1.17 (code) and 1.13 (news) times as much "
        "(`nano_speedup.py --dtype bfloat16`). The EPYC's best run had 1.36 and 2.02: at times the "
        "two processors of that virtual machine multiply no faster than one, for seconds or "
        "minutes; then a pass of five rows takes 1.75 ms in place of 1.16, one of one row 0.8 in "
        "place of 0.62."
    ),
    "draft-token": (
        "half of its 0.08 ms are products, at the speed of caches; the rest are 30 small "
        "operations, a microsecond or less each."
    ),
    "peers-nano pass": "as for the pair's speed-up; a token alone is faster than llama.cpp's.",
    "peers-smollm2": "both read 270 MB a token at the speed of memory.",
    "methods tau": (
        "the head learned from 7.5 million tokens where published ones learn from hundreds of "
        "millions; two million of them took alpha from 0.437 to 0.453."
    ),
    "methods round": (
        "three passes of a head, and laws of 8,192 tokens, beside a target of 270 MB; a processor "
        "whose memory is faster needs less time for the latter."
    ),
    "methods self": (
        "a drafted token reads the weights in 4 bits, 0.4 of a plain pass, and the round scores "
        "what it drafted."
    ),
    "methods best": (
        "tokens a round, over what a pass of five rows takes: at temperature 0.8 the text repeats "
        "less, and the head keeps 0.4 of its tokens."
    ),
    "table1 best": "as for the best methods.",
    "articles": (
        "the head keeps a quarter of its tokens on real articles, where summaries copy little, "
        "and a prompt of 440 tokens takes a third of an answer's time."
    ),
    "prefill": (
        "the newest token of a prompt is read in a pass of its own, 8 ms, so that its logits have "
        "the bits of later rounds."
    ),
    "codes": (
        "five rows are bound by multiplication: AVX2 multiplies 8 floats or 16 numbers of 8 bits "
        "an instruction, and 0.6 to 0.7 of its peak is reached beside the loads. Codes of 4 bits "
        "are unpacked and scaled for each row, which takes as long as codes of 8 bits, where one "
        "row takes half as long. Attention of five rows adds 0.3 to 0.9 ms."
    ),
    "peers-gpt2-large": "both read 1.5 GB a pass at the speed of memory.",
    "batches pass": (
        "products of eight rows alone take 1.4 passes without a matrix unit, attention reads "
        "eight caches."
    ),
}


class Measurement(NamedTuple):
    """A command, and how its output is read."""

    command: list[str]
    minutes: float  # on two cores
    out: Path  # what the command writes, or its standard output
    read: Callable[[Path], dict[str, Figure]]


def of_nano(out: Path) -> dict[str, Figure]:
    """Speed-ups of the bundled pair."""
    return {row["prompts"]: row["by_prompt"] for row in json.loads(out.read_text())["results"]}


def of_draft_token(out: Path) -> dict[str, Figure]:
    """A drafted token over the least time for its weights."""
    shapes = json.loads(out.read_text())["shapes"]
    row = next(each for each in shapes if each["model"] == "nano-draft")
    ends = (row[f"token_seconds{end}"] for end in ("", ".low", ".high"))
    return {"token": {"median": [each / row["memory_seconds"] for each in ends]}}


def of_peers(out: Path) -> dict[str, Figure]:
    """Ours beside llama.cpp, and beside the better of the peers."""
    found = peers.ratios(out)
    better = max(found, key=lambda name: found[name]["pass"]["median"][0])
    plain = found["llamacpp"]["plain"]
    return {"plain": plain, "pass": {**found[better]["pass"], "note": better}}


def of_codes(out: Path) -> dict[str, Figure]:
    """Five rows in passes of one."""
    found = {}
    for row in json.loads((out / "codes.json").read_text()):
        found[f"{row['shape']} {row['weights']}"] = {"median": [row["v(4)"], *row["quartiles"]]}
    return found


def of_rows(out: Path) -> dict[str, Figure]:
    """What memory and multipliers allow five rows, in rows; one row over the read beside it."""
    (record,) = json.loads((out / "rows.json").read_text()).values()
    figures: dict[str, Figure] = {}
    for row in record["rows"]:
        shape = WIDTHS[row["inputs"]]
        if row["rows"] == 5:
            figures[f"{shape} {row['weights']}"] = {
                "median": [row["roofline over one"], None, None]
            }
        elif (shape, row["weights"], row["rows"]) == ("smollm2-135m", "bfloat16", 1):
            figures["one row"] = {"median": [row["read"] / row["GB/s"], None, None]}
    return figures


def of_prefill(out: Path) -> dict[str, Figure]:
    """Time to the first token beside the better peer's."""
    ((record,),) = (each.values() for each in json.loads(out.read_text()).values())
    figures: dict[str, Figure] = {}
    for row in record["rows"]:
        better = max(row["ratio"], key=lambda name: row["ratio"][name][0])
        figures[str(row["tokens"])] = {"median": row["ratio"][better], "note": better}
    return figures


def of_batches(out: Path) -> dict[str, Figure]:
    """A pass of eight texts, and `suffix` over other engines."""
    found = json.loads(out.read_text())
    row = next(each for each in found["passes"] if (each["batch"], each["rows"]) == (8, 1))
    least = {"pass": row["plain_passes"], "harness": row["harness_ms_per_text"]}
    figures: dict[str, Figure] = {name: {"median": [it, None, None]} for name, it in least.items()}
    for each in found["texts"]:
        note = f"{each['as_plain']} of {each['texts']} texts as ours"
        figures[each["way"]] = {"median": each["sps_over_it"], "note": note}
    return figures


def of_run(out: Path) -> dict[str, Figure]:
    """Speed-ups of a run over SmolLM2 by task and temperature, with rounds and tau of its head."""
    exact = {each.name for each in entries("verifiers") if each.guarantee == "exact"}
    every = peers.arms(out)
    figures: dict[str, Figure] = {}
    for cell, arm in every:
        if cell.k == 0 or str(cell.method.verifier.name) not in exact:
            continue
        plain = next(other for base, other in every if base.k == 0 and base.same_work(cell))
        place = f"{cell.work.task.name} {cell.sampling.temperature:g}"
        draft, drafter = cell.models.draft, str(cell.method.drafter)
        own = draft is not None and draft.id == cell.models.target.id
        name = SELF if own else drafter
        how = cell.method.schedule if cell.k is None else f"K = {cell.k}"
        note = {"note": f"{name}, {how}"}
        gains = {BEST: peers.ratio(plain, arm), "answer": peers.ratio(plain, arm, time="answer")}
        for kind, gained in {**gains, **({"self": gains[BEST]} if own else {})}.items():
            before = figures.get(f"{kind} {place}")
            if before is None or before["median"][0] < gained["median"][0]:
                figures[f"{kind} {place}"] = {**gained, **note}
        if drafter == "eagle3" and not cell.sampling.temperature:
            sums = np.array([[each.tokens, each.rounds] for each in arm.values()], dtype=float)
            tau = Jackknife(sums, np.arange(len(sums))).estimate(over(0, 1), counted=1)
            figures[f"tau {cell.work.task.name}"] = {"median": list(tau[:3])}
            round_ = {**peers.ratio(arm, plain, "rounds"), "note": cell.work.task.name}
            if round_["median"] >= figures.get("round", round_)["median"]:
                figures["round"] = round_  # the dearer of both tasks
    return figures


def measurements(given: argparse.Namespace) -> dict[str, Measurement]:
    """All of them, in order."""
    work, python, threads = given.work, str(given.peers_python), str(usable_cores())
    head = ("--eagle3", given.head) if given.head in BUNDLED or Path(given.head).is_dir() else ()
    heads = "suffix,int4" + ",'eagle3'" * bool(head)  # a hybrid has suffix in its name

    def script(name: str, *words: Any) -> list[str]:
        return [sys.executable, str(HERE / f"{name}.py"), *map(str, words)]

    def beside(pair: str, minutes: float, *words: str) -> Measurement:
        out = work / "-".join(["peers", pair, *words[1:2]])
        engines = ("native", "llamacpp", *(() if words or LIMITED else ("openvino",)))
        how = ("--tokens", "32", "--repeats", "8", "--threads", threads, "--engines", *engines)
        where = ("--peers-python", python, "--work", work / "pairs", "--out", out)
        return Measurement(
            script("peers", "--pair", pair, *words, *how, *where), minutes, out, of_peers
        )

    drawn = ("--tasks", "humaneval,xsum", "--limit", "20", "--dtype", "bfloat16", "--no-score")
    eights = ("--groups", "6", "--peers-python", python)
    coding = ("--shapes", *WIDTHS.values(), "--kinds", "bfloat16", "int8", "int4")
    reading = ("--dtypes", "bfloat16", "--lengths", "64", "512", "--engines", "native", *FASTEST)
    first = ("--peers-python", python, "--work", work / "pairs" / "smollm2")
    small, config = work / "nano.json", HERE.parent / "configs" / "table1-smollm2.toml"
    products = ("--kernels", "bfloat16", "int8", "int4", "--turns", "11")
    runs, eight, coded = work / "methods", work / "batches.json", work / "codes"
    rows, read = work / "rows", work / "prefill.json"
    real = (*SPS, "bench", "--config", str(config.with_name("table1-smollm2-real.toml")))
    articles = ("--data", str(given.articles), "--out", str(work / "articles"), "--resume")
    plan = (*SPS, "plan", "--target", "nano", "--shapes", "64x1", "--json")
    bench = (*SPS, "bench", "--config", str(config), "--out", str(work / "table1"), "--resume")
    return {
        "nano": Measurement(script("nano_speedup", "--out", small), 1, small, of_nano),
        "draft-token": Measurement([*plan], 1, work / "draft-token.log", of_draft_token),
        "peers-nano": beside("nano", 1),
        "peers-smollm2": beside("smollm2-135m", 1),
        "peers-int8": beside("smollm2-135m", 1, "--quantised", "int8"),
        "peers-int4": beside("smollm2-135m", 1, "--quantised", "int4"),
        "peers-gpt2-large": beside("gpt2-large", 3),
        "methods": Measurement(
            script("methods", *drawn, "--arms", heads, *head, "--out", runs), 8, runs, of_run
        ),
        "rows": Measurement(script("rows", *products, "--out", rows), 2, rows, of_rows),
        "codes": Measurement(script("codes", *coding, "--out", coded), 3, coded, of_codes),
        "prefill": Measurement(
            script("prefill", *reading, *first, "--out", read), 2, read, of_prefill
        ),
        "batches": Measurement(script("batches", eight, *eights), 5, eight, of_batches),
        "table1": Measurement([*bench], 12, work / "table1", of_run),
        "articles": Measurement([*real, *articles], 4, work / "articles", of_run),
    }


def measure(name: str, each: Measurement, work: Path, anew: bool) -> dict[str, Any] | None:
    """Run a command and read its figures; None where it failed."""
    work.mkdir(parents=True, exist_ok=True)
    if anew and each.out.exists():
        shutil.rmtree(each.out) if each.out.is_dir() else each.out.unlink()
    busy, log = os.getloadavg()[0], work / f"{name}.log"
    print(f"{name}, about {each.minutes:g} minutes: {shlex.join(each.command)}", flush=True)
    with log.open("w") as out:
        done = subprocess.run(each.command, stdout=out, check=False)
    if done.returncode:
        print(f"{name} failed ({log}): the others go on", flush=True)
        return None
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    return {"date": day, "load_before": round(busy, 2), "figures": each.read(each.out)}


def committed() -> dict[str, Any] | None:
    """Figures of the committed Table 1, if this kind of processor made it."""
    manifest = Manifest.load(TABLE1)
    made = {each["provenance"]["hardware"]["cpu"] for each in manifest.segments}
    if made != {cpu_kind()}:
        return None
    return {"date": manifest.created[:10], "figures": of_run(TABLE1)}


def table(kept: dict[str, Any], minutes: dict[str, float]) -> Iterator[str]:
    """A section for each processor, this one first."""
    for processor in dict.fromkeys([cpu_kind(), *kept]):
        found = kept.get(processor, {})
        yield f"## {processor}\n"
        yield "| | goal | measured | 95 % | of totals | reached | of |"
        yield "| :-- | --: | --: | :-- | --: | :-- | :-- |"
        missed = []
        for goal in GOALS:
            sign = "at least" if goal.least else "at most"
            bound, how = bound_of(goal, processor, found)
            figure = figure_of(found, goal.measurement, goal.figure)
            cells = [goal.words, f"{sign} {how}"]
            if figure is None:
                command = f"`python benchmarks/goals.py --measure {goal.measurement}`"
                cells += ["not measured", "", "", ""]
                cells += [f"{command}, {minutes[goal.measurement]:g} minutes"]
            else:
                value, low, high = figure["median"]
                reached = value >= bound if goal.least else value <= bound
                missed += [] if reached else [goal]
                cells += [f"{value:.3g}", "" if low is None else f"{low:.3g} to {high:.3g}"]
                cells += [f"{figure['totals'][0]:.3g}" if "totals" in figure else ""]
                cells += ["yes" if reached else "**no**", figure.get("note", "")]
            yield f"| {' | '.join(cells)} |"
        yield from reasons(missed)
        dates = {
            name: each["date"] + (", as reported" if each.get("reported") else "")
            for name, each in found.items()
        }
        yield f"\nMeasured: {'; '.join(f'{n} {at}' for n, at in dates.items()) or 'nothing'}.\n"


def bound_of(goal: Goal, processor: str, found: dict[str, Any]) -> tuple[float, str]:
    """Return a goal's bound on a processor, and how it is written.

    Where the widest instructions are AVX2, five rows are bound by multipliers where memory is fast:
    v(4) may be as many times the roofline that was measured there as it may be passes elsewhere.
    """
    if not processor.endswith(NARROW):
        return goal.bound, f"{goal.bound:g}"
    bound = goal.bound if goal.narrow is None else goal.narrow
    allowed = figure_of(found, "rows", goal.figure) if goal.measurement == "codes" else None
    if allowed is None:
        return bound, f"{bound:g}"
    roofline = allowed["median"][0]
    return bound * roofline, f"{bound * roofline:.3g} ({bound:g} x {roofline:g})"


def figure_of(found: dict[str, Any], measurement: str, name: str) -> Figure | None:
    """Return a figure that is recorded of a processor."""
    figure: Figure | None = found.get(measurement, {}).get("figures", {}).get(name)
    return figure


def reasons(missed: list[Goal]) -> Iterator[str]:
    """Say what bounds each goal that is not reached, those of one reason together."""
    found: dict[str, list[str]] = {}
    for goal in missed:
        names = f"{goal.measurement} {goal.figure}"
        for start, why in WHY.items():
            if names.startswith(start):
                found.setdefault(why, []).append(goal.words)
    yield from ([""] if found else [])
    yield from (f"- {'; '.join(words)}: {why}" for why, words in found.items())


def main() -> None:
    """Measure what is asked for, print the table and write it."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--measure", nargs="*", metavar="NAME", help="none named: what is missing")
    options.add_argument("--head", default=HEAD, help="EAGLE-3 head for SmolLM2: name or folder")
    options.add_argument("--peers-python", default=os.environ.get("SPS_ENGINES_PYTHON"))
    options.add_argument("--articles", help="articles in JSONL, which are not passed on")
    options.add_argument("--work", type=Path, default=Path("~/.cache/spsbench/goals").expanduser())
    given = options.parse_args()
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    mine = kept.setdefault(cpu_kind(), {})
    every = measurements(given)
    if unknown := set(given.measure or ()) - every.keys():
        options.error(f"--measure {', '.join(unknown)}: expected {', '.join(every)}")
    if (found := committed()) is not None and not (given.work / "table1").exists():
        mine["table1"] = found
    for name, each in every.items():
        if given.measure is None or name not in (given.measure or every.keys() - mine.keys()):
            continue
        if "None" in each.command:
            print(f"{name}: expected {MISSING.get(name, PEERS)}")
            continue
        if made := measure(name, each, given.work, anew=name in mine):
            mine[name] = made
            replace_file(KEPT, json.dumps(kept, indent=1).encode() + b"\n")
    text = "\n".join(table(kept, {name: each.minutes for name, each in every.items()}))
    replace_file(KEPT, json.dumps(kept, indent=1).encode() + b"\n")
    replace_file(KEPT.with_suffix(".md"), (text + "\n").encode())
    print(text)


if __name__ == "__main__":
    main()
