"""transformers' `generate`, plain, assisted and under `generate_with`, on one pair.

    .venv/bin/python benchmarks/custom_generate.py --pair gpt2-large
    .venv/bin/python benchmarks/custom_generate.py --pair smollm2

Greedy texts of one prompt and of four at a time, the prefill included. Assisted generation takes
rows one after another, since it refuses several. SmolLM2 has no draft model here: transformers
drafts by prompt lookup, ours by suffixes. Results are kept by processor next to those of peers.py,
in results/peers.json and peers.md; a ratio is that of a method's time to ours on the same prompts.
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

import spsbench
from peers import WORK, Pair, find_pair, make_prompts
from spsbench.settings.models import fetched_folder
from timing import RESULTS, alternate, keep, milliseconds, ratio, seconds

BATCHES = (1, 4)
OURS = "generate_with"


def parse_flags() -> argparse.Namespace:
    """Read the command line."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--pair", default="gpt2-large", help="as of peers.py, or smollm2")
    options.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    options.add_argument("--k", type=int, default=4)
    options.add_argument("--tokens", type=int, default=48)
    options.add_argument("--prompt-tokens", type=int, default=64)
    options.add_argument("--repeats", type=int, default=7)
    options.add_argument("--engine", default="eager", help="of generate_with: eager or fast")
    options.add_argument("--work", type=Path, default=WORK, help="made models")
    return options.parse_args()


def load(folder: Path, flags: argparse.Namespace) -> Any:
    """Return the model in a folder, without a generation config of its own."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, flags.dtype))
    model.generation_config = GenerationConfig(
        num_assistant_tokens=flags.k,
        num_assistant_tokens_schedule="constant",
        assistant_confidence_threshold=0.0,
    )
    return model


def methods(
    flags: argparse.Namespace, target: Any, own: Any, draft: Any, own_draft: Any
) -> dict[str, Callable[[torch.Tensor], Any]]:
    """Return name -> a call that continues [B, L] ids, of models of transformers and `own` ones."""
    how: dict[str, Any] = {"max_new_tokens": flags.tokens, "do_sample": False, "pad_token_id": 0}
    drafts = {"prompt_lookup_num_tokens": flags.k} if draft is None else {"assistant_model": draft}
    drafter = {"drafter": "suffix"} if draft is None else {"assistant_model": own_draft}
    ours = spsbench.generate_with(engine=flags.engine, k=flags.k, **drafter)

    def assisted(ids: torch.Tensor) -> list[Any]:
        return [whole(target, **drafts)(row[None]) for row in ids]

    def whole(model: Any, **more: Any) -> Callable[[torch.Tensor], Any]:
        return lambda ids: model.generate(ids, attention_mask=torch.ones_like(ids), **how, **more)

    return {
        "generate": whole(target),
        "generate, assisted": assisted,
        OURS: whole(own, custom_generate=ours),
    }


def rows(
    calls: dict[str, Callable[[torch.Tensor], Any]],
    prompts: torch.Tensor,
    flags: argparse.Namespace,
) -> Iterator[dict[str, Any]]:
    """Yield a row of results for each batch and method."""
    for batch in BATCHES:
        timed = {n: partial(seconds, partial(call, prompts[:batch])) for n, call in calls.items()}
        times = alternate(timed, flags.repeats)
        for name, spent in times.items():
            each = [time / flags.tokens / batch for time in spent]
            yield {
                "engine": f"{name}, batch {batch}",
                "ms a token": milliseconds(each),
                "its time over ours": ratio(spent, times[OURS]),
            }


def main() -> None:
    """Make what is missing, run, and keep the results."""
    flags = parse_flags()
    if flags.pair == "smollm2":
        folder = fetched_folder("smollm2")
        pair, folders = Pair("smollm2", folder, folder, flags.work, random=False), [folder]
    else:
        pair = find_pair(flags.pair, 0, flags.work.resolve())
        folders = [pair.target, pair.draft]
    tokenizer = AutoTokenizer.from_pretrained(pair.target)
    texts = make_prompts(pair, max(BATCHES), 2 * flags.prompt_tokens)  # some lose tokens, read anew
    ids = torch.tensor([tokenizer.encode(text)[: flags.prompt_tokens] for text in texts])
    models = [load(folder, flags) for folder in folders for _ in range(2)]
    target, own, draft, own_draft = [*models, None, None][:4]
    calls = methods(flags, target, own, draft, own_draft)
    section = f"{flags.pair}, {flags.dtype}, inside transformers, {flags.engine}"
    keep(RESULTS / "peers", section, [*rows(calls, ids, flags)])


if __name__ == "__main__":
    main()
