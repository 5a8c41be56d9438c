"""Pairs: a target and its drafter, loaded once, with generate, compare, bench, plan, verify."""

from collections.abc import Callable, Sequence
from typing import Any, Unpack

from spsbench.api.loaded import LoadedPair
from spsbench.api.run import Run
from spsbench.api.text import Prompt
from spsbench.api.verify import Held
from spsbench.benchmark.estimate import RunProgress
from spsbench.messages import Say, ignore
from spsbench.methods.layer_search import Skip
from spsbench.planning.report import Planned
from spsbench.settings.keywords import BenchOptions, CellOptions, PlanOptions, VerifyOptions


class Pair(LoadedPair):
    """A target and its drafter, as `spsbench.load` makes them: all that may be asked of a pair."""

    def bench(
        self,
        task: str,
        *,
        say: Say | None = None,
        watch: Callable[[RunProgress], None] = ignore,
        **options: Unpack[BenchOptions],
    ) -> Run:
        """Run a task under ArS and SpS into a folder, or resume the run: see `spsbench.bench`."""
        from spsbench.api.bench import bench

        run: Run = bench(task, pair=self, say=say, watch=watch, **self._under(options))
        return run

    def plan(
        self,
        task: str | None = None,
        *,
        watch: Callable[[Any], None] = ignore,
        stop: Callable[[], bool] = lambda: False,
        **options: Unpack[PlanOptions],
    ) -> Planned | None:
        """Predict whether speculation pays, with which drafter and K, and time the best.

        Args:
            task: source of the prompts; `prompts` names a file instead.
            options: options of `sps plan`; `draft`, `drafter`, `verifier`, `schedule` may be lists.
            watch: progress callback.
            stop: polled; true ends the plan early.

        Returns:
            The plan's `answer`, `command` and `report`; None after a stop.
        """
        from spsbench.api.plan import plan

        base = {n: v for n, v in self._options.items() if n not in ("k", "schedule", "verifier")}
        given = {name: value for name, value in options.items() if value is not None}
        callbacks: dict[str, Any] = {"say": self._say, "watch": watch, "stop": stop}
        made: Planned | None = plan(task, pair=self, **callbacks, **base | given)
        return made

    def verify(self, *, say: Say | None = None, **options: Unpack[VerifyOptions]) -> Held:
        """Audit the pair until a bias is found, or a bias of the given size is ruled out.

        Args:
            options: `bias`, `level`, `task`, `prompts`, `max_tokens`, `workers`, options of cells.
        """
        from spsbench.api.verify import verify_pair

        return verify_pair(self, say=say, **options)

    def spare_layers(
        self,
        prompts: Sequence[Prompt],
        *,
        sublayers: bool = False,
        candidates: int = 4,
        **options: Unpack[CellOptions],
    ) -> list[Skip]:
        """Search for the layers that the target can skip to draft for itself (`--drafter self`).

        The target continues each prompt; every candidate set then costs one pass over these texts.

        Args:
            prompts: prompts like those of the later use.
            sublayers: skip attention and mlp separately, not whole layers.
            candidates: number of parts tried for each set.
            options: options of this call; `max_new_tokens` is the length of each text.

        Returns:
            The best set found of each size: its `alpha`, `cost`, `gain` and, as text, the spec of
            the drafter. `methods.layer_search.best` picks one.
        """
        from spsbench.api.costs import spare_layers

        return spare_layers(self, prompts, sublayers=sublayers, candidates=candidates, **options)
