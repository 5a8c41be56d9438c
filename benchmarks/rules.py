"""Acceptance rules ranked: expected accepted tokens on the same drafts, and what a call costs.

    .venv/bin/python benchmarks/rules.py

writes results/rules.json and prints its rows. All rules that take a kind of draft see the same
drafts; how many tokens of one a rule accepts is a mean over 64 settings of its uniforms, so that
two rules never differ by the luck of a draw. Distributions are random ones over 20 tokens, or those
of the bundled pair along held-out articles. Ceilings: of one step, the greatest acceptance of any
exact rule
(optimal transport, by its dual: 1 + min over sets H of q(H) minus the chance that all candidates
are in H); of deterministic trees with P nodes, arXiv 2512.11718 without its constant. Times are
processor time of one thread, of 4 drafts with `--repeats` settings of the uniforms each.
"""

import argparse
import json
import math
import platform
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor

import spsbench
from spsbench.audit.exact.queries import Given
from spsbench.engines.eager import Eager
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import Warp, sample
from spsbench.loop.types import Context, Draft, Drawn, Purpose, Scores, Verifier, always
from spsbench.methods.drafters.frontier import Frontier
from spsbench.methods.drafters.shaped import ShapedDrafter
from spsbench.models.tokenizers import encode_text
from spsbench.pair.load import load
from spsbench.plugins import make
from spsbench.spec import Spec
from spsbench.tasks.articles import articles, layout

OUT = Path(__file__).parents[1] / "results" / "rules.json"
NAMES = ("match", "sps", "rejection", "block", "recursive", "spectr", "traversal")
VOCAB, SETTINGS, NOISES = 20, 64, (0.5, 1.5)
PARTS = ("costs", "near", "far", "pair")
OPTIONS = ("drafts", "positions", "vocab", "repeats")

Drafts = Iterator[tuple[Draft, Tensor]]
"""Drafts, and the target's distributions [N + 1, V] of each."""


def rules() -> dict[str, Verifier]:
    """Return the rules by name."""
    return {name: make("verifiers", Spec(name)) for name in NAMES}


def levels(*branching: int) -> tuple[int, ...]:
    """Return the parents of a tree of some branching, level by level."""
    parents: list[int] = []
    above = [-1]
    for k in branching:
        start = len(parents)
        parents += [node for node in above for _ in range(k)]
        above = list(range(start, len(parents)))
    return tuple(parents)


SHAPES = {
    "2 siblings": levels(2),
    "4 siblings": levels(4),
    "chain of 4": levels(1, 1, 1, 1),
    "chain of 12": levels(*[1] * 12),
    "3 chains of 4": levels(3, 1, 1, 1),
    "2x2x1x1": levels(2, 2, 1, 1),
}


def is_chain(parents: Sequence[int]) -> bool:
    """Return whether nothing branches."""
    return list(parents) == list(range(-1, len(parents) - 1))


def kinds_of_draws(parents: Sequence[int]) -> tuple[Drawn, ...]:
    """Return how siblings of a shape may be sampled."""
    return (Drawn.IID,) if is_chain(parents) else (Drawn.IID, Drawn.DISTINCT)


def rules_for(parents: Sequence[int], drawn: Drawn) -> dict[str, Verifier]:
    """Return the rules that take such drafts."""
    tree = not is_chain(parents)
    return {name: rule for name, rule in rules().items() if rule.refuses(drawn, tree) is None}


def accepted(rule: Verifier, draft: Draft, q: Tensor, values: Tensor) -> float:
    """Return the mean of accepted tokens over uniforms `values` [settings, purposes, n]."""

    def count(u: Tensor) -> Tensor:
        return (rule(draft, q, Given(u)).path >= 0).sum()

    with warnings.catch_warnings(action="ignore"):  # about slow operations
        return float(torch.func.vmap(count)(values).double().mean())


