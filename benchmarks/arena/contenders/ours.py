"""Our own loop over one of our engines, by its name in the registry."""

from collections.abc import Sequence
from typing import Any

import torch

from arena.bandwidth import SIZE, reader
from arena.contenders.contender import Contender, Setting, Turn, alternate, convert, fastest_threads
from spsbench.benchmark.generation import Generation
from spsbench.methods.build import build
from spsbench.methods.resolve import resolve
from spsbench.models.cache import Loaded, ModelCache
from spsbench.settings.cell import Cell
from spsbench.settings.cell_from_options import make_cell
from spsbench.settings.execution import Access
from spsbench.settings.models import CHECKPOINT

__all__ = ["Ours", "convert"]

CHOOSES_THREADS = ("fast",)  # engines that measure the thread count themselves


class Ours(Contender):
    """`spsbench` with the engine `spec` for target and draft."""

    def __init__(self, spec: str) -> None:
        self._spec = spec

    def load(self, setting: Setting) -> None:
        """Both models, by the way that `sps generate` takes."""
        torch.set_num_threads(setting.threads or setting.cores)
        self._cell = resolve(
            make_cell(
                target=setting.target,
                draft=setting.draft,
                engine=self._spec,
                k=setting.k,
                max_new_tokens=setting.context,
                temperature=setting.temperature,
                dtype=setting.dtype,
                weights=setting.weights or CHECKPOINT,
                ignore_eos=True,
            )
        )
        self._choices: dict[str, Any] = {}
        model_cache = ModelCache(
            Access(offline=True, threads=setting.threads), choices=self._choices
        )
        self._loaded: Loaded = model_cache.load(self._cell)
        self._setting = setting

    def settle(self) -> None:
        """Take the thread count with the quickest single-token pass, unless the engine does it."""
        if self._setting.threads or self._spec.partition(":")[0] in CHOOSES_THREADS:
            return
        target = build(self._cell, self._loaded).decoder.target
        target.append(torch.arange(16), keep=0)
        probe = torch.arange(1)
        fastest_threads(
            range(1, self._setting.cores + 1),
            torch.set_num_threads,
            lambda: target.append(probe, keep=1),
        )

    def arms(self) -> Sequence[str]:
        """ArS and SpS."""
        return ("ars", "sps")

    def generate(self, arm: str, prompt: list[int], tokens: int) -> Turn:
        """One generation of `spsbench`, whose prefill is in no round."""
        cell = self._cell_of(arm).but(max_new_tokens=tokens)
        generation = Generation(cell, self._loaded, prompt)
        for _ in generation:
            pass
        rounds = generation.record.rounds
        parts = {
            "prefill": generation.record.prefill_seconds,
            "drafting": sum(r.draft_seconds for r in rounds),
            "drafted": sum(r.drafted for r in rounds),
            "target": sum(r.target_seconds for r in rounds),
            "rounds": sum(r.seconds for r in rounds),
        }
        return Turn(generation.record.tokens, [(r.emitted, r.seconds) for r in rounds], parts)

    def _cell_of(self, arm: str) -> Cell:
        if arm == "sps":
            return self._cell
        return resolve(self._cell.auto_regressive)

    def steps(self, prompt: list[int], repeats: int) -> dict[str, list[float]]:
        """Passes with the rewind that belongs to each; one draft step from a round's share."""
        target = build(self._cell_of("ars"), self._loaded).decoder.target
        target.commit(0)
        target.append(torch.tensor(prompt), keep=0)
        length = target.length

        def score(count: int) -> None:
            target.append(torch.tensor(prompt[:count]), keep=count)
            target.commit(length)

        k = self._cell.k or 0
        times = alternate(repeats, one=lambda: score(1), block=lambda: score(k + 1), read=reader())
        beside = [SIZE / seconds for seconds in times.pop("read")]
        drafting = self.generate("sps", prompt, 4 * (k + 1)).parts
        return {**times, "beside": beside, "draft": [drafting["drafting"] / drafting["drafted"]]}

    def notes(self) -> dict[str, Any]:
        """Threads, versions, and what the engine says of itself."""
        import transformers

        return {
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "choices": {name: str(choice) for name, choice in self._choices.items()},
        }
