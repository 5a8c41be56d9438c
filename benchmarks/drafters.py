"""Drafters that need no training on three kinds of text: what they draft, and what that costs.

    .venv/bin/python benchmarks/drafters.py
    .venv/bin/python benchmarks/drafters.py --target smollm2 --prompts 4

prints a table and writes results/drafters-TARGET.json. For each drafter and kind of text: tau
(tokens a target pass), the share of drafted tokens that were kept, and processor time of drafting,
in microseconds per emitted token. The texts are copying (an article twice, and its beginning again;
of a model with a chat template: the request to repeat it), code (openings of functions of held-out
modules of the standard library) and free (news of the held-out generator; with a template:
questions).
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from nano_speedup import stdlib_prompts
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.text import StopStrings
from spsbench.loop.timing import Stopwatch
from spsbench.loop.types import Limits, Round
from spsbench.methods.build import LoadedStand
from spsbench.methods.resolve import resolve, warp
from spsbench.methods.site import forget
from spsbench.models.loader import encode
from spsbench.models.shelf import Loaded, Shelf
from spsbench.plugins import make
from spsbench.settings.asked import make_cell
from spsbench.settings.cell import Cell
from spsbench.tasks.corpora import news

ROOT = Path(__file__).parents[1]

WARM = 8  # tokens that are made before those that count

RULES = (
    "ngram",
    "ngram:match=frequent",
    "ngram:match=recent",
    "ngram:source=prompt",
    "suffix",
    "suffix:shared=true",
    "suffix:nodes=16",
    "copy",
    "recycling",
    "recycling:nodes=32",
    "recycling:nodes=32,shared=true",
    "hybrid:first=suffix,then=recycling",
)
QUESTIONS = (
    "Why is the sky blue?",
    "What should I look at when I buy a used bicycle?",
    "Tell me a short story about a lighthouse.",
    "How do I get better at remembering names?",
    "What is a good plan for a rainy Sunday with children?",
    "Explain to a ten-year-old what a bank does.",
    "Which three inventions changed farming most, and why?",
    "Write a letter to a neighbour about a noisy dog.",
)


class Figures(NamedTuple):
    """Of one drafter on one kind of text, pooled over its prompts."""

    tau: float
    kept: float | None  # of drafted tokens; None: nothing was drafted
    drafted: float  # tokens a round
    microseconds: float  # of processor time in drafting, per emitted token


class ProcessorWatch(Stopwatch):
    """A stopwatch of processor time."""

    @contextmanager
    def _on_host(self) -> Iterator[None]:
        began = time.process_time()
        try:
            yield
        finally:
            self._seconds += time.process_time() - began


def measure(cell: Cell, loaded: Loaded, prompts: Sequence[list[int]]) -> Figures:
    """All prompts by one drafter; some tokens of the first are made before, and not counted."""
    forget()
    rounds: list[Round] = []
    seconds = 0.0
    for number, prompt in enumerate([prompts[0], *prompts]):
        stand = LoadedStand(cell, loaded)
        stand.draft_watch = ProcessorWatch(torch.device("cpu"))
        own = list(
            make("decoders", cell.method.decoder, stand)(
                prompt,
                limits=Limits(cell.sampling.max_new_tokens if number else WARM, loaded.eos),
                warp=warp(cell),
                noise=PhiloxStream(cell.sampling.seed, str(number)),
                stop=StopStrings(loaded.tokenizer, prompt, ()),
            )
        )
        if number > 0:
            rounds += own
            seconds += stand.draft_watch.lap()
    emitted = sum(len(done.tokens) for done in rounds)
    drafted = sum(done.drafted for done in rounds)
    kept = sum(done.accepted for done in rounds) / drafted if drafted else None
    return Figures(emitted / len(rounds), kept, drafted / len(rounds), 1e6 * seconds / emitted)


def kinds_of_text(loaded: Loaded, count: int) -> dict[str, list[list[int]]]:
    """Kind -> prompts."""
    items = list(islice(news.items(0, "heldout"), 2 * count))
    articles = [item.document for item in items[:count]]
    if loaded.tokenizer.chat_template:
        ask = asking(loaded.tokenizer)
        copying = [ask(f"Repeat this text word for word:\n\n{text}") for text in articles]
        free = [ask(question) for question in QUESTIONS[:count]]
    else:
        copying = [2 * ids + ids[:16] for ids in (encode(loaded.tokenizer, t) for t in articles)]
        shown = [news.layout(items[i : i + 1], items[i + count].document) for i in range(count)]
        free = [encode(loaded.tokenizer, text)[:-60] for text in shown]
    return {"copying": copying, "code": stdlib_prompts(loaded, count), "free": free}


def asking(tokenizer: Any) -> Callable[[str], list[int]]:
    """A user's message -> the prompt."""

    def ask(text: str) -> list[int]:
        said = [{"role": "user", "content": text}]
        whole = tokenizer.apply_chat_template(said, add_generation_prompt=True, tokenize=False)
        ids: list[int] = tokenizer(whole, add_special_tokens=False)["input_ids"]
        return ids

    return ask


