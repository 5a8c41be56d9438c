"""What each schedule loses against the best constant K and against the oracle, on three workloads.

    .venv/bin/python benchmarks/schedules.py code copying prose

writes results/schedules-nano.json, a workload at a time, and prints the table of docs/plan.md.

Costs are not timed but given, in passes of the target over one token (`--draft`, `--row`), so the
figures depend on texts and acceptance alone and come out again on any machine. Of schedules that
look at the past the expected cost is computed along texts of the target (`forecast.replay`). Of
those that look at laws the rounds are, but not what they draft behind a token that will be
rejected: there the laws of the text stand in, and the cost of real rounds, which is noisier, is
counted beside it. Every second prompt is for fitting `disco`, the others are for everything else.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from nano_speedup import stdlib_prompts
from spsbench.benchmark.generation import Generation
from spsbench.benchmark.tracing import DraftTracer, TextTracer
from spsbench.loop.decode import room
from spsbench.methods.resolve import resolve
from spsbench.models.loader import encode
from spsbench.models.shelf import Loaded, Shelf
from spsbench.planning.forecast.disco import Fitted, fit_along
from spsbench.planning.forecast.oracle import hindsight, informed
from spsbench.planning.forecast.policies import Always, Follows
from spsbench.planning.forecast.replay import Span, replay, thrown
from spsbench.planning.forecast.traces import Drawn, Written, chances
from spsbench.plugins import make
from spsbench.settings.asked import make_cell
from spsbench.settings.cell import Cell
from spsbench.spec import Spec
from spsbench.tasks.corpora import stdlib

OUT = Path(__file__).parents[1] / "results" / "schedules-nano.json"
MOST = 12  # tokens a round, of everything
SETTING = ("prompts", "repeats", "tokens", "temperature", "draft", "row")
THROWS = 60  # generations a text, for schedules whose past cannot be summed up
BACK = ("heuristic", "ema", "goodput")
LOOKING = (
    "confidence:t=0.3,most=12",
    "confidence:t=0.3,most=4",
    "entropy:t=0.4,most=12",
    "entropy:t=0.4,most=4",
)
FITTED = "disco:t=0.35,most=12"  # on the other prompts of the workload


class Workload(NamedTuple):
    """Texts of the target, and the draft's laws along them."""

    prompts: list[list[int]]
    texts: list[tuple[Written, Drawn]]


class Found(NamedTuple):
    """Cost and tokens of each prompt."""

    cost: np.ndarray
    tokens: np.ndarray

    @property
    def each(self) -> float:
        """Passes of the target a token."""
        return float(self.cost.sum() / self.tokens.sum())

    def over(self, other: "Found") -> list[float]:
        """How much more than `other`, with a 95 % bootstrap interval over prompts."""
        dice = np.random.default_rng(0).integers(0, len(self.cost), (4000, len(self.cost)))
        mine, theirs = (f.cost[dice].sum(1) / f.tokens[dice].sum(1) for f in (self, other))
        low, high = np.quantile(mine / theirs - 1, (0.025, 0.975))
        return [self.each / other.each - 1, float(low), float(high)]


def copying_prompts(loaded: Loaded, count: int) -> list[list[int]]:
    """The opening of a function twice, the second time cut after its first tokens."""
    return [ids + ids[:24] for ids in stdlib_prompts(loaded, count)]


def prose_prompts(loaded: Loaded, count: int) -> list[list[int]]:
    """Openings of the docstrings of held-out modules."""
    modules = (
        module.text.lstrip() for module in stdlib.load(pinned=False) if module.split == "heldout"
    )
    texts = [text for text in modules if text.startswith(('"""', 'r"""'))]
    long = [ids[:24] for text in texts if len(ids := encode(loaded.tokenizer, text)) > 60]
    step = len(long) / count
    return [long[int(i * step)] for i in range(count)]


WORKLOADS: dict[str, Callable[[Loaded, int], list[list[int]]]] = {
    "copying": copying_prompts,
    "code": stdlib_prompts,
    "prose": prose_prompts,
}


def traced(
    prompts: Sequence[list[int]], cell: Cell, loaded: Loaded, looking: Sequence[str] = ()
) -> Workload:
    """A text of the target for each prompt, and the draft along it."""
    plain = resolve(cell.auto_regressive)
    target = TextTracer(plain, loaded)
    cells = [cell.but(schedule=Spec.parse(each)) for each in looking] or [cell]
    draft = DraftTracer("draft", cells, loaded, {})
    texts = []
    for number, prompt in enumerate(prompts):
        made = Generation(plain, loaded, prompt, sample=str(number))
        for _ in made:
            pass
        tokens, finish = made.record.tokens, made.record.finish
        laws = list(target.laws(prompt, tokens))
        key = (plain.id, str(number), 0)
        along = draft.along(prompt, tokens, laws)
        if not isinstance(along, Drawn):
            raise TypeError("expected a draft that is sampled")
        texts.append((target.written(key, prompt, tokens, finish, laws), along))
    return Workload(list(prompts), texts)


