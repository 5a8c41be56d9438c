"""A running generation: rounds become records, tokens become text with their origin.

A generation runs alone, or ArS and SpS side by side (`run_both`).
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import torch

from spsbench.engines.eager import logits_width
from spsbench.engines.session.cache import token_bytes
from spsbench.engines.session.recurrent import stateful
from spsbench.errors import DataError, OutOfMemoryError
from spsbench.hardware.files import in_words
from spsbench.hardware.memory import ram
from spsbench.loop.batch import Batch
from spsbench.loop.constraint import Constraint
from spsbench.loop.decode import never
from spsbench.loop.decoder import EnginePrompt
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.text import Origin, Piece, Transcript, stop_strings, to_token_ids
from spsbench.loop.types import Limits, Round, Stop
from spsbench.methods.build import build_decoder
from spsbench.methods.grammar import open_constraint
from spsbench.methods.resolve import warp_of
from spsbench.models.cache import Loaded
from spsbench.models.tokenizers import named_tokens, with_marks
from spsbench.parallel.process_group import lost_rank_as_error, on_rank_0
from spsbench.settings.cell import Cell, constant
from spsbench.settings.cell_from_options import DEFAULT_K
from spsbench.settings.records import DraftProbs, Record, RoundRecord, round_record
from spsbench.settings.thoughts import opens_thought

log = logging.getLogger(__name__)


class Update(NamedTuple):
    """The result of one round."""

    record: RoundRecord
    tokens: list[int]
    pieces: list[Piece]  # text that is ready to show


class Generation:
    """One generation: an iterator over updates; `record` is complete after the last update.

    `models` are as `ModelCache.open` returns them. `prompt` has token ids, at least one; for an
    engine elsewhere it is an `EnginePrompt`. `sample` and `repeat` are the rest of the noise's key.
    `batch` is the batch of which it is a row; None: it is alone. `json_schema` is this prompt's, in
    place of the cell's. The attribute `constraint` is on the text; None: there is none here. Raises
    PromptError for an empty prompt or invalid ids, and DataError for a constraint that does not go
    with the tokenizer, or on a thought.
    """

    def __init__(
        self,
        cell: Cell,
        models: Any,
        prompt: Sequence[int] | EnginePrompt,
        sample: str = "",
        repeat: int = 0,
        batch: Batch | None = None,
        json_schema: str = "",
    ) -> None:
        tokenizer, here = models.tokenizer, not cell.elsewhere
        engine_prompt: Any = prompt
        if isinstance(prompt, EnginePrompt):
            ids = list(prompt.ids or ())
        else:
            ids = to_token_ids(prompt, logits_width(models.target) if here else None)
            text = "" if here or tokenizer is None else tokenizer.decode(ids)
            engine_prompt = EnginePrompt(text, ids)
        constrained = replace(cell, json_schema=json_schema) if json_schema else cell
        self.constraint = open_constraint(constrained, models) if here else None
        self.cell, self._decoder = cell, build_decoder(cell, models, batch, self.constraint)
        self._input: Any = ids if here else engine_prompt._replace(name=sample)
        self._eos = models.eos if here and not cell.ignore_eos else frozenset()
        self._noise = PhiloxStream(cell.seed, cell.noise_key, sample, repeat)
        decoded = ids if tokenizer is not None else []
        stops, ends = cell.stop, named_tokens(tokenizer, cell.stop)
        writer = with_marks(tokenizer)
        self._transcript, watched = (Transcript(writer, decoded, stops, ends) for _ in range(2))
        self._stop: Stop = stop_strings(watched) if stops else never
        self._prompt = ids
        self._thinking = bool(decoded) and opens_thought(tokenizer.decode(decoded[-TAIL:]))
        if self._thinking and self.constraint is not None:
            raise DataError(
                "a constraint on a text that begins within a thought, as its prompt ends: expected "
                "it to hold for the answer. Ask with `chat` off, or leave the constraint out"
            )
        self._text = ""  # from an engine whose tokens have no text here
        self._tokens: list[int] = []
        self._rounds: list[RoundRecord] = []
        self._draft_probs: list[DraftProbs] = []
        self._experts: list[float] = []
        self._prefill = 0.0
        self._finish = "length"  # finish of a generation without a round

    def __iter__(self) -> Iterator[Update]:
        """Run to the end, one update a round; the prefill ends where the first round begins."""
        began = time.perf_counter()
        with lost_rank_as_error():
            for done in self._decoder(
                self._input,
                limits=Limits(self.cell.max_new_tokens, self._eos),
                warp=warp_of(self.cell),
                noise=self._noise,
                stop=self._stop,
            ):
                if not self._rounds:
                    elapsed, measured = time.perf_counter() - began, self._decoder.prefill_seconds
                    self._prefill = elapsed - done.seconds if measured is None else measured
                yield self._update(done)

    @property
    def record(self) -> Record:
        """Return the record of the rounds so far, in lists that grow; no cell, sample or repeat."""
        return Record(
            prompt_tokens=len(self._prompt) or self._decoder.prompt_tokens or 0,
            tokens=self._tokens,
            text=self._transcript.text or self._text,
            finish=self._finish,
            thinking=self._thinking,
            prefill_seconds=self._prefill,
            rounds=self._rounds,
            laws=self._draft_probs or None,
            experts=self._experts or None,
            **masks_of(self.constraint),
        )

    def _update(self, done: Round) -> Update:
        """Add a round to the record; return it, its tokens and the text that can be shown now."""
        record = round_record(done)
        self._rounds.append(record)
        if done.probs is not None:
            self._draft_probs.append(done.probs)
        if done.experts is not None:
            self._experts.append(done.experts)
        self._tokens += done.tokens

        pieces: list[Piece] = []
        if done.text is not None:
            self._finish = done.finish or self._finish
            self._text += done.text
            return Update(record, done.tokens, [Piece(done.text, Origin.UNTOLD)])
        for token, origin in zip(done.tokens, round_origins(done), strict=False):
            pieces += self._transcript.push(token, origin)
        if done.finish is not None:
            self._finish = done.finish
            pieces += self._transcript.close()
        return Update(record, done.tokens, pieces)


def masks_of(constraint: Constraint | None) -> dict[str, Any]:
    """Return by name the fields of a record that a constraint measures; empty without one."""
    if constraint is None:
        return {}
    return {
        "masks": constraint.made,
        "mask_seconds": constraint.seconds,
        "forced": constraint.forced,
        "closed": constraint.closed or None,
        "removed_nats": constraint.removed_nats if constraint.weighs else None,
    }


def round_origins(done: Round) -> list[Origin]:
    """Return the origin of each token of an uncut round: accepted tokens, then the target's own.

    All are UNTOLD in a round of several passes or of none, and the last one is where the engine
    does not count drafts.
    """
    if done.passes != 1:
        return [Origin.UNTOLD] * len(done.tokens)
    if done.drafted == 0:
        return [Origin.PLAIN]
    final = Origin.BONUS if done.full else Origin.RECOVERED
    final = final if done.drafted > 0 else Origin.UNTOLD
    return [Origin.ACCEPTED] * done.accepted + [final]


def interleave(*generations: Generation) -> Iterator[tuple[int, Update]]:
    """Run generations interleaved: the one with the fewest tokens, or the first of such, goes next.

    Drift of the machine then affects all generations alike. Yields the generation's index with each
    update, until all have ended.
    """
    running = {index: iter(generation) for index, generation in enumerate(generations)}
    emitted = dict.fromkeys(running, 0)
    while running:
        index = min(running, key=lambda i: (emitted[i], i))
        update = next(running[index], None)
        if update is None:
            del running[index]
            continue
        emitted[index] += update.record.emitted
        yield index, update


TAIL = 16  # newest tokens of a prompt, in which a template may begin a thought
WARM_UP_TOKENS = 8  # at least, for each method
WARM_UP_SECONDS = 1.5  # in which a small model makes passes of every size that a schedule asks for
WARM_UP_DEPTH, WARM_UP_ROUNDS = 8, 3  # tokens a round, and rounds of each depth
WARM_UP_PROMPT = 32  # newest tokens of the prompt; its length does not matter for a warm-up

Show = Callable[[list[Piece]], None]


def run_both(
    cell: Cell, loaded: Any, prompt: Sequence[int] | EnginePrompt, show: Show
) -> tuple[Generation, Generation]:
    """Warm up ArS and the cell, run them interleaved, and return both, ended, ArS first.

    `show` gets the pieces of each update of the cell's, an empty list too.
    """
    cells = cell.auto_regressive, cell
    warm_up(cells, loaded, prompt)
    ars, sps = (Generation(cell, loaded, prompt) for cell in cells)
    for index, update in interleave(ars, sps):
        if index == 1:
            show(update.pieces)
    return ars, sps


def warm_up(cells: Sequence[Cell], loaded: Any, prompt: Sequence[int] | EnginePrompt) -> None:
    """Generate with every method for a while, so that first calls enter no figure.

    Each cell has `WARM_UP_SECONDS`, then as many for its depths: see `warm_depths`. The first
    passes of each size are slow, since they become programs. Another seed makes it another cell, so
    that no drafter remembers the text of its warm-up.
    """
    last = prompt if isinstance(prompt, EnginePrompt) else prompt[-WARM_UP_PROMPT:]
    for cell in cells:
        most = cell.max_new_tokens
        if not cell.own_loop:  # others may give no token before the last
            most = min(WARM_UP_TOKENS, most)
        other = cell.but(seed=cell.seed ^ 1, max_new_tokens=most)
        is_over = time_limit(WARM_UP_SECONDS)
        while True:
            tokens = 0
            for update in Generation(other, loaded, last):
                tokens += update.record.emitted
                if tokens >= WARM_UP_TOKENS and is_over():
                    break
            if not tokens or is_over():
                break
        warm_depths(cell, loaded, last)


def warm_depths(cell: Cell, loaded: Any, prompt: Sequence[int] | EnginePrompt) -> None:
    """Make `WARM_UP_ROUNDS` rounds of a cell's K; for a schedule, of each K up to `WARM_UP_DEPTH`.

    In `WARM_UP_SECONDS`. Else the first round of a depth would stand in a figure, and so would the
    second prompt, before which an engine may try how it reads prompts fastest. Not of other loops.
    """
    if not cell.own_loop:
        return
    is_over = time_limit(WARM_UP_SECONDS)
    for k in range(1, WARM_UP_DEPTH + 1) if cell.k is None else [cell.k]:
        tokens = WARM_UP_ROUNDS * (k + 1)
        other = cell.but(schedule=constant(k), seed=cell.seed ^ 1, max_new_tokens=tokens, batch=1)
        for _ in islice(Generation(other, loaded, prompt), WARM_UP_ROUNDS):
            if is_over():
                return


def time_limit(seconds: float) -> Callable[[], bool]:
    """Return a function: have `seconds` passed since now? Rank 0's clock answers on all ranks."""
    end = time.perf_counter() + seconds
    return lambda: on_rank_0(lambda: time.perf_counter() >= end)


