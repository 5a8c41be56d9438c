"""A run of `sps bench` as a log: its texts, and the target's probabilities where it traced them."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from spsbench.benchmark.run_prompts import RunPrompts
from spsbench.errors import DataError
from spsbench.loop.types import Guarantee
from spsbench.models.cache import ModelCache
from spsbench.planning.logs.formats import Request
from spsbench.plugins import plug_in
from spsbench.settings.cell import Cell
from spsbench.settings.execution import Access
from spsbench.store.manifest import Manifest
from spsbench.store.records import records
from spsbench.store.traces import read_traces


def run_requests(folder: Path, access: Access) -> Iterator[Request]:
    """Yield the texts of a run whose law is the target's: plain ones, or those of exact rules.

    Prompts are made again by the run's task and the target's tokenizer. Probabilities are those of
    the run's own law, after temperature and cuts, so that they need no bounds.

    Raises:
        SpsError: a run, a task or a tokenizer that cannot be used.
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
    if any(models.outline(cell).tokenizer is None for cell in chosen.values()):
        raise DataError(
            f"a run of a server without a model here ({folder}): expected a tokenizer for its "
            "prompts. Record it with `target`"
        )
    prompts = RunPrompts(manifest, chosen, models.outline, folder)
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
        )


def is_exact(cell: Cell) -> bool:
    """Return whether the texts of a cell have the target's own distribution."""
    if cell.elsewhere:  # the engine's verifier is unknown
        return cell.temperature == 0
    guarantee = plug_in("verifiers", cell.verifier).guarantee
    return guarantee is Guarantee.EXACT or (guarantee is Guarantee.GREEDY and cell.temperature == 0)
