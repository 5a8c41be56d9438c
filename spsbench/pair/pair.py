"""A pair: a target and its drafter, loaded once, with generate, compare, bench, plan, verify."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast, overload

from transformers import PreTrainedModel

from spsbench.audit.verify import Held, verify_pair
from spsbench.benchmark.bench import bench
from spsbench.benchmark.estimate import RunProgress
from spsbench.benchmark.models import model_digests
from spsbench.benchmark.run import Run
from spsbench.engines.eager import context_of
from spsbench.engines.session.engine_config import engine_config_of
from spsbench.engines.session.masks import windows_of
from spsbench.errors import BatchError, SpsError, UsageError, first_line
from spsbench.generation import Generation, Show, check_cache, run_both
from spsbench.hardware.contention import read_clocks
from spsbench.hardware.contention import was_disturbed as is_loaded
from spsbench.loop.batch import Batch
from spsbench.loop.drafter_context import Weights
from spsbench.loop.text import Piece
from spsbench.messages import Say, ignore, lines_to, no_lines
from spsbench.methods.build import load_cell, use_threads
from spsbench.methods.measured_costs import learn_costs
from spsbench.methods.resolve import check_weights, plan_of, resolve
from spsbench.methods.round_costs import asks_for_costs, with_costs
from spsbench.models.cache import Loaded, ModelCache, pair_warnings, stop_warnings
from spsbench.models.prompts import Prompt, fit_prompt, ids_of, is_chat, prompts_in_batch
from spsbench.models.tokenizers import markup_note
from spsbench.pair.text import Comparison, Text, compare_texts, make_text
from spsbench.planning.plan import plan
from spsbench.planning.report import Planned
from spsbench.settings.cell import DISTRIBUTION, Cell, CellRequest
from spsbench.settings.cell_from_options import (
    USUAL_ENGINE,
    chat_sampling,
    describe_defaults,
    own_copy,
)
from spsbench.settings.commands import PLAN, AuditOptions
from spsbench.settings.execution import Access
from spsbench.settings.experiment import BENCH
from spsbench.settings.grid import Grid
from spsbench.settings.models import ModelFacts, ModelSpec
from spsbench.settings.options import parse, takes
from spsbench.spec import Spec

if TYPE_CHECKING:
    from typing import Unpack

    from spsbench import BenchOptions, CallOptions, PlanOptions, VerifyOptions

log = logging.getLogger(__name__)


class Pair:
    """A target and its drafter, as `spsbench.load` makes them.

    Every method takes the options of `load` again and changes them for that call; models that are
    loaded already are not loaded anew. `request` is what `grid` asks for, the options that were
    given, each with one value; `access` has download and loading options of models, `facts` what
    files say of models; `say` receives each message for the user, of every call.
    """

    def __init__(
        self,
        request: CellRequest,
        grid: Grid,
        access: Access,
        facts: ModelFacts,
        say: Say | None = None,
    ) -> None:
        self._grid, self.access, self._facts, self._say = grid, access, facts, say
        use_threads(access.threads)
        self.model_cache = ModelCache(access)
        self.cell = resolve(request, self.model_cache.vocabularies)
        self.loaded = load_cell(self.cell, access, self.model_cache)
        if asks_for_costs(request):
            learn_costs(request, self.loaded)
            self.cell = self.cell.but(schedule=with_costs(request).schedule)
        self._logged: set[str] = set()
        self._log_notes(chat=True)

    def __repr__(self) -> str:
        models = ", ".join(f"{model}" for model in self.cell.models)
        return f"<{type(self).__name__} {models}: {self.cell.noise_key}>"

    @overload
    def generate(  # type: ignore[overload-overlap]  # an empty list is of both
        self,
        prompt: Prompt,
        *,
        chat: bool = False,
        system: str | None = None,
        truncate: bool = False,
        batch: int | None = None,
        **options: "Unpack[CallOptions]",
    ) -> Text: ...

    @overload
    def generate(
        self,
        prompt: Sequence[Prompt],
        *,
        chat: bool = False,
        system: str | None = None,
        truncate: bool = False,
        batch: int | None = None,
        **options: "Unpack[CallOptions]",
    ) -> list[Text]: ...

    @takes(Grid)
    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        *,
        chat: bool = False,
        system: str | None = None,
        truncate: bool = False,
        batch: int | None = None,
        **options: "Unpack[CallOptions]",
    ) -> Text | list[Text]:
        """Continue a prompt by speculative sampling, with the target's own distribution.

        A list of prompts gives a list of texts in its order: they are continued at once, and each
        text is the one that its prompt alone gives.

        Args:
            prompt: a text, token ids, or messages of a conversation; or a list of these, not [].
            chat: put a text into the model's chat template, after a `system` message.
            truncate: drop the oldest tokens of a prompt that is too long.
            batch: rows of a list at a time, where one that ends makes room for the next; default:
                all of them. Refused with one prompt.
            options: options of this call: `k=4`, `temperature=0.8`, `verifier="block"` ...

        Raises:
            BatchError: some of several texts failed; it has the others.
            SpsError: the message names the error and its remedy.
        """
        how: dict[str, Any] = {"chat": chat, "system": system, "truncate": truncate, **options}
        if (prompts := prompts_in_batch(prompt)) is not None:
            return self._generate_all(prompts, len(prompts) if batch is None else batch, how)
        if batch is not None:
            raise UsageError("batch with one prompt: expected a list of prompts. Leave batch out")
        return finish(Generation(*self._prompted(cast("Prompt", prompt), **how)))

    def _generate_all(self, prompts: Sequence[Prompt], size: int, how: Any) -> list[Text]:
        """Return the texts of prompts in their order, continued in a batch of `size` rows.

        `how`: the keywords of `_prompted`. Before any text begins, UsageError: `size` is below 1,
        or the weights are elsewhere; OutOfMemoryError: the rows need too much; SpsError: a prompt
        is refused, with its number from 0. BatchError: some texts failed; it has the others.
        """
        try:
            batch = Batch(size, continuous=True)
        except ValueError as error:
            raise UsageError(f"batch {error}") from error
        rows = []
        for number, prompt in enumerate(prompts):
            try:
                rows.append(self._prompted(prompt, **how))
            except SpsError as error:
                raise type(error)(f"prompt {number} of {len(prompts)}, from 0: {error}") from error
        for cell, loaded, _ in rows[:1]:
            check_weights(cell, "several prompts at once")
            check_cache(cell, loaded, [len(ids) for *_, ids in rows], size)
        results = [
            done.result
            for done in sorted(batch.run(partial(_try_to_generate, *row, batch) for row in rows))
        ]
        texts = [result for result in results if isinstance(result, Text)]
        if len(texts) < len(results):
            failed = [
                f"{n}: {first_line(e)}" for n, e in enumerate(results) if isinstance(e, Exception)
            ]
            raise BatchError(
                f"{len(failed)} of {len(results)} prompts failed ({'; '.join(failed)}): expected a "
                "text of each. The others are in `texts` of this error",
                [result if isinstance(result, Text) else None for result in results],
            )
        return texts

    @takes(Grid)
    def stream(
        self,
        prompt: Prompt,
        *,
        chat: bool = False,
        system: str | None = None,
        truncate: bool = False,
        **options: "Unpack[CallOptions]",
    ) -> Iterator[Piece]:
        """Yield pieces (`text`, `origin`) as they are made, begun by `next`; else as `generate`."""
        how: dict[str, Any] = {"chat": chat, "system": system, "truncate": truncate}
        for update in self.generation(prompt, **how, **options):
            yield from update.pieces

    def generation(
        self,
        prompt: Prompt,
        *,
        chat: bool = False,
        system: str | None = None,
        truncate: bool = False,
        sample: str = "",
        **options: "Unpack[CallOptions]",
    ) -> Generation:
        """Return a generation before its start: iterate over rounds; `record` has the figures.

        `sample` selects the noise: equal seed and sample give equal text. Else as `generate`; it
        loads models, and refuses options and prompts, before it returns.
        """
        how: dict[str, Any] = {"chat": chat, "system": system, "truncate": truncate, **options}
        return Generation(*self._prompted(prompt, **how), sample)

    def _prompted(
        self, prompt: Prompt, *, chat: bool, system: str | None, truncate: bool, **options: Any
    ) -> tuple[Cell, Loaded, Any]:
        """Return a call's cell, models and prompt ids, cut to the context if `truncate`.

        Loads models that `options` change; logs a note of markup in a plain text once. DataError:
        too long a prompt. UsageError: an empty one, no ids, `system` without a chat, or an option.
        """
        cell, loaded = self.configured(chat=is_chat(prompt, chat), **options)
        ids = ids_of(loaded, prompt, chat=chat, system=system)
        with lines_to(self._say):
            plain = [prompt] if isinstance(prompt, str) and not chat else []
            if (note := markup_note(loaded.tokenizer, plain)) is not None:
                self._log_once(f"note: {note}")
            return cell, loaded, fit_prompt(cell, loaded, ids, truncate)

    @takes(Grid)
    def compare(
        self,
        prompt: Prompt,
        *,
        chat: bool = False,
        system: str | None = None,
        truncate: bool = False,
        show: Show = lambda pieces: None,
        **options: "Unpack[CallOptions]",
    ) -> Comparison:
        """Warm up, generate by ArS and SpS, round by round in turn, and compare times and texts.

        `show` receives the pieces of each round of SpS. Other arguments and errors: as `generate`.
        """
        how: dict[str, Any] = {"chat": chat, "system": system, "truncate": truncate, **options}
        cell, loaded, ids = self._prompted(prompt, **how)
        before = read_clocks()
        ars, sps = run_both(cell, loaded, ids, show)
        busy = is_loaded(before, read_clocks())
        return compare_texts(loaded, ids, make_text(ars), make_text(sps), busy=busy)

    @takes(*BENCH)
    def bench(
        self,
        task: str,
        *,
        say: Say | None = None,
        watch: Callable[[RunProgress], None] = ignore,
        **options: "Unpack[BenchOptions]",
    ) -> Run:
        """Run a task under ArS and SpS into a folder, or resume the run: see `spsbench.bench`."""
        return bench(task, pair=self, say=say, watch=watch, **self._under(options))

    @takes(*PLAN)
    def plan(
        self,
        task: str | None = None,
        *,
        watch: Callable[[Any], None] = ignore,
        stop: Callable[[], bool] = lambda: False,
        **options: "Unpack[PlanOptions]",
    ) -> Planned | None:
        """Predict whether speculation pays, with which drafter and K, and time the best.

        Args:
            task: source of the prompts; `prompts` names a file instead.
            options: options of `sps plan`; `draft`, `drafter`, `verifier`, `schedule` may be lists.
                `k`, `schedule` and `verifier` are not taken over from `load`.
            watch: called with the progress, which prints as a line.
            stop: polled; true ends the plan early.

        Returns:
            The plan's `answer`, `command` and `report`, kept in `out` or `results`; None: stopped.

        Raises:
            SpsError: the message names the error and its remedy: `resume` for a call made before.
        """
        base = {n: v for n, v in self._grid.given.items() if n not in ("k", "schedule", "verifier")}
        named = {name: value for name, value in options.items() if value is not None}
        callbacks: dict[str, Any] = {"say": self._say, "watch": watch, "stop": stop}
        planned = plan(task, pair=self, **callbacks, **base | named)
        return cast("Planned | None", planned)  # a list is a dry run's: no option here

    @takes(AuditOptions, Grid)
    def verify(self, *, say: Say | None = None, **options: "Unpack[VerifyOptions]") -> Held:
        """Audit the pair until a bias is found, or a bias of the given size is ruled out.

        `options`: `bias`, `level`, `task`, `prompts`, `max_tokens`, `workers`, options of cells.
        `say` receives each message for the user. SpsError: invalid options, or no prompt fits.
        """
        audit, grid = parse(options, AuditOptions, Grid)
        return verify_pair(self, audit, say=say, **grid.given)

    def configured(
        self, *, chat: bool = False, **options: "Unpack[CallOptions]"
    ) -> tuple[Cell, Loaded]:
        """Return the resolved cell of a call, and its models, loaded unless they are already.

        Options not given, or None, are those of `load`; in a `chat`, sampling that neither names is
        the target's own. Each warning about the models or `stop` is logged once. SpsError: an
        invalid option, or models that cannot load.
        """
        with lines_to(self._say):
            self._log_notes(chat)
            cell, loaded = self.cell, self.loaded
            if changed := self._changed(options, chat):
                with no_lines():
                    cell = resolve(changed, self.model_cache.vocabularies)
                loaded = self.model_cache.open(cell)
            for line in stop_warnings(cell, loaded.tokenizer):
                self._log_once(f"note: {line}")
            return cell, loaded

    def _changed(self, options: Mapping[str, Any], chat: bool) -> CellRequest | None:
        """Return what a call requests, in a `chat` with the sampling that its target names, if any.

        `options`: any of `load`. None: all are None, and no chat or one that changes nothing (the
        pair's cell holds). A line on a chat's sampling is logged once. UsageError: invalid option.
        """
        grid = self._grid
        if changes := any(value is not None for value in options.values()):
            (grid,) = parse(self._under(options), Grid)
        if not changes and not chat:
            return None
        request = grid.one(self._facts)
        applied = chat_sampling(request.target, self._facts, grid.axes) if chat else {}
        if applied:
            self._log_once(describe_defaults(request.target, applied))
        elif chat and not any(name in grid.axes for name in DISTRIBUTION):
            self._log_once(
                f"chat: temperature 1, as the generation_config of {request.target} names none"
            )
        return request.but(**applied) if changes or applied else None

    def engines(self) -> dict[str, str]:
        """Return how each model runs, in words: its engine, with its choices and cache.

        The keys are "target", "draft", and "head" where transformers runs the layers of a head.
        """
        models = zip(("target", "draft"), self.loaded.models, self.cell.models, strict=False)
        by_text, head = bool(self.cell.processors.changed), getattr(self.loaded, "head", None)
        engines = {
            name: _how_run(model, spec) + TOKEN_BY_TOKEN * (by_text and spec.engine == USUAL_ENGINE)
            for name, model, spec in models
        }
        if head is not None and getattr(head.shape, "layer", head) is None:
            engines["head"] = "transformers: no program has its layers"
        return engines

    def digests(self) -> dict[str, str]:
        """Return a digest of the files of each model in a local folder."""
        return model_digests(self.cell)

    def _log_once(self, line: str) -> None:
        if line not in self._logged:
            self._logged.add(line)
            log.info(line)

    def _log_notes(self, chat: bool) -> None:
        """Log warnings about the models, each line once; in a `chat` none of unused sampling."""
        for line in pair_warnings(self.cell, self.loaded, chat=chat):
            self._log_once(f"note: {line}")

    def _under(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of `load` with a call's in their place; a call's None changes nothing.

        The draft of `load` is left out where a call names no draft, but a drafter that needs none.
        """
        changes = {name: (value,) for name, value in options.items() if value is not None}
        grid, (drafter,) = self._grid, changes.get("drafter", (None,))
        if isinstance(drafter, str | Spec) and "draft" not in changes:
            spec = drafter if isinstance(drafter, Spec) else Spec.parse(drafter)
            if own_copy(spec) or plan_of(spec).weights is Weights.NONE:
                grid = grid.without("draft")
        return grid.under(changes).given


TOKEN_BY_TOKEN = "; processors: no drafts within a program"


def finish(generation: Generation) -> Text:
    """Run a generation to its end, and return its text with its pieces."""
    pieces = [piece for update in generation for piece in update.pieces]
    return make_text(generation, pieces)


def _try_to_generate(
    cell: Cell, loaded: Loaded, prompt: list[int], batch: Batch
) -> Text | Exception:
    """Return the text of a prompt's ids in a row of `batch`; or any Exception: other rows go on."""
    try:
        return finish(Generation(cell, loaded, prompt, batch=batch))
    except Exception as error:
        return error


def _how_run(model: PreTrainedModel, spec: ModelSpec) -> str:
    """Return a model's engine, choices and cache size, joined by "; "; unprepared: the spec's."""
    if (choice := engine_config_of(model)) is None:
        return str(spec.engine)
    context, windows = context_of(model), windows_of(model)
    if context is not None and windows is not None:
        context = windows.held(context)
    return "; ".join(filter(None, (str(choice), choice.of_cache(context))))