def accepted_by_rule(drafts: Drafts, verifiers: dict[str, Verifier]) -> dict[str, list[float]]:
    """Return the accepted tokens of each rule, draft by draft."""
    counts: dict[str, list[float]] = {name: [] for name in verifiers}
    generator = torch.Generator().manual_seed(7)
    for draft, q in drafts:
        size = SETTINGS, len(Purpose), len(draft.tokens) + 2
        values = torch.rand(size, generator=generator, dtype=torch.float64)
        for name, rule in verifiers.items():
            counts[name].append(accepted(rule, draft, q, values))
    return counts


def random_drafts(parents: Sequence[int], drawn: Drawn, noise: float, count: int) -> Drafts:
    """Yield random drafts: the target's logits are 2 z, the draft's have `noise` added."""
    generator = torch.Generator().manual_seed(len(parents))
    for _ in range(count):

        @cache
        def q_and_p(text: tuple[int, ...]) -> tuple[Tensor, Tensor]:
            z, other = torch.randn(2, VOCAB, generator=generator, dtype=torch.float64)
            return (2 * z).softmax(-1), (2 * z + noise * other).softmax(-1)

        tokens, probs = list[int](), list[Tensor]()
        paths: list[tuple[int, ...]] = [()]
        for node, parent in enumerate(parents):
            p = q_and_p(paths[parent + 1])[1]
            remaining = without_siblings(p, tokens, parents[:node], parent, drawn)
            tokens.append(int(sample(remaining, torch.rand((), generator=generator).double())))
            paths.append((*paths[parent + 1], tokens[node]))
            probs.append(p)
        rows = [q_and_p(path)[0] for path in paths]
        yield draft_of(tokens, torch.stack(probs), parents, drawn), torch.stack(rows)


def without_siblings(
    p: Tensor, tokens: Sequence[int], parents: Sequence[int], parent: int, drawn: Drawn
) -> Tensor:
    """Return the weights a node is sampled by: of distinct siblings, without those before it."""
    remaining = p.clone()
    if drawn is Drawn.DISTINCT:
        siblings = [x for x, node in zip(tokens, parents, strict=True) if node == parent]
        remaining[siblings] = 0.0
    return remaining


def draft_of(tokens: Sequence[int], probs: Tensor, parents: Sequence[int], drawn: Drawn) -> Draft:
    """Return a draft of a shape."""
    above = None if is_chain(parents) else torch.tensor(parents)
    return Draft(torch.tensor(tokens), probs, above, drawn)


def pair_drafts(
    parents: Sequence[int], drawn: Drawn, texts: Sequence[list[int]], models: tuple[Any, Any]
) -> Drafts:
    """Yield drafts of a pair after each text, at temperature 1."""
    target, lm = (Eager().session(model) for model in models)
    warp, drafter = Warp(), ShapedDrafter(Frontier(lm), parents, drawn)
    for index, text in enumerate(texts):
        noise = PhiloxStream(3).round(index)
        drafter.begin(text, Scores(torch.empty(0), {}))
        tree: Any = drafter.draft(Context(text, warp, None), len(parents), noise, always)
        draft = draft_of(tree.tokens.tolist(), tree.probs, parents, drawn)
        target.commit(0)
        target.append(torch.tensor(text[:-1]), keep=0)
        fed = torch.cat([torch.tensor(text[-1:]), draft.tokens])
        yield draft, warp(target.append(fed, keep=len(fed), parents=draft.parents).logits)


def transport(q: Tensor, p: Tensor, k: int) -> float:
    """Return the greatest chance that one of k independent tokens of `p` is accepted.

    The best set is one of the smallest q / p first: a set grows while what it adds to q is less
    than what it adds to p(H)^k, which is convex in p(H).
    """
    order = (q / p).argsort()
    over = q[order].cumsum(0) - p[order].cumsum(0) ** k
    return 1 + min(0.0, float(over.min()))


