"""What is run and killed: a command, and what of its folder must be as without kills."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.distributed.compared import bare, traced
from tests.folders import byte_tokenizer, random_model, save

PROMPTS = 8
OF = ("bench", "traces", "texts")


@dataclass(frozen=True)
class Work:
    """A command of `sps`.

    Args:
        words: all but where it is done, and its folder.
        bare: of its folder, what no kill may change.
    """

    words: tuple[str, ...]
    bare: Callable[[Path], list[bytes]]

    def arguments(self, folder: Path, on: str) -> list[str]:
        """For a run in this folder; begun already, it is gone on with."""
        where = ("--threads", "1", "--on", on, "--out", str(folder))
        return [*self.words, *where, *(["--resume"] if folder.exists() else [])]


def work(of: str, place: Path) -> Work:
    """Over a tiny pair of models, which is saved in `place`."""
    target = str(save(place / "target", random_model(), byte_tokenizer()))
    draft = str(save(place / "draft", random_model(noise=0.1), byte_tokenizer()))
    if of == "texts":
        sizes = ("--count", "256", "--tokens", "8", "--steps", "1")
        rest = ("--evaluations", "1", "--cost-seconds", "0", "--layers", "1")
        return Work(("train", "draft", "--target", target, *sizes, *rest), texts)
    rows = ({"id": str(n), "prompt": f"one two three {n} one two"} for n in range(PROMPTS))
    prompts = place / "prompts.jsonl"
    prompts.write_text("\n".join(map(json.dumps, rows)))
    pair = ("--target", target, "--draft", draft, "--engine", "eager")
    sizes = ("-k", "2", "--samples", "2", "--max-new-tokens", "12", "--warmup", "0")
    more = ("--record", "trace") if of == "traces" else ()
    return Work(
        ("bench", f"jsonl:path={prompts}", *pair, *sizes, *more),
        lambda folder: bare(folder) + traced(folder),
    )


def texts(folder: Path) -> list[bytes]:
    """What the target wrote, line by line."""
    return (folder / "texts.jsonl").read_bytes().splitlines()