class Costs(NamedTuple):
    """In passes of the target over one token."""

    draft: float
    row: float

    def round(self, drafted: float, position: int = 0) -> float:
        """Of a round, wherever it is."""
        return 1 + drafted * (self.draft + self.row)


def replayed(work: Workload, policy: Any, costs: Costs) -> tuple[Found, bool]:
    """Expected costs along the texts, and whether they are exact."""
    spent, exact = [], True
    for text, along in work.texts:
        coins, span = chances(text, along, "sps"), text.span(along.reach)
        # A running estimate has a state for every past: too many to be walked.
        few = not isinstance(policy, Follows) or hasattr(policy.schedule, "memory")
        law = replay(coins, span, policy) if few else thrown(coins, span, policy, THROWS)
        spent.append(law.cost(costs.round))
        exact &= law.throws is None
    return Found(np.array(spent), lengths(work)), exact


def stopped(work: Workload, schedule: str, costs: Costs) -> Found:
    """The same for a schedule that looks at laws: rounds are exact, their drafts nearly so."""
    spent, most = [], most_of(schedule)
    for text, along in work.texts:
        span = text.span(along.reach)

        def cost(drafted: int, at: int, span: Span = span) -> float:
            return costs.round(drafted) + costs.draft * (drafted < min(most, span.room(at)))

        coins = chances(text, along, "sps", schedule)
        spent.append(replay(coins, span, Always(most)).cost(cost))
    return Found(np.array(spent), lengths(work))


def ceilings(work: Workload, costs: Costs) -> dict[str, Found]:
    """The oracles."""
    found = {}
    for name, oracle in (("knows the chances", informed), ("knows the coins", hindsight)):
        spent = []
        for text, along in work.texts:
            coins = chances(text, along, "sps")
            spent.append(oracle(coins, text.span(along.reach), MOST, costs.round).cost)
        found[name] = Found(np.array(spent), lengths(work))
    return found


def lengths(work: Workload) -> np.ndarray:
    """Tokens of each text."""
    return np.array([len(text.q) for text, _ in work.texts])


def counted(work: Workload, cell: Cell, loaded: Loaded, costs: Costs, repeats: int) -> Found:
    """The cost of real rounds; a slot that was refused after the draft's pass costs that pass."""
    spent, tokens = np.zeros(len(work.prompts)), np.zeros(len(work.prompts))
    looks = str(cell.method.schedule).startswith(("confidence", "entropy", "disco"))
    budget, most = cell.sampling.max_new_tokens, most_of(str(cell.method.schedule))
    for number, prompt in enumerate(work.prompts):
        for repeat in range(repeats):
            made = Generation(cell, loaded, prompt, sample=str(number), repeat=repeat)
            for _ in made:
                pass
            at = 0
            for turn in made.record.rounds:
                refused = looks and turn.drafted < min(most, room(at, budget, None))
                spent[number] += costs.round(turn.drafted) + costs.draft * refused
                at += turn.emitted
            tokens[number] += at
    return Found(spent, tokens)