def ceiling(drafts: Iterable[tuple[Any, Tensor]], k: int) -> float:
    """Return the mean of `transport` over drafts of one step."""
    return fmean(transport(q[0], draft.probs[0], k) for draft, q in drafts)


def mean(values: Sequence[float]) -> dict[str, float]:
    """Return a mean with its 95 % half width, over drafts."""
    return {"mean": fmean(values), "half": 1.96 * stdev(values) / math.sqrt(len(values))}


def table(drafts_of: Callable[[Sequence[int], Drawn], Drafts]) -> list[dict[str, Any]]:
    """Return the accepted tokens of the rules, for every shape and kind of draw."""
    rows = []
    for shape, parents in SHAPES.items():
        for drawn in kinds_of_draws(parents):
            counts = accepted_by_rule(drafts_of(parents, drawn), rules_for(parents, drawn))
            base = counts["sps" if is_chain(parents) else "recursive"]
            ranked = {
                name: mean(values)
                | {"over": mean([a - b for a, b in zip(values, base, strict=True)])}
                for name, values in counts.items()
            }
            row: dict[str, Any] = {"shape": shape, "drawn": drawn.value, "nodes": len(parents)}
            row["kept"] = ranked
            if max(parents) < 0 and drawn is Drawn.IID:
                row["ceiling"] = ceiling(drafts_of(parents, drawn), len(parents))
            print(line(row), flush=True)
            rows.append(row)
    return rows


def line(row: dict[str, Any]) -> str:
    """Return a row of a table in words."""
    ranked = sorted(row["kept"].items(), key=lambda item: item[1]["mean"])
    figures = ", ".join(
        f"{name} {of['mean']:.3f} ({of['over']['mean']:+.3f} +- {of['over']['half']:.3f})"
        for name, of in ranked
    )
    top = f"; ceiling {row['ceiling']:.3f}" if "ceiling" in row else ""
    return f"{row['shape']} ({row['drawn']}): {figures}{top}"


def entropy_bound(probs: Sequence[Tensor], nodes: int) -> dict[str, float]:
    """Return (mu + mu2) log P / mu^2 of arXiv 2512.11718, without its constant."""
    logs = [-(q.double().clamp(min=1e-300).log()) for q in probs]
    mu = fmean(float((q * x).sum()) for q, x in zip(probs, logs, strict=True))
    second = fmean(float((q * x * x).sum()) for q, x in zip(probs, logs, strict=True))
    return {"mu": mu, "mu2": second, "bound": (mu + second) * math.log(nodes + 1) / mu**2}


COSTED = {
    "chain of 64": levels(*[1] * 64),
    "8 chains of 8": levels(8, *[1] * 7),
    "4x4x3": levels(4, 4, 3),
}
PASS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def costs(vocab: int, repeats: int) -> list[dict[str, Any]]:
    """Return the processor time of each rule, of its cuts, and of a small model's layers."""
    print("processor time of one thread, ms")
    generator = torch.Generator().manual_seed(0)
    passes = {name: linear_layers(vocab, dtype) for name, dtype in PASS.items()}
    rows: list[dict[str, Any]] = [
        {"shape": "linear layers of a pass of 65 rows, 0.5 B", "ms": passes}
    ]
    for shape, parents in COSTED.items():
        q = (3 * torch.randn(len(parents) + 1, vocab, generator=generator)).softmax(-1)
        p = 0.5 * q + 0.5 * (3 * torch.randn(q.shape, generator=generator)).softmax(-1)
        warp = processor_ms(partial(Warp(), p.log()), repeats)
        for drawn in kinds_of_draws(parents):
            probs = p[[parent + 1 for parent in parents]]
            drafts = [random_tree(parents, probs, drawn, generator) for _ in range(4)]
            ms = {}
            for name, rule in rules_for(parents, drawn).items():
                calls = [
                    processor_ms(partial(rule, draft, q, PhiloxStream(0).round(turn)), 1)
                    for draft in drafts
                    for turn in range(repeats)
                ]
                ms[name] = {"mean": fmean(calls), "most": max(calls)}
            row = {"shape": shape, "drawn": drawn.value, "nodes": len(parents)}
            rows.append(row | {"warp": warp, "ms": ms})
            print(json.dumps(rows[-1]), flush=True)
    return rows


