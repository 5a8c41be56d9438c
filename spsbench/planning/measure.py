"""Measure costs on this machine: every part once a turn, many turns, medians at the end."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from random import Random
from typing import Any, TypeVar, cast

import numpy as np
import torch
from transformers import PreTrainedModel

from spsbench.engines.session.cache import token_bytes
from spsbench.engines.session.engine_config import engine_config_of
from spsbench.errors import UsageError
from spsbench.generation import check_cache
from spsbench.hardware.contention import ClockReading, read_clocks, was_disturbed
from spsbench.hardware.files import clock
from spsbench.loop.types import LM, Engine
from spsbench.messages import ignore
from spsbench.methods.measured_costs import RoundMeter, turn_tokens
from spsbench.methods.processors import processors_of
from spsbench.methods.resolve import check_weights, plan_of, warp_of
from spsbench.metrics.costs import BatchCosts, Costs, DrafterCosts, Rule
from spsbench.metrics.sums import group_by
from spsbench.metrics.surfaces import FEWEST_TURNS, Surface
from spsbench.models.cache import Loaded
from spsbench.models.devices import card_of
from spsbench.models.folder import local_folder
from spsbench.models.prompts import Prompt, ids_of
from spsbench.planning.forecast.batch_gains import FEW
from spsbench.planning.meters import LoopMeter, PassMeter
from spsbench.plugins import make
from spsbench.settings.cell import OWN_LOOP, SAMPLING_FIELDS, Cell
from spsbench.settings.method import Drafting
from spsbench.settings.models import ModelSpec
from spsbench.store.provenance import digest, hardware, hash_files, versions

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 17, 25, 33)  # tokens of a pass
REQUESTED = (1, 2, 4, 8, 16)  # tokens of a draft
IN_BATCH = (1, 2, 3, 5, 9, 17)  # tokens of each text, in a common pass
CONTEXTS = (64, 256, 1024)
PLAIN_TIMES = 3  # rounds of ArS in a turn; every speed-up uses them
MOST_TURNS = 25
ANY_TEXT = 4096  # random tokens, where no prompt is named
SECONDS = 20.0
LIBRARIES = ("spsbench", "torch", "transformers")

Pair = tuple[Cell, Loaded]
Key = TypeVar("Key")


class PhaseCount:
    """How much of a phase is done, with the time left."""

    def __init__(self) -> None:
        self.done = self.total = 0
        self._began = time.monotonic()

    def at(self, done: int, total: int) -> "PhaseCount":
        """Return the counter with new numbers; none done starts its clock."""
        if done == 0:
            self._began = time.monotonic()
        self.done, self.total = done, total
        return self

    @property
    def pace(self) -> float:
        """Return the mean seconds of one."""
        return (time.monotonic() - self._began) / self.done

    def __str__(self) -> str:
        left = f", {clock(self.pace * (self.total - self.done))} to go" if self.done else ""
        return f"{self.done}/{self.total}{left}"


Watch = Callable[[PhaseCount], Any]
Meter = PassMeter | LoopMeter | RoundMeter
"""Times each of its parts once a turn."""


def pass_weight_bytes(model: PreTrainedModel) -> int:
    """Return the bytes of weights that a pass over one token reads.

    Input embeddings are left out where they are not the output's too, since a pass reads one row a
    token. All experts of a mixture are counted, though a pass reads fewer.
    """
    read = sum(weight.nbytes for weight in model.parameters())
    looked_up = getattr(model.get_input_embeddings(), "weight", None)
    head = model.get_output_embeddings()
    if looked_up is not None and head is not None and head.weight is not looked_up:
        read -= looked_up.nbytes
    return int(read)


def setting_of(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return what times depend on: hardware, versions, threads, sampling, vocabulary and models.

    `models` has `describe_model` of the "target" and of each draft, by its text. `pairs` share
    target and sampling; a GPU of the target is named with the hardware.
    """
    cell, loaded = pairs[0]
    card = card_of(cell.target.device)
    drafts = {str(cell.draft): (cell.draft, of.draft) for cell, of in pairs if cell.draft}
    models = {"target": (cell.target, loaded.target), **drafts}
    all_versions = versions()
    return {
        "hardware": hardware() | ({"device": card} if card else {}),
        "versions": {name: all_versions[name] for name in LIBRARIES},
        "threads": torch.get_num_threads(),
        "sampling": cell.recorded_distribution,
        "vocabulary": loaded.vocab_size,
        "models": {name: describe_model(*model) for name, model in models.items()},
    }


