"""Exact acceptance rules ranked: expected accepted tokens, at matched drafts, and what they cost.

    .venv/bin/python benchmarks/rules.py

writes results/rules.json and prints its tables. The same drafts are judged by every rule that
accepts their kind; what a rule keeps of one draft is averaged over 64 settings of its uniforms, so
that what differs between two rules is not the luck of the draw. Laws are random ones over 20
tokens, or those of the bundled pair along held-out texts. Ceilings: of one step, optimal transport
(the greatest acceptance that any exact rule can have, by its dual: 1 + min over sets H of q(H)
minus the chance that all candidates are in H); of deterministic trees with P nodes, arXiv
2512.11718 without its constant. Times are processor time of one thread, of 4 drafts with 5 settings
of the uniforms each (`--costs`: those alone, in two minutes).
"""

import argparse
import json
import math
import platform
import time
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import islice
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor

import spsbench
from spsbench.audit.exact.asking import Given, quietly
from spsbench.audit.exact.kinds import TreeDrafter, along
from spsbench.engines.eager import EagerLM
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import Warp, sample
from spsbench.loop.types import Context, Draft, Drawn, Purpose, Verifier
from spsbench.methods.resolve import resolve
from spsbench.methods.verifiers.block import Block
from spsbench.methods.verifiers.gbv import Gbv
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.recursive import Recursive
from spsbench.methods.verifiers.spectr import SpecTr
from spsbench.methods.verifiers.sps import Sps
from spsbench.methods.verifiers.traversal import Traversal
from spsbench.models.loader import encode
from spsbench.models.shelf import Shelf
from spsbench.settings.asked import make_cell
from spsbench.tasks.corpora import news

OUT = Path(__file__).parents[1] / "results" / "rules.json"
RULES: dict[str, Verifier] = {
    "match": Match(),
    "sps": Sps(),
    "block": Block(),
    "recursive": Recursive(),
    "spectr": SpecTr(),
    "gbv": Gbv(),
    "traversal": Traversal(),
}
VOCAB, SETTINGS = 20, 64


def levels(*branching: int) -> tuple[int, ...]:
    """The parents of a tree of some branching, level by level."""
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


def kept(rule: Verifier, draft: Draft, q: Tensor, values: Tensor) -> float:
    """Tokens that a rule keeps of a draft, on the mean over `values` [settings, purposes, n]."""

    def ruled(u: Tensor) -> Tensor:
        return (rule(draft, q, Given(u)).path >= 0).sum()

    with quietly():
        return float(torch.func.vmap(ruled)(values).double().mean())


def fits(rule: Verifier, parents: Sequence[int], drawn: Drawn) -> bool:
    """Whether a rule takes such drafts."""
    return rule.refuses(drawn, not is_chain(parents)) is None


def is_chain(parents: Sequence[int]) -> bool:
    """Whether nothing branches."""
    return list(parents) == list(range(-1, len(parents) - 1))


def judged(drafts: Iterator[tuple[Draft, Tensor]], names: Sequence[str]) -> dict[str, list[float]]:
    """What each rule keeps of each draft."""
    found: dict[str, list[float]] = {name: [] for name in names}
    generator = torch.Generator().manual_seed(7)
    for draft, q in drafts:
        size = SETTINGS, len(Purpose), len(draft.tokens) + 2
        values = torch.rand(size, generator=generator, dtype=torch.float64)
        for name in names:
            found[name].append(kept(RULES[name], draft, q, values))
    return found


def random_drafts(
    parents: Sequence[int], drawn: Drawn, noise: float, count: int
) -> Iterator[tuple[Draft, Tensor]]:
    """Drafts of random laws: logits 2 z for the target, and the draft's `noise` away from them."""
    generator = torch.Generator().manual_seed(len(parents))
    for _ in range(count):
        tokens: list[int] = []

        @cache
        def laws(text: tuple[int, ...]) -> tuple[Tensor, Tensor]:
            z, other = torch.randn(2, VOCAB, generator=generator, dtype=torch.float64)
            return (2 * z).softmax(-1), (2 * z + noise * other).softmax(-1)

        probs: list[Tensor] = []
        for node, parent in enumerate(parents):
            law = laws(along(tokens, parents, parent))[1]
            rest = law.clone()
            if drawn is Drawn.DISTINCT:
                siblings = zip(tokens, parents[:node], strict=True)
                rest[[x for x, above in siblings if above == parent]] = 0.0
            tokens.append(int(sample(rest, torch.rand((), generator=generator).double())))
            probs.append(law)
        rows = [laws(along(tokens, parents, node))[0] for node in range(-1, len(tokens))]
        above = None if is_chain(parents) else torch.tensor(parents)
        yield Draft(torch.tensor(tokens), torch.stack(probs), above, drawn), torch.stack(rows)


