"""A loaded pair: a target and its drafter, which continues prompts and compares with ArS."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Unpack, cast, overload

import torch
from transformers import PreTrainedModel

from spsbench.api.prepare import with_head_drafter
from spsbench.api.text import (
    Comparison,
    Prompt,
    Text,
    batch_of,
    compare,
    fitted,
    ids_of,
    is_chat,
)
from spsbench.benchmark.generation import Generation, Show, arm, check_cache, run_both
from spsbench.engines.eager import context_of
from spsbench.engines.session.engine_config import engine_config_of
from spsbench.engines.session.masks import windows_of
from spsbench.errors import BatchError, SpsError, UsageError, first_line
from spsbench.hardware.contention import loaded as is_loaded
from spsbench.hardware.contention import read_clocks
from spsbench.loop.batch import Batch
from spsbench.loop.drafter_context import Weights
from spsbench.loop.text import Piece
from spsbench.messages import Say, lines_to, no_lines
from spsbench.methods.resolve import check_weights, plan_of, settled
from spsbench.models.cache import Loaded, ModelCache, pair_warnings, stop_warnings
from spsbench.models.chat import sampling_lookup
from spsbench.models.folder import local_folder
from spsbench.models.tokenizers import markup_note
from spsbench.settings.cell import WARP, Cell
from spsbench.settings.cell_from_options import make_cell, own_copy
from spsbench.settings.execution import Access
from spsbench.settings.keywords import CellOptions
from spsbench.settings.models import ModelSpec
from spsbench.settings.sweep import describe_defaults, own_defaults
from spsbench.spec import Spec
from spsbench.store.provenance import digest, hash_files

log = logging.getLogger(__name__)


class LoadedPair:
    """A target and its drafter, loaded once, with all that continues a prompt.

    Every method takes the options of `load` again and changes them for
    that call; models that are loaded already are not loaded anew.

    Args:
        options: options of cells, as `settings.cell_from_options` lists them.
        access: download and loading options of models.
        say: receives each message for the user, of every call.
    """

    def __init__(self, options: dict[str, Any], access: Access, say: Say | None = None) -> None:
        self._options, self.access, self._say = options, access, say
        if access.threads is not None:
            torch.set_num_threads(access.threads)
        self.model_cache = ModelCache(access)
        self.cell = settled(
            make_cell(**with_head_drafter(options, access)), self.model_cache.vocabularies
        )
        self.loaded = self.model_cache.load(self.cell)
        if access.threads is None and self.loaded.target is not None:
            _limit_threads(self.loaded.target)
        self._own = sampling_lookup(access)
        self._logged: set[str] = set()
        self._log_notes(chat=True)

    def __repr__(self) -> str:
        models = ", ".join(f"{model}" for model in self.cell.models.all)
        return f"<{type(self).__name__} {models}: {self.cell.method}>"

    @overload
    def generate(  # type: ignore[overload-overlap]  # a text is a sequence of texts
        self,
        prompt: Prompt,
        *,
        chat: bool = False,
        system: str | None = None,
        truncate: bool = False,
        batch: int | None = None,
        **options: Unpack[CellOptions],
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
        **options: Unpack[CellOptions],
    ) -> list[Text]: ...

    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        *,
        chat: bool = False,
        system: str | None = None,
        truncate: bool = False,
        batch: int | None = None,
        **options: Unpack[CellOptions],
    ) -> Text | list[Text]:
        """Continue a prompt by speculative sampling, with the target's own distribution.

        Several prompts are continued at once, and each text is the one that its prompt alone gives.

        Args:
            prompt: a text, token ids, or the messages of a conversation; or a list of these.
            chat: put a text into the model's chat template, after a `system` message.
            truncate: drop the oldest tokens of a prompt that is too long.
            batch: rows of a list at a time, where one that ends makes room for the next; default:
                all of them.
            options: options of this call: `k=4`, `temperature=0.8`, `verifier="block"` ...

        Raises:
            BatchError: some of several texts failed; it has the others.
            SpsError: the message names the error and its remedy.
        """
        how: dict[str, Any] = {"chat": chat, "system": system, "truncate": truncate, **options}
        prompts = batch_of(prompt)
        if prompts is not None:
            return self._generate_all(prompts, len(prompts) if batch is None else batch, how)
        if batch is not None:
            raise UsageError("batch with one prompt: expected a list of prompts. Leave batch out")
        return _text_of(Generation(*self._prompted(cast("Prompt", prompt), **how)))

    def _generate_all(self, prompts: Sequence[Prompt], size: int, how: Any) -> list[Text]:
        """Continue several prompts in a batch of `size` rows."""
        try:
            batch = Batch(size, continuous=True)
        except ValueError as error:
            raise UsageError(f"batch {error}") from error
        given = []
        for number, prompt in enumerate(prompts):
            try:
                given.append(self._prompted(prompt, **how))
            except SpsError as error:
                raise type(error)(f"prompt {number} of {len(prompts)}, from 0: {error}") from error
        for cell, loaded, _ in given[:1]:
            check_weights(cell, "several prompts at once")
            check_cache(cell, loaded, [len(ids) for *_, ids in given], size)
        rows = sorted(batch.run(partial(_tried, *each, batch) for each in given))
        texts = [row.made for row in rows if isinstance(row.made, Text)]
        if len(texts) < len(rows):
            found = [row.made for row in rows]
            failed = [
                f"{n}: {first_line(e)}" for n, e in enumerate(found) if isinstance(e, Exception)
            ]
            raise BatchError(
                f"{len(failed)} of {len(rows)} prompts failed ({'; '.join(failed)}): expected a "
                "text of each. The others are in `texts` of this error",
                [made if isinstance(made, Text) else None for made in found],
            )
        return texts

    def stream(
        self,
        prompt: Prompt,
        *,
        chat: bool = False,
        system: str | None = None,
        truncate: bool = False,
        **options: Unpack[CellOptions],
    ) -> Iterator[Piece]:
        """Yield the pieces of a text as they are generated; a piece has `text` and `origin`."""
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
        **options: Unpack[CellOptions],
    ) -> Generation:
        """Return a generation before its start: iterate over rounds; `record` has the figures.

        `sample` selects the noise stream: equal seed and sample give equal text.
        """
        how: dict[str, Any] = {"chat": chat, "system": system, "truncate": truncate, **options}
        return Generation(*self._prompted(prompt, **how), sample)

    def _prompted(
        self, prompt: Prompt, *, chat: bool, system: str | None, truncate: bool, **options: Any
    ) -> tuple[Cell, Loaded, Any]:
        """Return the cell of a call, its models, and the tokens of its prompt."""
        cell, loaded = self.configured(chat=is_chat(prompt, chat), **options)
        ids = ids_of(loaded, prompt, chat=chat, system=system)
        with lines_to(self._say):
            plain = [prompt] if isinstance(prompt, str) and not chat else []
            if (note := markup_note(loaded.tokenizer, plain)) is not None:
                self._log_once(f"note: {note}")
            return cell, loaded, fitted(cell, loaded, ids, truncate)

    def compare(
        self,
        prompt: Prompt,
        *,
        chat: bool = False,
        system: str | None = None,
        truncate: bool = False,
        show: Show = lambda pieces: None,
        **options: Unpack[CellOptions],
    ) -> Comparison:
        """Generate by both methods in turn, to measure the speed-up and compare the texts."""
        how: dict[str, Any] = {"chat": chat, "system": system, "truncate": truncate, **options}
        cell, loaded, ids = self._prompted(prompt, **how)
        before = read_clocks()
        ars, sps = run_both(cell, loaded, ids, show)
        busy = is_loaded(before, read_clocks())
        return compare(loaded, ids, arm(ars), arm(sps), busy=busy)

    def configured(
        self, *, chat: bool = False, **options: Unpack[CellOptions]
    ) -> tuple[Cell, Loaded]:
        """Return the resolved cell of a call, and its models.

        Args:
            chat: temperature, top-p and top-k default to the target's values.
        """
        with lines_to(self._say):
            self._log_notes(chat)
            given = self._under(options)
            own = self._own_defaults(given) if chat else {}
            cell, loaded = self.cell, self.loaded
            if own or any(value is not None for value in options.values()):
                with no_lines():
                    cell = settled(
                        make_cell(**with_head_drafter({**given, **own}, self.access)),
                        self.model_cache.vocabularies,
                    )
                loaded = self.model_cache.load(cell)
            for line in stop_warnings(loaded, cell.sampling.stop):
                self._log_once(f"note: {line}")
            return cell, loaded

    def engines(self) -> dict[str, str]:
        """Return the engine of each model and the reason for the choice."""
        models = {
            "target": (self.loaded.target, self.cell.models.target),
            "draft": (self.loaded.draft, self.cell.models.draft),
        }
        return {
            name: _how_run(model, spec)
            for name, (model, spec) in models.items()
            if model is not None and spec is not None
        }

    def digests(self) -> dict[str, str]:
        """Return a digest of the files of each model in a local folder."""
        local = [model for model in self.cell.models.all if not model.random]
        return {
            str(model): digest(hash_files(folder))
            for model in local
            if (folder := local_folder(model.id)) is not None
        }

    def _own_defaults(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the sampling parameters that a chat takes from its target, and log them."""
        named = {name: value for name, value in given.items() if value is not None}
        target = make_cell(**with_head_drafter(named, self.access)).models.target
        own = own_defaults(target, self._own, named)
        if own:
            self._log_once(describe_defaults(target, own))
        elif not any(name in named for name in WARP):
            self._log_once(f"chat: temperature 1, as the generation_config of {target} names none")
        return own

    def _log_once(self, line: str) -> None:
        if line not in self._logged:
            self._logged.add(line)
            log.info(line)

    def _log_notes(self, chat: bool) -> None:
        """Log warnings about the models, each line once."""
        for line in () if self.cell.models.random else pair_warnings(self.loaded, chat=chat):
            self._log_once(f"note: {line}")

    def _under(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Merge the options of the call into those of `load`; the call takes precedence."""
        given = {name: value for name, value in options.items() if value is not None}
        base = dict(self._options)
        if "k" in given:
            base.pop("schedule", None)
        if "schedule" in given:
            base.pop("k", None)
        drafter = given.get("drafter")
        if isinstance(drafter, str | Spec) and "draft" not in given:
            spec = drafter if isinstance(drafter, Spec) else Spec.parse(drafter)
            # the pair's draft model has a rest
            if own_copy(spec) or plan_of(spec).weights is Weights.NONE:
                base = {
                    n: v for n, v in base.items() if n != "draft" and not n.startswith("draft_")
                }
        return base | given


def _text_of(generation: Generation) -> Text:
    """Run a generation to its end."""
    pieces = [piece for update in generation for piece in update.pieces]
    return Text(arm(generation), tuple(pieces))


def _tried(cell: Cell, loaded: Loaded, prompt: list[int], batch: Batch) -> Text | Exception:
    """Return the text of a row, or its error, which ends no other row."""
    try:
        return _text_of(Generation(cell, loaded, prompt, batch=batch))
    except Exception as error:
        return error


def _how_run(model: PreTrainedModel, spec: ModelSpec) -> str:
    """Return the engine, its choices, and the size of its cache."""
    choice = engine_config_of(model)
    if choice is None:
        return str(spec.engine)
    context, windows = context_of(model), windows_of(model)
    if context is not None and windows is not None:
        context = windows.held(context)
    return "; ".join(filter(None, (str(choice), choice.of_cache(context))))


def _limit_threads(model: PreTrainedModel) -> None:
    """Limit torch to the threads that `model` received, which leaves cores to other programs.

    Otherwise an operator over a large vocabulary waits for a thread without a core.
    """
    choice = engine_config_of(model)
    if choice is None or choice.threads is None or not choice.beside:
        return
    if choice.threads < torch.get_num_threads():
        torch.set_num_threads(choice.threads)
        log.info(
            f"note: other programs keep {choice.beside} threads busy: "
            f"this process uses {choice.threads} threads"
        )