def describe_model(spec: ModelSpec, model: Any) -> dict[str, str]:
    """Return name -> text of what affects a model's times: `str` of all of `spec` but its adapter.

    A local folder, unless weights are random, adds the digest `files`; a loaded `model` (None: not
    loaded) adds its `dtype` and the engine `chosen`.
    """
    names = [field.name for field in fields(spec) if field.name != "adapter"]  # as fast as its base
    values = {name: str(getattr(spec, name)) for name in names}
    folder = None if spec.random else local_folder(spec.id)
    if folder is not None:
        values["files"] = str(digest(hash_files(folder)))
    if model is not None:
        values["dtype"] = str(model.dtype).removeprefix("torch.")
        values["chosen"] = str(engine_config_of(model))
    return values


def measure_costs(
    pair: Any,
    *methods: Mapping[str, Any],
    prompt: Prompt | None = None,
    contexts: Sequence[int] = CONTEXTS,
    seconds: float = SECONDS,
    watch: Watch = ignore,
) -> Costs:
    """Measure the costs of the pair's own method, or of `methods`, each as options of a call.

    `measure_costs(pair, {"verifier": "block"}, {"drafter": "ngram"})`. The models read `prompt`;
    None: random tokens, which hold no repetitions. `contexts`, `seconds` and `watch` are as for
    `measure`. UsageError: no weights here, or as `measure`. SpsError: models that cannot be loaded.
    """
    check_weights(pair.cell, "costs")
    pairs = [pair.configured(**method) for method in methods or ({},)]
    if prompt is None:
        text = Random(0).choices(range(pair.loaded.vocab_size), k=ANY_TEXT)
    else:
        text = cast("list[int]", ids_of(pair.loaded, prompt, chat=False, system=None))
    return measure(pairs, text, contexts=contexts, seconds=seconds, watch=watch)


def measure(
    pairs: Sequence[Pair],
    text: Sequence[int],
    *,
    contexts: Sequence[int] = CONTEXTS,
    sizes: Sequence[int] = SIZES,
    requested: Sequence[int] = REQUESTED,
    seconds: float = SECONDS,
    watch: Watch = ignore,
) -> Costs:
    """Measure the costs of the drafters and verifiers of some cells, and of ArS.

    `pairs` are resolved cells with their models; they share target and sampling, and the first cell
    with a drafter, or a verifier, stands for all with it. The token ids `text`, typical input, are
    repeated where too short. Passes over `sizes` tokens (rising from 1) and rounds with drafts of
    `requested` tokens are timed once a turn after each of `contexts` cached tokens; contexts that
    do not fit are left out. After a warm-up `FEWEST_TURNS` to `MOST_TURNS` turns fill `seconds`;
    `watch` gets a `PhaseCount` after each. Turns beside other work are dropped, or, where
    too few would be left, kept, and the costs `busy`. UsageError: cells that cannot be measured
    together, no text, or too short a context.
    """
    check_one_table(pairs)
    first, models = pairs[0]
    plain, draw = (first.auto_regressive, models), Random(0)
    room = max(sizes[-1], turn_tokens(requested)) + 1
    fitting = fitting_contexts(contexts, room, models.limit)
    text = repeat_text(text, fitting[-1] + room)
    passes_of = pass_meters(pairs[0], text, (1,), sizes, fitting, draw)
    loops = loop_meters([plain, *pairs], text, sizes, draw)
    drafters, rounds_of = first_by(Drafting.of, [plain, *pairs]), {}
    for name, (cell, loads) in drafters.items():
        ks, times = (requested, 1) if cell.k != 0 else ((0,), PLAIN_TIMES)
        rounds_of[name] = [RoundMeter(cell, loads, text, at, ks, draw, times) for at in fitting]
    of_drafters = (meter for row in rounds_of.values() for meter in row)
    meters: list[Meter] = [*passes_of, *loops.values(), *of_drafters]
    turns, busy = select_quiet_turns(take_turns(meters, seconds, watch, draw))
    (passes,) = surfaces(passes_of, turns, sizes, fitting)
    rules = {name: loop.rule(turns) for name, loop in loops.items()}
    return Costs(
        passes=passes,
        arms={
            name: drafter_costs(cell, rounds_of[name], turns, passes, rules)
            for name, (cell, _) in drafters.items()
        },
        rules=rules,
        setting=setting_of([plain, *pairs]),
        busy=busy,
        weights=pass_weight_bytes(models.target),
    )