def pair_drafts(
    parents: Sequence[int], drawn: Drawn, texts: Sequence[list[int]], models: tuple[Any, Any]
) -> Iterator[tuple[Draft, Tensor]]:
    """Drafts of the bundled pair after each text, at temperature 1."""
    target, lm = EagerLM(models[0]), EagerLM(models[1])
    warp = Warp()
    drafter = TreeDrafter(lm, parents, drawn)
    for index, text in enumerate(texts):
        draft = drafter.draft(
            Context(text, warp, None), len(parents), PhiloxStream(3).round(index), lambda p: p
        )
        above = None if is_chain(parents) else draft.parents
        target.commit(0)
        target.append(torch.tensor(text[:-1]), keep=0)
        fed = torch.cat([torch.tensor(text[-1:]), draft.tokens])
        q = warp(target.append(fed, keep=len(fed), parents=above).logits)
        yield Draft(draft.tokens, draft.probs, above, drawn), q


def transport(q: Tensor, p: Tensor, k: int) -> float:
    """The greatest chance that one of k independent tokens of `p` is kept, under any exact rule.

    The best set is one of the smallest q / p first: a set grows while what it adds to q is less
    than what it adds to p(H)^k, which is convex in p(H).
    """
    order = (q / p).argsort()
    over = q[order].cumsum(0) - p[order].cumsum(0) ** k
    return 1 + min(0.0, float(over.min()))


def ceiling(drafts: Iterator[tuple[Draft, Tensor]], k: int) -> float:
    """Optimal transport, on the mean over the laws of drafts of one step."""
    return fmean(transport(q[0], draft.probs[0], k) for draft, q in drafts)


def mean(values: Sequence[float]) -> dict[str, float]:
    """With a 95 % half width, over drafts."""
    return {"mean": fmean(values), "half": 1.96 * stdev(values) / math.sqrt(len(values))}


def table(make: Any, shapes: Sequence[str]) -> list[dict[str, Any]]:
    """What the rules keep, for every shape and way to draw."""
    rows = []
    for shape in shapes:
        parents = SHAPES[shape]
        for drawn in (Drawn.IID,) if is_chain(parents) else (Drawn.IID, Drawn.DISTINCT):
            names = [name for name, rule in RULES.items() if fits(rule, parents, drawn)]
            found = judged(make(parents, drawn), names)
            base = found["sps" if is_chain(parents) else "recursive"]
            ranked = {
                name: mean(values)
                | {"over": mean([a - b for a, b in zip(values, base, strict=True)])}
                for name, values in found.items()
            }
            row = {"shape": shape, "drawn": drawn.value, "nodes": len(parents), "kept": ranked}
            if max(parents) < 0 and drawn is Drawn.IID:
                row["ceiling"] = ceiling(make(parents, drawn), len(parents))
            print(said(row), flush=True)
            rows.append(row)
    return rows


def said(row: dict[str, Any]) -> str:
    """A row of a table."""
    ranked = sorted(row["kept"].items(), key=lambda item: item[1]["mean"])
    figures = ", ".join(
        f"{n} {x['mean']:.3f} ({x['over']['mean']:+.3f} +- {x['over']['half']:.3f})"
        for n, x in ranked
    )
    top = f"; ceiling {row['ceiling']:.3f}" if "ceiling" in row else ""
    return f"{row['shape']} ({row['drawn']}): {figures}{top}"


def entropy_bound(laws: Sequence[Tensor], nodes: int) -> dict[str, float]:
    """(mu + mu2) log P / mu^2 of arXiv 2512.11718, without its constant; P counts the context."""
    logs = [-(q.double().clamp(min=1e-300).log()) for q in laws]
    mu = fmean(float((q * x).sum()) for q, x in zip(laws, logs, strict=True))
    second = fmean(float((q * x * x).sum()) for q, x in zip(laws, logs, strict=True))
    return {"mu": mu, "mu2": second, "bound": (mu + second) * math.log(nodes + 1) / mu**2}


