"""Grids: options of cells, each with the values it takes; one configuration is a grid of one.

A `Sweep` is the grid of a task: one part of an experiment file, or the flags of `sps bench`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Annotated, Any, ClassVar, NamedTuple

from spsbench.errors import UsageError
from spsbench.registry import built_in
from spsbench.settings.cell import (
    ELSEWHERE,
    SAMPLING_FIELDS,
    SEED_MAX,
    WARP,
    CellRequest,
    Configuration,
)
from spsbench.settings.cell_from_options import DRAFTING, OF_CELL, chat_sampling, fill, own_copy
from spsbench.settings.constraint import check_ends
from spsbench.settings.models import NOTHING, ModelFacts, ModelSpec
from spsbench.settings.options import (
    RUN,
    SIZE,
    WORK,
    Option,
    OptionSpec,
    between,
    name_file,
    one_of,
    parse,
    reads_numbers,
    words,
)
from spsbench.settings.task import Task
from spsbench.spec import K_MAX, Spec

METHODS = ("ars", "sps")
RECORDED = ("counts", "laws", "trace")  # `laws` are for audits, a trace for `sps plan`
MAX_SAMPLES = 10**9
MAX_ROWS = 1024  # rows of a batch
MAX_CELLS = 10_000  # cells of one table
ChatTask = Callable[[ModelSpec], Task | None]
"""Returns the task as a model is asked it in its chat template; None: the model gets plain text."""
PLACES = {n: i for i, n in enumerate(("setting", *SAMPLING_FIELDS, "", "batch", "seed"))}
"""Place of an axis, the slowest first; "": of any other. Drafting turns faster still."""


@dataclass(frozen=True)
class Grid:
    """Every combination of some values; an option that is left out has its default."""

    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # option -> its values
    baseline: bool = False  # with the cell of K = 0 of each combination
    speculative: bool = True  # with the others

    AXES: ClassVar[Mapping[str, OptionSpec]] = OF_CELL

    @property
    def given(self) -> dict[str, Any]:
        """Return each option with its first value: the options of a grid of one."""
        return {name: values[0] for name, values in self.axes.items()}

    def one(self, facts: ModelFacts = NOTHING) -> CellRequest:
        """Return the request of a grid of one."""
        return fill(self.given, facts)

    def points(self) -> Iterator[dict[str, Any]]:
        """Yield each request's options: sampling turns slowest, drafting fastest, K = 0 first."""
        drafting = {n: self.axes[n] for n in ("k", *DRAFTING) if n in self.axes}
        others = [name for name in self.axes if name not in drafting]
        others.sort(key=lambda name: PLACES.get(name, PLACES[""]))
        for point in all_choices({name: self.axes[name] for name in others}):
            for method in self._methods(drafting):
                yield self._drafting_here(point, method)

    def idle(self) -> Iterator[str]:
        """Yield a sentence for each rule of the grid by which options named here change nothing."""
        draws = (*WARP[1:], "seed")
        rules = (
            (not self.speculative, "`method` ars", ("k", *DRAFTING), "nothing is drafted"),
            (self.axes.get("k") == (0,), "`k` 0", DRAFTING, "no draft is loaded"),
            (self.axes.get("temperature") == (0,), "`temperature` 0", draws, "nothing is drawn"),
        )
        for applies, beside, options, why in rules:
            if named := [f"`{name}`" for name in options if applies and name in self.axes]:
                yield f"{', '.join(named)} with {beside}: no effect, {why}"

    def under(self, changes: Mapping[str, tuple[Any, ...]]) -> "Grid":
        """Return the grid with other values; a `k` replaces a schedule, and a schedule a `k`."""
        other = {"k": "schedule", "schedule": "k"}
        dropped = {other[name] for name in changes if name in other} - changes.keys()
        axes = {name: values for name, values in self.axes.items() if name not in dropped}
        return replace(self, axes={**axes, **changes})

    def without(self, name: str) -> "Grid":
        """Return the grid without an option, and without those that begin with its name and `_`."""
        left = (n for n in self.axes if n != name and not n.startswith(f"{name}_"))
        return replace(self, axes={n: self.axes[n] for n in left})

    def _methods(self, drafting: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
        """Yield drafting options: K = 0 if `baseline`; combinations of `drafting` if `speculative`.

        Among several drafters one that is the target's own copy is without their `draft`.
        """
        if self.baseline:
            yield {"k": 0}
        if not self.speculative:
            return
        for method in all_choices(drafting):
            if len(drafting.get("drafter", ())) > 1 and own_copy(method["drafter"]):
                method.pop("draft", None)  # it is for the other drafters
            yield method

    def _drafting_here(self, point: dict[str, Any], method: dict[str, Any]) -> dict[str, Any]:
        """Return `point` with the options of `method`; a decoder of `ELSEWHERE` gets only `k`.

        The others are for other decoders of the grid; without such they stay, to be refused later.
        """
        decoders: tuple[Spec, ...] = self.axes.get("decoder", ())
        some_are_ours = any(decoder.name not in ELSEWHERE for decoder in decoders)
        if some_are_ours and point["decoder"].name in ELSEWHERE:
            method = {name: value for name, value in method.items() if name == "k"}
        return point | method


def all_choices(lists: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """Yield every choice of one value from each list, by name, the last list turning fastest."""
    return (dict(zip(lists, values, strict=True)) for values in product(*lists.values()))


def make_request(**options: Any) -> CellRequest:
    """Make the request that these options describe; None counts as not given."""
    (grid,) = parse(options, Grid)
    return grid.one()  # type: ignore[no-any-return]


def on_off(value: Any, name: str) -> Any:
    """Return `on` for True and `off` for False; any other value as it is."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


SampleSeed = Annotated[
    int | None,
    Option(
        SIZE, between(0, SEED_MAX, "0..2^64-1"), default_text="none: the first prompts of the data"
    ),
]


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """One table of an experiment file, or the flags of `sps bench`.

    Args:
        data: Data of the task: auto, hub, mini (bundled) or a path.
        k: Tokens drafted per round: 4, 1..8 or 2,4,6.
        method: Methods: ars (auto-regressive), sps (speculative sampling).
        batch: Texts at a time, in the same passes or as requests to a server: 1,2,4,8.
        continuous: Continuous batching: a finished text makes room for the next.
        setting: Sampling settings of the paper: nucleus,greedy.
        limit: Number of prompts.
        sample_seed: Seed that draws the prompts from all, each group in proportion.
        samples: Samples per prompt.
        repeats: Timed repeats of each sample.
        seed: Random seed, or several such as 0..4; reports show the spread over them.
        chat: Put prompts into the model's chat template, and sample as its generation_config says:
            auto (if it has one), on or off.
        system: System message, for prompts in a chat template.
        record: What to record: counts, laws (distributions p and q, for audits) or trace (for
            sps plan).
    """

    task: Annotated[
        str, Option(WORK, help=f"Task: {built_in('tasks')}, or yours: FILE.py:CLASS.")
    ] = ""
    data: Annotated[str | None, Option(WORK)] = None
    k: Annotated[
        tuple[int, ...] | None,
        Option(WORK, flags=("k",), default_text="4", parse=reads_numbers(0, K_MAX)),
    ] = None
    method: Annotated[
        tuple[str, ...], Option(WORK, one_of(*METHODS), default_text="ars,sps", parse=words)
    ] = METHODS
    batch: Annotated[
        tuple[int, ...], Option(WORK, default_text="1", parse=reads_numbers(1, MAX_ROWS))
    ] = (1,)
    continuous: Annotated[bool, Option(WORK)] = False
    setting: Annotated[tuple[str, ...], Option(WORK, one_of("nucleus", "greedy"), parse=words)] = ()
    limit: Annotated[int | None, Option(SIZE, between(1, MAX_SAMPLES))] = None
    sample_seed: SampleSeed = None
    samples: Annotated[int, Option(SIZE, between(1, MAX_SAMPLES))] = 1
    repeats: Annotated[int, Option(SIZE, between(1, MAX_SAMPLES))] = 1
    seed: Annotated[
        tuple[int, ...], Option(SIZE, default_text="0", parse=reads_numbers(0, SEED_MAX))
    ] = (0,)
    chat: Annotated[str, Option(WORK, one_of("auto", "on", "off"), parse=on_off)] = "auto"
    system: Annotated[str | None, Option(WORK)] = None
    record: Annotated[str, Option(RUN, one_of(*RECORDED))] = "counts"
    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # option -> its values
    where: str = ""  # the file that names the values
    AXES: ClassVar[Mapping[str, OptionSpec]] = {
        name: replace(setting, many=setting.kind is not tuple)
        for name, setting in OF_CELL.items()
        if name not in ("k", "seed")
    }

    def grid(self) -> Grid:
        """Return the requests as a grid; UsageError: `setting` and its options, or no new token."""
        if self.setting and self.axes.keys() & {"temperature", "top_p"}:
            raise UsageError("`setting` with `temperature` or `top_p`: expected one of the two")
        if 0 in self.axes.get("max_new_tokens", ()):
            raise UsageError("`max_new_tokens` is 0: expected 1 or more")
        axes = {name: getattr(self, name) or () for name in ("setting", "k", "batch", "seed")}
        axes = {name: values for name, values in axes.items() if values}
        return Grid({**axes, **self.axes}, "ars" in self.method, "sps" in self.method)

    def idle(self) -> Iterator[str]:
        """Yield the sentences of `Grid.idle`, and of texts that are equal or wait for no other."""
        grid = self.grid()
        yield from (grid if {*self.seed} - {0} else grid.without("seed")).idle()  # 0: the default
        if self.samples > 1 and grid.axes.get("temperature") == (0,):
            yield "`samples` with `temperature` 0: no effect, all texts of a prompt are equal"
        if self.continuous and {*self.batch} <= {1}:
            yield "`continuous` with `batch` 1: no effect, no text waits for another"

    def points(self, facts: ModelFacts = NOTHING) -> "list[GridPoint]":
        """Return the different combinations of options, each with the request that it makes.

        Settings come first, then models, engines, decoders, then drafting; the task comes later.
        UsageError, which names the file: contradictory options, or over `MAX_CELLS` different ones.
        """
        points: dict[tuple[Any, CellRequest], GridPoint] = {}
        with name_file(self.where):
            for options in self.grid().points():
                setting = options.pop("setting", None)
                request = fill(options, facts)
                points.setdefault((setting, request), GridPoint(options, request, setting))
                if len(points) > MAX_CELLS:
                    raise UsageError(
                        f"more than {MAX_CELLS:,} cells of {self.task}: expected fewer. "
                        "Shorten the lists of options"
                    )
        return list(points.values())

    def request(
        self, point: "GridPoint", spec: Spec, task: Task, chat_task: ChatTask, facts: ModelFacts
    ) -> CellRequest:
        """Return the request of a point with its task; UsageError: its decoder cannot do that.

        Options that the user named stay. Prompts, stop strings, length and, for drafts, verifier
        are the task's; sampling is that of `setting`, without one in a chat the model's. `spec` and
        `task` are the table's; `chat_task` returns the task for models that are asked in their chat
        template, in place of `task`, and `facts` their sampling. `record` laws is an argument of
        the decoder.
        """
        options, request, setting = point
        asked_in_chat = chat_task(request.target)
        task, chat = asked_in_chat or task, asked_in_chat is not None
        named = {"nucleus": task.nucleus, "greedy": task.greedy}[setting] if setting else {}
        sampling = chat_sampling(request.target, facts, options) if chat and not setting else {}
        ends = {} if options.get("ignore_eos") else {"stop": task.stop}  # {}: texts of full length
        usual = {**sampling, "max_new_tokens": task.max_new_tokens, **ends, **named}
        request = request.but(
            **{name: value for name, value in usual.items() if name not in options},
            task=spec,
            prompt_version=task.prompt_version,
            chat=chat,
            system=(self.system or "") if chat else "",
            continuous=self.continuous and request.batch > 1,
        )
        if task.verifier and request.k != 0 and not request.elsewhere and "verifier" not in options:
            request = request.but(verifier=Spec.parse(task.verifier))
        if self.record == "laws":
            decoder = request.decoder
            if not request.own_loop:
                raise UsageError(
                    f"`record` laws with `decoder` {decoder}: expected native, which records them"
                )
            request = request.but(decoder=replace(decoder, args=(*decoder.args, ("laws", True))))
        check_work(request, spec, task, self.record)
        return request


class GridPoint(NamedTuple):
    """The options of a combination, the request that they make without its task, and `setting`."""

    options: Mapping[str, Any]
    request: CellRequest
    setting: str | None


def check_work(cell: CellRequest, spec: Spec, task: Task, record: str) -> None:
    """Raise UsageError for a request whose decoder cannot do its task, recording or batch."""
    if task.constrained:
        where = f"json_schema in the rows of {spec.name}"
        check_ends(cell, where)
        if not cell.own_loop:
            raise UsageError(
                f"{where} with `decoder` {cell.decoder}: expected native. Leave one out"
            )
        if cell.ranks > 1:
            raise UsageError(f"{where} with several ranks: expected one")
    if record == "trace" and (task.constrained or cell.constrained):
        raise UsageError(
            "`record` trace with a constraint: expected counts or laws, since a plan forecasts "
            "free texts. Leave one out"
        )
    if cell.batch > 1 and not (cell.own_loop or cell.on_server):
        raise UsageError(
            f"`batch` {cell.batch} with `decoder` {cell.decoder}: expected native, or a "
            "server that takes several requests at a time. Leave one out"
        )


def lacks_baseline(cell: Configuration) -> bool:
    """Return whether the cell is on a server without a `baseline`, which does not speculate."""
    return cell.on_server and "baseline" not in dict(cell.decoder.args)
