"""`spsbench.bench`: run a task under several methods, into a run that can be resumed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from spsbench.hardware.memory import importing_libraries
from spsbench.messages import Say, ignore, lines_to
from spsbench.models.prepare import facts_of, note_default_drafters, prepare_access
from spsbench.settings.execution import Access, OutputFolder
from spsbench.settings.experiment import (
    BENCH,
    Experiment,
    ExperimentRequest,
    expand_tables,
    may_need_hub,
)
from spsbench.settings.grid import Sweep
from spsbench.settings.options import parse, takes

if TYPE_CHECKING:
    from typing import Unpack

    from spsbench import BenchOptions, Pair
    from spsbench.benchmark.conduct import Benchmark
    from spsbench.benchmark.estimate import RunProgress
    from spsbench.benchmark.run import Run


@takes(*BENCH)
def bench(
    task: str,
    *,
    pair: "Pair | None" = None,
    say: Say | None = None,
    watch: "Callable[[RunProgress], None]" = ignore,
    **options: "Unpack[BenchOptions]",
) -> "Run":
    """Run a task under auto-regressive and speculative sampling.

    `bench("xsum", k=range(1, 9), limit=40, target="nano")`: options are those of `sps bench`; a
    list makes a cell of each value. The run is on disk, survives a crash or kill, and is
    continued by `resume=True`.

    Args:
        pair: loaded models; None: the models are loaded.
        say: receives each message for the user; None: messages go to `logging` only.
        watch: progress callback; what it receives has `done` of `total`, and `str` has the words.

    Raises:
        SpsError: the message names the error and its remedy.
    """
    table, whole, place, access, workers = parse({"task": task, **options}, *BENCH)
    if pair is not None:
        access = pair.access
    with lines_to(say):
        request = plan_experiment([table], access, whole)

        name = request.parts[0].part.spec.short
        benchmark = conduct(name, place, access, pair, workers=workers, watch=watch)
        return benchmark.run(benchmark.resolve(request))


def plan_experiment(
    tables: Sequence[Sweep], access: Access, whole: Experiment = Experiment()
) -> ExperimentRequest:
    """Return the unresolved experiment of tables, after checks of the environment; no model loads.

    `whole` has what no table sets, with the threads of `access`. Logs which drafter a table has by
    default. Raises SpsError for invalid options and for what the environment lacks.
    """
    facts = facts_of(access)
    points = [table.points(facts) for table in tables]
    cells = [[point.request for point in of_table] for of_table in points]
    prepare_access([*chain(*cells)], access, any(map(may_need_hub, tables)))
    request = expand_tables(tables, facts, replace(whole, threads=access.threads), points)
    for table, of_table in zip(tables, cells, strict=True):
        note_default_drafters(of_table, table.axes)
    return request


def conduct(
    name: str, place: OutputFolder, access: Access, pair: "Pair | None" = None, **how: Any
) -> "Benchmark":
    """Return a benchmark that runs experiments in `place`, with the models of `pair` or its own.

    `name` begins the name of a run's folder if `place` has none; `how` are further fields of
    `Benchmark`: workers, watch, stop.
    """
    with importing_libraries():
        from spsbench.benchmark.conduct import Benchmark
        from spsbench.models.cache import ModelCache

    model_cache = pair.model_cache if pair is not None else ModelCache(access)
    return Benchmark(place=place, access=access, model_cache=model_cache, name=name, **how)