COSTED = {
    "chain of 64": levels(*[1] * 64),
    "8 chains of 8": levels(8, *[1] * 7),
    "4x4x3": levels(4, 4, 3),
}
PASS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def costs(vocab: int, repeats: int) -> list[dict[str, Any]]:
    """Processor time of each rule, beside the warp and the linear layers of a small model."""
    generator = torch.Generator().manual_seed(0)
    rows: list[dict[str, Any]] = []
    passes = {name: linears(vocab, dtype) for name, dtype in PASS.items()}
    print("linear layers of Qwen2.5-0.5B's shapes, 65 rows: ", passes, flush=True)
    for shape, parents in COSTED.items():
        q = (3 * torch.randn(len(parents) + 1, vocab, generator=generator)).softmax(-1)
        own = 0.5 * q + 0.5 * (3 * torch.randn(q.shape, generator=generator)).softmax(-1)
        warp = processor(partial(Warp(), own.log()), repeats)
        for drawn in (Drawn.IID,) if is_chain(parents) else (Drawn.IID, Drawn.DISTINCT):
            probs = own[[parent + 1 for parent in parents]]
            drafts = [drafted(parents, probs, drawn, generator) for _ in range(4)]
            row: dict[str, Any] = {"shape": shape, "drawn": drawn.value, "nodes": len(parents)}
            row |= {"warp": warp, "ms": {}}
            for name, rule in RULES.items():
                if fits(rule, parents, drawn):
                    spent = sorted(
                        processor(partial(rule, draft, q, PhiloxStream(0).round(turn)), 1)
                        for draft in drafts
                        for turn in range(repeats)
                    )
                    row["ms"][name] = {"mean": fmean(spent), "most": spent[-1]}
            rows.append(row)
            told = (f"{n} {x['mean']:.2f} (at most {x['most']:.2f})" for n, x in row["ms"].items())
            print(f"{shape}, {drawn.value}: warp {warp:.1f}, " + ", ".join(told), flush=True)
    return [{"shape": "linear layers of a pass of 65 rows, 0.5 B", "ms": passes}, *rows]


def drafted(
    parents: Sequence[int], probs: Tensor, drawn: Drawn, generator: torch.Generator
) -> Draft:
    """A draft of the laws `probs` [N, V]."""
    tokens: list[int] = []
    for node, parent in enumerate(parents):
        law = probs[node].clone()
        if drawn is Drawn.DISTINCT:
            siblings = zip(tokens, parents[:node], strict=True)
            law[[x for x, above in siblings if above == parent]] = 0.0
        tokens.append(int(torch.multinomial(law, 1, generator=generator)))
    above = None if is_chain(parents) else torch.tensor(parents)
    return Draft(torch.tensor(tokens), probs, above, drawn)


def linears(vocab: int, dtype: torch.dtype) -> float:
    """Processor ms of the matrix products alone of a 24-layer model of width 896."""
    x, wide = (torch.randn(65, n).to(dtype) for n in (896, 4864))
    layer = [torch.randn(n, 896).to(dtype) for n in (896, 128, 128, 896, 4864, 4864)]
    down, head = (torch.randn(n).to(dtype) for n in ((896, 4864), (vocab, 896)))

    def once() -> None:
        for _ in range(24):
            for weights in layer:
                x @ weights.T
            wide @ down.T
        x @ head.T

    return processor(once, 2)


def processor(run: Any, repeats: int) -> float:
    """Milliseconds of processor time of all threads, the least of some runs."""
    run()
    found = []
    for _ in range(repeats):
        began = time.process_time()
        run()
        found.append(1e3 * (time.process_time() - began))
    return min(found)


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drafts", type=int, default=400)
    parser.add_argument("--positions", type=int, default=150)
    parser.add_argument("--vocab", type=int, default=150_000)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--costs", action="store_true", help="measure costs alone, keep the rest")
    asked = parser.parse_args()

    made: dict[str, Any] = {
        "spsbench": spsbench.__version__,
        "torch": torch.__version__,
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "asked": vars(asked) | {"out": asked.out.name},
    }
    print("processor time of one thread, ms")
    torch.set_num_threads(1)
    made["costs"] = costs(asked.vocab, 5)
    if asked.costs:
        known = json.loads(asked.out.read_text())
        told = {"costs": made["costs"], "costs with": {n: made[n] for n in ("spsbench", "torch")}}
        asked.out.write_text(json.dumps(known | told, indent=1) + "\n")
        return
    for noise in 0.5, 1.5:
        print(f"random laws, {noise} apart")
        make = partial(random_drafts, noise=noise, count=asked.drafts)
        made[f"random laws, {noise} apart"] = table(make, list(SHAPES))
    print("bundled pair")
    loaded = Shelf(offline=True).load(resolve(make_cell(k=4, engine="eager")))
    models = loaded.target, loaded.draft
    items = islice(news.items(0, "heldout"), asked.positions)
    whole = [encode(loaded.tokenizer, news.layout([], item.document)) for item in items]
    texts = [text[: 40 + 7 * i % 80] for i, text in enumerate(whole)]
    made["bundled pair"] = table(partial(pair_drafts, texts=texts, models=models), list(SHAPES))
    laws = [q[0] for _, q in pair_drafts(levels(1), Drawn.IID, texts, models)]
    made["entropy bound"] = {str(n): entropy_bound(laws, n) for n in (4, 12)}
    print(made["entropy bound"])
    asked.out.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