def measure_batches(
    pairs: Sequence[Pair],
    text: Sequence[int],
    sizes: Sequence[int],
    *,
    most_k: int,
    contexts: Sequence[int],
    seconds: float,
    watch: Watch,
) -> BatchCosts:
    """Measure passes and rounds that several texts make together, for each drafter and for ArS.

    `sizes` are requested numbers of texts in a batch; `measured_sizes` says which are measured.
    Drafts have up to `most_k` tokens or a few more; rounds are timed in the middle one of
    `contexts`. `pairs`, `text`, `contexts`, `seconds` and `watch` are as for `measure`.
    OutOfMemoryError: the largest batch does not fit. UsageError: no text, or too short a context.
    """
    sizes = measured_sizes(sizes)
    first, models = pairs[0]
    plain = first.auto_regressive, models
    tokens, ks = values_to_reach(IN_BATCH, most_k + 1), values_to_reach(REQUESTED, most_k)
    fitting = fitting_contexts(contexts, turn_tokens(ks, len(sizes)) + 1, models.limit)
    text = repeat_text(text, fitting[-1] + tokens[-1] + 1)
    middle, draw = fitting[len(fitting) // 2], Random(0)
    check_cache(first, models, [fitting[-1]] * sizes[-1], sizes[-1])
    meters = {
        name: RoundMeter(cell, loads, text, middle, ks if cell.k != 0 else (0,), draw, sizes=sizes)
        for name, (cell, loads) in first_by(Drafting.of, [plain, *pairs]).items()
    }
    passes_of = pass_meters(pairs[0], text, sizes, tokens, fitting, draw)
    turns, _ = select_quiet_turns(take_turns([*passes_of, *meters.values()], seconds, watch, draw))
    passes = surfaces(passes_of, turns, tokens, fitting)
    return BatchCosts(
        sizes=sizes,
        passes=passes,
        rest={name: rest_of_rounds(meter, turns, passes, middle) for name, meter in meters.items()},
        cached=token_bytes(models.target),
    )


def measured_sizes(requested: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes to measure, from 1: those requested, or of many the powers of two."""
    powers = [2**i for i in range(max(requested).bit_length())]
    return tuple(sorted({1, max(requested), *(requested if len(requested) <= FEW else powers)}))


def first_by(key_of: Callable[[Cell], Key], pairs: Sequence[Pair]) -> dict[Key, Pair]:
    """Return key -> the first pair whose cell has it, in their order."""
    groups = group_by(pairs, lambda pair: key_of(pair[0]))
    return {key: members[0] for key, members in groups.items()}


def values_to_reach(values: Sequence[int], most: int) -> tuple[int, ...]:
    """Return the rising values up to the first that is `most` or more; all if none is."""
    return tuple(values[: next((i for i, v in enumerate(values) if v >= most), len(values)) + 1])


def check_one_table(pairs: Sequence[Pair]) -> None:
    """Raise UsageError unless all cells, one or more, share target, sampling and our own loop."""
    works = {(cell.target, *(getattr(cell, n) for n in SAMPLING_FIELDS)) for cell, _ in pairs}
    decoders = {str(cell.decoder) for cell, _ in pairs if cell.decoder.name != OWN_LOOP}
    if len(works) != 1 or decoders:
        raise UsageError(
            f"{len(pairs)} methods, {len(works)} targets or samplings, decoders "
            f"{', '.join(decoders) or OWN_LOOP} (costs): expected methods of one target under one "
            f"sampling, in the loop of `decoder` {OWN_LOOP}. Measure them apart"
        )


def fitting_contexts(contexts: Sequence[int], room: int, limit: int | None) -> list[int]:
    """Return contexts, rising, once each, that leave `room` up to `limit`; else [limit - room].

    `limit` None: all of them. UsageError: the limit is no more than `room`.
    """
    rising = sorted(set(contexts))
    if limit is None:
        return rising
    if limit <= room:
        raise UsageError(
            f"the models' context holds {limit} tokens (costs): expected more than {room}. "
            "Choose another pair"
        )
    return [context for context in rising if context <= limit - room] or [limit - room]


def repeat_text(text: Sequence[int], count: int) -> list[int]:
    """Return at least `count` tokens, by repeating the text; UsageError for an empty text."""
    if not text:
        raise UsageError("an empty text (costs): expected tokens. Give prompts")
    return list(text) * -(-count // len(text))


def target_session(pair: Pair) -> LM:
    """Return a new session with the target."""
    cell, models = pair
    engine: Engine = make("engines", cell.target.engine)
    return engine.session(models.target, vocab_size=models.vocab_size)


def pass_meters(
    pair: Pair,
    text: Sequence[int],
    sizes: Sequence[int],
    tokens: Sequence[int],
    contexts: Sequence[int],
    draw: Random,
) -> list[PassMeter]:
    """Return for each context a meter of passes over `tokens` of each text, by batch `sizes`."""
    device, most = pair[1].target.device, range(sizes[-1])
    return [
        PassMeter([target_session(pair) for _ in most], text, sizes, tokens, context, device, draw)
        for context in contexts
    ]


def loop_meters(
    pairs: Sequence[Pair], text: Sequence[int], sizes: Sequence[int], draw: Random
) -> dict[str, LoopMeter]:
    """Return verifier -> meter of the loop by pass `sizes`, over the target's logits for `text`."""
    most, lm = sizes[-1], target_session(pairs[0])
    logits = lm.append(torch.tensor(text[:most]), keep=most).logits.clone()
    by_rule = first_by(lambda cell: str(cell.verifier), pairs)
    return {
        name: LoopMeter(
            logits,
            warp_of(cell),
            make("verifiers", cell.verifier),
            plan_of(cell.drafter),
            sizes,
            draw,
            processors_of(cell, loaded),
        )
        for name, (cell, loaded) in by_rule.items()
    }


def take_turns(
    meters: Sequence[Meter], seconds: float, watch: Watch, draw: Random
) -> list[ClockReading]:
    """Run a warm-up turn of all meters, then timed turns; return clock readings around each.

    N turns give N + 1 readings; each runs all meters, in an order that `draw` gives. They fill
    `seconds` with the warm-up, but N is `FEWEST_TURNS` to `MOST_TURNS`; after each `watch` gets a
    `PhaseCount`.
    """
    count = PhaseCount()
    for meter in meters:
        meter.turn()
    readings = [read_clocks()]
    while count.done < max(count.total, 1):
        for meter in draw.sample(meters, len(meters)):
            meter.turn()
        readings.append(read_clocks())
        count.done += 1
        fitting = int(seconds / max(count.pace, 1e-9))
        count.total = min(MOST_TURNS, max(FEWEST_TURNS, count.done, fitting))
        watch(count)
    return readings


def select_quiet_turns(readings: Sequence[ClockReading]) -> tuple[list[int], bool]:
    """Return the numbers, from 1, of undisturbed turns, and False; if too few, of all, and True."""
    count = len(readings) - 1
    good = [i for i in range(count) if not was_disturbed(readings[i], readings[i + 1])]
    kept = good if len(good) >= FEWEST_TURNS else list(range(count))
    return [turn + 1 for turn in kept], kept is not good


def surfaces(
    meters: Sequence[PassMeter],
    turns: Sequence[int],
    tokens: Sequence[int],
    contexts: Sequence[int],
) -> tuple[Surface, ...]:
    """Return for each size of batch the surface of seconds [T, N, C]: turns, tokens, contexts."""
    seconds = np.stack([meter.of(turns) for meter in meters], -1)  # [T, B, N, C]
    return tuple(Surface(tuple(tokens), tuple(contexts), of) for of in seconds.swapaxes(0, 1))


def drafter_costs(
    cell: Cell,
    meters: Sequence[RoundMeter],
    turns: Sequence[int],
    passes: Surface,
    rules: Mapping[str, Rule],
) -> DrafterCosts:
    """Return tokens drafted, seconds of drafting, and seconds that `passes` and `rules` leave.

    Each is a surface by K and context, with a value for each of `turns`. `meters` timed rounds of
    `cell`, one meter a context; its verifier is a key of `rules`.
    """
    verifier = str(cell.verifier)
    rule, contexts = rules[verifier], tuple(meter.context for meter in meters)
    parts = np.stack([meter.of(turns)[:, :4, 0] for meter in meters], -1)  # [T, 4, K, C]
    drafted, draft, _, seconds = parts.swapaxes(0, 1)
    alone = (passes, rule.sampling, rule.verify, rule.host)
    unexplained = seconds - draft
    for turn, k, c in np.ndindex(*seconds.shape):
        tokens, at = float(drafted[turn, k, c]) + 1, contexts[c]
        unexplained[turn, k, c] -= sum(part.at(tokens, at)[turn] for part in alone)
    surface = partial(Surface, meters[0].ks, contexts)
    return DrafterCosts(verifier, surface(drafted), surface(draft), surface(unexplained))


def rest_of_rounds(
    meter: RoundMeter, turns: Sequence[int], passes: Sequence[Surface], context: int
) -> tuple[Surface, ...]:
    """Return by size of batch, at one `context`, the seconds of rounds less a pass: [T, K, 1]."""
    drafted, _, _, seconds, contexts = meter.of(turns).swapaxes(0, 1)  # [T, B, K]
    remainder = seconds.copy()
    for turn, size, k in np.ndindex(*seconds.shape):
        n, at = drafted[turn, size, k] + 1, contexts[turn, size, k]
        remainder[turn, size, k] -= passes[size].at(n, at)[turn]
    return tuple(
        Surface(meter.ks, (context,), remainder[:, i, :, None]) for i in range(len(meter.sizes))
    )