def read(file: Path, setting: dict[str, Any]) -> dict[str, dict[str, Figures]]:
    """What was measured before in the same setting: a run may be done in parts."""
    if not file.exists() or (before := json.loads(file.read_text()))["setting"] != setting:
        return {}
    rows = before["results"]
    return {
        name: {kind: Figures(**each) for kind, each in row.items()} for name, row in rows.items()
    }


def table(found: dict[str, dict[str, Figures]]) -> Iterator[str]:
    """Markdown: a row a drafter, of each kind of text tau, share kept, microseconds."""
    kinds = list(next(iter(found.values())))
    yield "| drafter | " + " | ".join(f"{kind}: tau | kept | us" for kind in kinds) + " |"
    yield "|---" * (1 + 3 * len(kinds)) + "|"
    for drafter, row in found.items():
        cells = []
        for each in row.values():
            kept = "" if each.kept is None else f"{each.kept:.2f}"
            cells.append(f"{each.tau:.2f} | {kept} | {each.microseconds:.0f}")
        yield f"| `{drafter}` | " + " | ".join(cells) + " |"


def main() -> None:
    """Run and write."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--target", default="nano")
    options.add_argument("--drafters", nargs="+", help="specs; default: all that need no training")
    options.add_argument("--k", type=int, default=6)
    options.add_argument("--temperature", type=float, default=0.0)
    options.add_argument("--prompts", type=int, default=6)
    options.add_argument("--tokens", type=int, default=96)
    options.add_argument("--out", type=Path)
    flags = options.parse_args()
    torch.set_num_threads(1)  # processor time is then the drafter's own

    with_model = ("model", "hybrid", "self") if flags.target == "nano" else ("self",)
    drafters = flags.drafters or [*RULES, *with_model]
    setting = {key: value for key, value in vars(flags).items() if key not in ("out", "drafters")}
    out = flags.out or ROOT / "results" / f"drafters-{Path(flags.target).name}.json"
    found = read(out, setting)
    shelf = Shelf(offline=True, threads=1)
    for drafter in drafters:
        asked = {"drafter": drafter, "target": flags.target, "k": flags.k}
        cell = resolve(
            make_cell(**asked, temperature=flags.temperature, max_new_tokens=flags.tokens)
        )
        loaded = shelf.load(cell)
        texts = kinds_of_text(loaded, flags.prompts)
        found[drafter] = {kind: measure(cell, loaded, own) for kind, own in texts.items()}
        rows = {name: {kind: f._asdict() for kind, f in row.items()} for name, row in found.items()}
        out.write_text(json.dumps({"setting": setting, "results": rows}, indent=1) + "\n")
        print(f"{drafter} ...", flush=True)
    print(*table(found), sep="\n")


if __name__ == "__main__":
    main()
