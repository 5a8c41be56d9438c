"""Models and tokenizers in plans from logs: drafts of a model, and runs as logs."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spsbench.benchmark.run_prompts import RunPrompts, relocate_models
from spsbench.errors import DataError
from spsbench.loop.processors import TextProcessors
from spsbench.loop.sampling import Warp
from spsbench.loop.types import LM, Guarantee
from spsbench.methods.processors import processors_of
from spsbench.methods.resolve import resolve
from spsbench.metrics.intervals import Floats
from spsbench.models.cache import ModelCache
from spsbench.planning.logs.entries import Request
from spsbench.plugins import make
from spsbench.settings.cell import Cell, WarpSettings
from spsbench.settings.execution import Access
from spsbench.settings.grid import make_request
from spsbench.settings.processors import Processors
from spsbench.store.manifest import Manifest
from spsbench.store.records import records
from spsbench.store.traces import read_traces

PIECE = 256  # positions whose distributions are in memory at a time


@dataclass(frozen=True)
class DraftModel:
    """A draft model that reads logged ids, so that its vocabulary must be the target's."""

    name: str
    lm: LM
    vocab_size: int
    tokenizer: Any
    processors: Processors | None = None  # under which it drafts

    @classmethod
    def load(cls, name: str, options: dict[str, Any], access: Access) -> "DraftModel":
        """Load a model by name, as a plain target.

        `options` are those of cells: `dtype`, `device`, `weights`, `engine`, logits processors ...
        SpsError: no model that can be loaded.
        """
        plain = {"target": name, "draft": None, "drafter": "none", "k": 0}
        cell = resolve(make_request(**{**options, **plain}))
        loaded = ModelCache(access).load(cell)
        engine = make("engines", cell.target.engine)
        session = engine.session(loaded.target, vocab_size=loaded.vocab_size)
        return cls(name, session, loaded.vocab_size, loaded.tokenizer, processors_of(cell, loaded))

    def fits(self, prompt: Sequence[int], answer: Sequence[int]) -> str:
        """Return why a text cannot be read: ids, length or no prompt; empty if it can."""
        length = len(prompt) + len(answer)
        if max(*prompt[:1], *answer, max(prompt, default=0)) >= self.vocab_size:
            return f"token ids beyond the {self.vocab_size:,} of {self.name}"
        if self.lm.limit is not None and length > self.lm.limit:
            return f"longer than the context of {self.name}"
        if not prompt:
            return f"no prompt, which {self.name} needs"
        return ""

    def along(
        self, prompt: Sequence[int], answer: Sequence[int], warp: WarpSettings
    ) -> tuple[Floats, NDArray[np.bool_]]:
        """Return [L] p of the answer's tokens under `warp`, and [L] whether each is the likeliest.

        `prompt` and `answer` have a token or more each. The session is emptied, then fed with both
        in pieces. The model's logits processors, if any, apply to both results, `warp` to p alone.
        """
        warped = Warp(**asdict(warp))
        text = torch.tensor([*prompt, *answer], dtype=torch.int64)
        first = len(prompt)
        by = None if self.processors is None else TextProcessors(self.processors, first)
        self.lm.commit(0)
        if first > 1:
            self.lm.append(text[: first - 1], keep=0)
        p, agrees = [], []
        for begin in range(first, len(text), PIECE):
            end = min(begin + PIECE, len(text))
            logits = self.lm.append(text[begin - 1 : end - 1], keep=end - begin).logits
            if by is not None:
                logits = by.along(logits, text[: end - 1].tolist())
            tokens = text[begin:end].to(logits.device)
            p.append(warped(logits).gather(1, tokens[:, None])[:, 0].double().cpu().numpy())
            agrees.append((logits.argmax(-1) == tokens).cpu().numpy())
        return np.concatenate(p), np.concatenate(agrees)


def run_requests(folder: Path, access: Access) -> Iterator[Request]:
    """Yield a run's texts of the target's distribution: of all plain cells, else of all exact ones.

    Prompts are made again by the run's task and the target's tokenizer. Probabilities are those of
    the run's own sampling, after temperature and cuts, where the run traced them. Failed and empty
    texts are left out. DataError: a run without such texts, or without a tokenizer. SpsError: a
    run, a task or a tokenizer that cannot be used.
    """
    manifest = Manifest.load(folder)
    cells = manifest.configurations(folder)
    chosen = {name: cell for name, cell in cells.items() if cell.k == 0} or {
        name: cell for name, cell in cells.items() if is_exact(cell)
    }
    if not chosen:
        raise DataError(
            f"no texts of the target's own distribution ({folder}): expected plain sampling, an "
            "exact verifier, or texts of a server at temperature 0, whose rule is unknown. Record "
            "`method` ars"
        )
    models = ModelCache(access)

    def outline(cell: Cell) -> Any:
        return models.outline(relocate_models(cell, folder))

    if any(outline(cell).tokenizer is None for cell in chosen.values()):
        raise DataError(
            f"a run of a server without a model here ({folder}): expected a tokenizer for its "
            "prompts. Record it with `target`"
        )
    prompts = RunPrompts(manifest, chosen, outline, folder)
    traces = read_traces([folder]).texts if any(folder.glob("traces-*.jsonl")) else {}
    for record in records(folder):
        cell = chosen.get(record.cell)
        if cell is None or record.error is not None or not record.tokens:
            continue
        text = traces.get(record.key)
        yield Request(
            id=f"{record.sample}/{record.repeat}",
            prompt=prompts(cell, record),
            answer=record.tokens,
            probabilities=None if text is None else np.asarray(text.q, np.float64),
            temperature=cell.temperature,
            group=str(cell.task),
            budget=cell.max_new_tokens,
            first=int(cell.elsewhere),
            processed=tuple(cell.processors.changed),
        )


def is_exact(cell: Cell) -> bool:
    """Return whether the texts of a cell have the target's own distribution."""
    if cell.elsewhere:  # the engine's verifier is unknown
        return cell.temperature == 0
    is_greedy_exact = cell.guarantee == Guarantee.GREEDY.value and cell.temperature == 0
    return cell.guarantee == Guarantee.EXACT.value or is_greedy_exact