def measure(name: str, flags: argparse.Namespace, loaded: Loaded, cell: Cell) -> dict[str, Any]:
    """All figures of a workload, and the fit of its other prompts."""
    prompts = WORKLOADS[name](loaded, 2 * flags.prompts)
    costs = Costs(flags.draft, flags.row)
    learned = traced(prompts[::2], cell, loaded)
    fitted = fit_along(along for _, along in learned.texts)
    by = ",".join(f"{name}={value:.6f}" for name, value in fit_values(fitted)[:3])
    looking = (*LOOKING, str(Spec.parse(f"{FITTED},{by}")))  # as it names itself in a trace
    work = traced(prompts[1::2], cell, loaded, looking)

    constant = {k: replayed(work, Always(k), costs)[0] for k in range(MOST + 1)}
    best = min(constant, key=lambda k: constant[k].each)
    found: dict[str, tuple[Found, str]] = {
        "constant, K = 4": (constant[4], "exact"),
        f"constant, K = {best} (the best)": (constant[best], "exact"),
    }
    for each in BACK:
        schedule = make("schedules", Spec.parse(f"{each}:{own_arguments(each, costs)}"))
        figure, exact = replayed(work, Follows(schedule), costs)
        found[each] = figure, "exact" if exact else "thrown coins"
    found |= {each: (stopped(work, each, costs), "along texts") for each in looking}
    for each in (f"constant:lookahead={best}", *looking) if flags.repeats else ():
        asked = resolve(cell.but(schedule=Spec.parse(each)))
        real = counted(work, asked, loaded, costs, flags.repeats)
        found[f"{each} "] = real, "real rounds"
    oracles = ceilings(work, costs)
    rows = [
        {
            "schedule": each.strip().partition(",bias")[0],
            "how": how,
            "cost": figure.each,
            "over best constant": figure.over(constant[best]),
            "over oracle": figure.over(oracles["knows the chances"]),
        }
        for each, (figure, how) in found.items()
    ]
    rows += [{"schedule": f"oracle: {n}", "cost": f.each} for n, f in oracles.items()]
    alpha = float(np.concatenate([along.overlap for _, along in work.texts]).mean())
    return {
        "alpha": alpha,
        "tokens": int(lengths(work).sum()),
        "fit": dict(fit_values(fitted)),
        "constant": {k: figure.each for k, figure in constant.items()},
        "rows": rows,
        "trace": [columns(along) for _, along in learned.texts],
    }


def most_of(schedule: str) -> int:
    """The bound in a spec."""
    return int(dict(Spec.parse(schedule).args).get("most", MOST))


def own_arguments(name: str, costs: Costs) -> str:
    """What a schedule is given."""
    given = f"draft={costs.draft},row={costs.row}," if name == "goodput" else ""
    return f"{given}most={MOST}"


def fit_values(fitted: Fitted) -> list[tuple[str, float]]:
    """As JSON."""
    by = fitted.classifier
    told = [("bias", by.bias), ("entropy", by.entropy), ("peak", by.peak)]
    return [*told, ("loss", fitted.loss), ("plain", fitted.plain)]


def columns(along: Drawn) -> dict[str, list[float]]:
    """What a fit looks at, to be pooled over workloads."""
    return {n: np.round(getattr(along, n), 5).tolist() for n in ("entropy", "peak", "overlap")}


def pooled(results: dict[str, Any]) -> Fitted:
    """The regression over the other prompts of all workloads: the defaults of `disco`."""
    texts = [each for found in results.values() for each in found["trace"]]
    made = [
        Drawn(
            p=np.zeros(len(each["peak"])),
            agrees=np.zeros(len(each["peak"]), np.bool_),
            **{name: np.array(values) for name, values in each.items()},
        )
        for each in texts
    ]
    return fit_along(made)


def main() -> None:
    """Run and write."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("workloads", nargs="*", default=list(WORKLOADS))
    options.add_argument("--prompts", type=int, default=10)
    options.add_argument("--repeats", type=int, default=2)
    options.add_argument("--tokens", type=int, default=128)
    options.add_argument("--draft", type=float, default=0.25)
    options.add_argument("--row", type=float, default=0.03)
    options.add_argument("--temperature", type=float, default=1.0)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--out", type=Path, default=OUT)
    flags = options.parse_args()
    torch.set_num_threads(flags.threads)
    asked = {"max_new_tokens": flags.tokens, "temperature": flags.temperature}
    cell = resolve(make_cell(ignore_eos=True, **asked))
    loaded = Shelf(offline=True).load(cell)
    told = json.loads(flags.out.read_text()) if flags.out.exists() else {}
    results = told.get("results", {})
    setting = {n: getattr(flags, n) for n in SETTING}
    for name in flags.workloads:
        results[name] = measure(name, flags, loaded, cell)
        fitted = pooled(results)
        if set(results) == set(WORKLOADS):  # what a fit looks at is not kept
            results = {n: {**found, "trace": []} for n, found in results.items()}
        written = {"setting": setting, "fit": dict(fit_values(fitted)), "results": results}
        flags.out.write_text(json.dumps(written, indent=1) + "\n")
        print(f"{name}: alpha {results[name]['alpha']:.3f}, fit {results[name]['fit']}")
        for row in results[name]["rows"]:
            regrets = [row.get(key) for key in ("over best constant", "over oracle")]
            told_as = [f"{r[0]:+.1%} ({r[1]:+.1%} to {r[2]:+.1%})" for r in regrets if r]
            print(f"  {row['schedule']:32} {row.get('how', ''):12} {row['cost']:.4f}", *told_as)
    print("disco over all:", fitted, fit_values(fitted))


if __name__ == "__main__":
    main()
