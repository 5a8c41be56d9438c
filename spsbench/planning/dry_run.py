"""The outlook of a plan: generations and tokens by phase, without loading a model."""

from collections.abc import Iterator

import torch

from spsbench.benchmark.models import measured as measured_bandwidth
from spsbench.hardware.files import clock
from spsbench.metrics.surfaces import FEWEST_TURNS
from spsbench.models.folder import local_folder
from spsbench.planning.candidates import by_draft, candidate_of, replayable
from spsbench.planning.measure import MOST_TURNS
from spsbench.planning.plan_folder import prompts_of
from spsbench.planning.planner import MOST_UNPREDICTED, Planner


def phases_of(planner: Planner) -> Iterator[str]:
    """Yield a line for each phase of a plan, then the sum; writes nothing and loads no model.

    Raises:
        DataError: no prompts.
    """
    planning, cells = planner.planning, planner.cells
    held_back = planning.held_back if planning.confirm else 0
    prompts = prompts_of(
        planner.spec,
        planner.task,
        lambda prompt: True,
        planning.limit,
        held_back,
        planning.sample_seed,
    )
    tokens = cells[0].max_new_tokens
    texts = 0 if planning.trace else len(prompts.traced)
    drafts = ", ".join(by_draft(cells))
    if planning.trace:
        yield f"texts and traces: given ({', '.join(planning.trace)})"
    else:
        target = cells[0].target
        yield f"texts: {texts} generations of up to {tokens} tokens of {target}"
        yield f"traces: {drafts}, along {texts} texts each"
    if planning.costs is not None:
        yield f"costs: given ({planning.costs})"
    else:
        yield (
            f"costs: {FEWEST_TURNS} to {MOST_TURNS} turns, about {clock(planning.cost_seconds)} or "
            "as long as the fewest turns take"
        )
    foretold = [cell for cell in cells if replayable(cell)]
    yield f"replay: {len(foretold)} of {len(cells)} candidates are predicted"
    real = 0
    if planning.unmeasured:
        yield f"real rounds: none, since {planning.unmeasured}"
    else:
        methods = {candidate_of(cell).method for cell in cells}
        predicted = {candidate_of(cell).method for cell in foretold}
        measured = min(planning.confirm, len(predicted))
        measured += min(MOST_UNPREDICTED, len(methods - predicted))
        real = (measured + 1) * len(prompts.held_back)
        yield (
            f"real rounds: {measured} candidates and ArS over {len(prompts.held_back)} held back, "
            f"{real} generations of up to {tokens} tokens"
        )
    yield f"in all {texts + real} generations, {(texts + real) * tokens:,} tokens at most"
    plain = cells[0].target
    folder = None if plain.random or plain.device != "cpu" else local_folder(plain.id)
    if folder is not None and texts + real:
        weights = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        speed = measured_bandwidth(torch.get_num_threads()).bandwidth
        seconds = (texts + real) * tokens * weights / speed
        yield (
            f"about {clock(seconds)} at least, if every token reads {weights / 1e6:,.0f} MB of "
            f"weights at {speed / 1e9:.1f} GB/s; sps bench --dry-run times a few tokens"
        )