def random_tree(
    parents: Sequence[int], probs: Tensor, drawn: Drawn, generator: torch.Generator
) -> Draft:
    """Return a draft sampled by `probs` [N, V]."""
    tokens: list[int] = []
    for node, parent in enumerate(parents):
        remaining = without_siblings(probs[node], tokens, parents[:node], parent, drawn)
        tokens.append(int(torch.multinomial(remaining, 1, generator=generator)))
    return draft_of(tokens, probs, parents, drawn)


def linear_layers(vocab: int, dtype: torch.dtype) -> float:
    """Return the processor ms of the matrix products alone of a 24-layer model of width 896."""
    x, wide = (torch.randn(65, n).to(dtype) for n in (896, 4864))
    layer = [torch.randn(n, 896).to(dtype) for n in (896, 128, 128, 896, 4864, 4864)]
    down, head = (torch.randn(n).to(dtype) for n in ((896, 4864), (vocab, 896)))

    def products() -> None:
        for _ in range(24):
            for weights in layer:
                x @ weights.T
            wide @ down.T
        x @ head.T

    return processor_ms(products, 2)


def processor_ms(run: Callable[[], Any], repeats: int) -> float:
    """Return milliseconds of processor time of all threads, the least of some runs."""
    run()
    times = []
    for _ in range(repeats):
        began = time.process_time()
        run()
        times.append(1e3 * (time.process_time() - began))
    return min(times)


def random_part(noise: float, count: int) -> dict[str, Any]:
    """Return the accepted tokens of drafts of random distributions."""
    print(f"random laws, {noise} apart")
    return {f"random laws, {noise} apart": table(partial(random_drafts, noise=noise, count=count))}


def pair_part(positions: int) -> dict[str, Any]:
    """Return the accepted tokens of the bundled pair's drafts, and bounds by its entropy."""
    print("bundled pair")
    loaded = load(k=4, engine="eager", offline=True).loaded
    documents = [item.document for item in articles("mini", positions).items]
    prompts = [encode_text(loaded.tokenizer, layout([], document)) for document in documents]
    texts = [prompt[: 40 + 7 * i % 80] for i, prompt in enumerate(prompts)]
    models = loaded.target, loaded.draft
    probs = [q[0] for _, q in pair_drafts(levels(1), Drawn.IID, texts, models)]
    return {
        "bundled pair": table(partial(pair_drafts, texts=texts, models=models)),
        "entropy bound": {str(n): entropy_bound(probs, n) for n in (4, 12)},
    }


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--drafts", type=int, default=80)
    parser.add_argument("--positions", type=int, default=60)
    parser.add_argument("--vocab", type=int, default=150_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=PARTS, help="measure this part, leave the others")
    parser.add_argument("--out", type=Path, default=OUT)
    flags = parser.parse_args()

    torch.set_num_threads(1)
    measure: dict[str, Callable[[], dict[str, Any]]] = {
        "costs": lambda: {"costs": costs(flags.vocab, flags.repeats)},
        "near": lambda: random_part(NOISES[0], flags.drafts),
        "far": lambda: random_part(NOISES[1], flags.drafts),
        "pair": lambda: pair_part(flags.positions),
    }
    values: dict[str, Any] = json.loads(flags.out.read_text()) if flags.only else {}
    values |= {
        "spsbench": spsbench.__version__,
        "torch": torch.__version__,
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "options": {name: getattr(flags, name) for name in OPTIONS},
    }
    for part in PARTS:
        if flags.only in (None, part):
            values |= measure[part]()
    flags.out.write_text(json.dumps(values, indent=1) + "\n")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