def check_cache(cell: Cell, loaded: Loaded, prompts: Sequence[int], rows: int) -> None:
    """Log the bytes that keys, values and states of a batch need; refuse what does not fit.

    `prompts` are their lengths in tokens: the longest, with the cell's new tokens, sets the bytes
    of a row. A batch has `rows`, or fewer if there are fewer prompts. Raises OutOfMemoryError,
    which names the bytes needed and free and how many rows fit, unless free memory is unknown.
    """
    place = loaded.target.device
    free = torch.cuda.mem_get_info(place)[0] if place.type == "cuda" else ram()[1]
    most = max(prompts, default=0) + cell.max_new_tokens
    models = loaded.models
    kept = sum(states.row_bytes for model in models if (states := stateful(model)) is not None)
    row = most * sum(map(token_bytes, models)) + kept * ((cell.k or DEFAULT_K) + 2)
    rows = min(rows, len(prompts))
    if free and rows * row > free:
        raise OutOfMemoryError(
            f"keys, values and states of {rows} texts of up to {most} tokens need "
            f"{in_words(rows * row)}, {in_words(free)} are free: expected a batch of at most "
            f"{free // row}. Lower the batch or `max_new_tokens`"
        )
    log.info(f"keys and values of {rows} texts of up to {most} tokens: {in_words(rows * row)}")
