"""Measure the costs of a machine: every part once a turn, many turns, medians at the end."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any, Protocol

import numpy as np
import torch
from transformers import PreTrainedModel

from spsbench.benchmark.models import measured, measured_again
from spsbench.engines.session.engine_config import engine_config_of
from spsbench.engines.session.recurrent import stateful
from spsbench.errors import UsageError
from spsbench.hardware.contention import Reading, loaded, others, read_clocks
from spsbench.hardware.files import clock
from spsbench.loop.timing import Stopwatch
from spsbench.loop.types import LM, Engine, Verifier
from spsbench.methods.resolve import plan_of, resolve, warp
from spsbench.metrics.costs import Arm, Costs, Rule
from spsbench.metrics.intervals import Floats
from spsbench.metrics.surfaces import FEWEST_TURNS, Surface
from spsbench.models.cache import Loaded
from spsbench.models.folder import local_folder
from spsbench.planning.meters import LoopMeter, PassMeter, RoundMeter, turn_tokens
from spsbench.plugins import make
from spsbench.settings.cell import OWN_LOOP, SAMPLING_FIELDS, Cell
from spsbench.settings.labels import drafting
from spsbench.settings.models import ModelSpec
from spsbench.store.provenance import digest, hardware, hash_files, versions

log = logging.getLogger(__name__)

READ = 1 << 30  # bytes of device memory: many times the caches
PASSES = 10


def weight_bytes(model: PreTrainedModel) -> int:
    """Return the bytes of weights that a pass over one token reads.

    Input embeddings beside a head of their own are read one row a token. A mixture of experts reads
    less than the count.
    """
    read = sum(weight.nbytes for weight in model.parameters())
    looked_up = getattr(model.get_input_embeddings(), "weight", None)
    head = model.get_output_embeddings()
    if looked_up is not None and head is not None and head.weight is not looked_up:
        read -= looked_up.nbytes
    return int(read)


def bandwidth_of(device: torch.device) -> float:
    """Return the measured memory bandwidth in bytes a second; measured twice under load."""
    if device.type != "cpu":
        return device_bandwidth(device)
    reading = measured(torch.get_num_threads())
    if reading.loaded:  # load can only lower the bandwidth
        reading = measured_again(reading, torch.get_num_threads())
    return reading.bandwidth


def device_bandwidth(device: torch.device, size: int = READ) -> float:
    """Return the bandwidth of a device's own memory: the best of a few sums over `size` bytes."""
    numbers = torch.ones(size // 4, dtype=torch.float32, device=device)
    watch, laps = Stopwatch(device), []
    for _ in range(PASSES):
        with watch.running():
            numbers.sum()
        laps.append(watch.lap())
    return numbers.nbytes / min(laps[1:])


LIBRARIES = ("spsbench", "torch", "transformers")


def setting_of(pairs: Iterable[tuple[Cell, Loaded]]) -> dict[str, Any]:
    """Return machine, versions, threads, warp and models of cells with one target, in plain values.

    A model in a folder has a digest of its files; a model of the hub has its revision.
    """
    listed = list(pairs)
    cell, loaded = listed[0]
    models = {"target": described(cell.target, loaded.target)}
    drafts = {
        str(draft): (draft, pair_models.draft)
        for pair_cell, pair_models in listed
        if (draft := pair_cell.draft) is not None
    }
    models |= {name: described(*draft) for name, draft in drafts.items()}
    all_versions = versions()
    return {
        "hardware": hardware(),
        "versions": {name: all_versions[name] for name in LIBRARIES},
        "threads": torch.get_num_threads(),
        "sampling": cell.recorded_warp,
        "vocabulary": loaded.vocab_size,
        "models": models,
    }


def described(spec: ModelSpec, model: Any) -> dict[str, Any]:
    """Return the fields of a model that affect its times."""
    chosen = None if model is None else engine_config_of(model)
    folder = None if spec.random else local_folder(spec.id)
    return {
        "id": spec.id,
        "revision": spec.revision,
        "weights": spec.weights,
        "files": None if folder is None else digest(hash_files(folder)),
        "engine": str(spec.engine),
        "chosen": None if chosen is None else str(chosen),
        "device": spec.device,
        "dtype": spec.dtype if model is None else str(model.dtype).removeprefix("torch."),
        "attention": spec.attention,
    }


def differing(ours: Mapping[str, Any], theirs: Mapping[str, Any], below: str = "") -> list[str]:
    """Return the paths of the values that differ between two settings: `models.target.dtype`."""
    paths = []
    for name in dict.fromkeys([*ours, *theirs]):
        one, other = ours.get(name), theirs.get(name)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            paths += differing(one, other, f"{below}{name}.")
        elif one != other:
            paths.append(below + name)
    return paths


SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 17, 25, 33)  # tokens of a pass
REQUESTED = (1, 2, 4, 8, 16)  # tokens of a draft
CONTEXTS = (64, 256, 1024)
PLAIN_TIMES = 3  # rounds of ArS in a turn; every speed-up uses them
MOST_TURNS = 25
SECONDS = 20.0

Pair = tuple[Cell, Loaded]


class Meter(Protocol):
    """A measurement that runs once a turn."""

    def turn(self) -> None:
        """Run one turn."""


class CostProgress:
    """Progress of the turns, and the time left."""

    def __init__(self, seconds: float) -> None:
        self.total, self.done = MOST_TURNS, 0
        self._seconds, self._began = seconds, time.monotonic()

    def over(self) -> bool:
        """Return whether another turn would exceed the time limit; the fewest turns run anyway."""
        self.done += 1
        passed = time.monotonic() - self._began
        turn_seconds = max(passed / self.done, 1e-9)
        self.total = min(
            MOST_TURNS, max(FEWEST_TURNS, self.done, int(self._seconds / turn_seconds))
        )
        return self.done >= self.total

    def __str__(self) -> str:
        passed = time.monotonic() - self._began
        left = passed / max(self.done, 1) * (self.total - self.done)
        return f"costs {self.done}/{self.total}, {clock(left)} to go"


def measure(
    pairs: Sequence[Pair],
    text: Sequence[int],
    *,
    contexts: Sequence[int] = CONTEXTS,
    sizes: Sequence[int] = SIZES,
    requested: Sequence[int] = REQUESTED,
    seconds: float = SECONDS,
    watch: Callable[[CostProgress], None] = lambda pace: None,
) -> Costs:
    """Measure the costs of the drafters and verifiers of some cells, and of ArS.

    Args:
        pairs: resolved cells with their models. All cells share target and sampling; the first
            of the cells with one drafter represents them all.
        text: token ids of typical input; repeated where too short.
        contexts: tokens cached before a pass; contexts that do not fit are left out.
        sizes: tokens of a pass of the target, 1 the first.
        requested: tokens requested from drafters.
        seconds: time limit; at least `FEWEST_TURNS` turns run in any case.
        watch: called after each turn.

    Raises:
        UsageError: cells that cannot be measured together, or contexts that are too short.
    """
    check(pairs)
    first, models = pairs[0]
    say_states(pairs)
    plain = resolve(first.auto_regressive), models
    room = max(sizes[-1], turn_tokens(requested)) + 1
    fitting = within(contexts, room, models.limit)
    text = enough(text, fitting[-1] + room)
    draw = Random(0)
    engine: Engine = make("engines", first.target.engine)

    def session() -> LM:
        return engine.session(models.target, vocab_size=models.vocab_size)

    device = models.target.device
    passes_of = [PassMeter([session()], text, (1,), sizes, at, device, draw) for at in fitting]
    loops = loop_meters([plain, *pairs], session(), text, sizes, draw)
    arms: dict[str, tuple[Cell, list[RoundMeter]]] = {}
    for cell, loads in (plain, *pairs):
        ks, times = (requested, 1) if cell.k != 0 else ((0,), PLAIN_TIMES)
        if drafting(cell) not in arms:
            round_meters = [RoundMeter(cell, loads, text, at, ks, draw, times) for at in fitting]
            arms[drafting(cell)] = cell, round_meters
    meters: list[Meter] = [
        *passes_of,
        *loops.values(),
        *(meter for _, round_meters in arms.values() for meter in round_meters),
    ]
    readings = take_turns(meters, CostProgress(seconds), watch, draw)
    turns, busy = quiet(readings)

    (passes,) = surfaces(passes_of, turns, sizes, fitting)
    rules = {name: loop.rule(turns) for name, loop in loops.items()}
    return Costs(
        passes=passes,
        arms={
            name: arm_of(cell, round_meters, turns, passes, rules)
            for name, (cell, round_meters) in arms.items()
        },
        rules=rules,
        setting=setting_of([plain, *pairs]),
        others=others(readings[0], readings[-1]),
        busy=busy,
        bandwidth=bandwidth_of(models.target.device),
        weights=weight_bytes(models.target),
    )


def check(pairs: Sequence[Pair]) -> None:
    """Refuse cells whose costs do not belong in one table.

    Raises:
        UsageError: no cells, decoders other than the own loop, or different targets or sampling.
    """
    if not pairs:
        raise UsageError("no cells (costs): expected at least one. Name a drafter")
    first = pairs[0][0]
    for cell, _ in pairs:
        if cell.decoder.name != OWN_LOOP:
            raise UsageError(
                f"`decoder` {cell.decoder} (costs): expected {OWN_LOOP}, whose rounds can "
                "be taken apart. Leave it out"
            )
        if any(
            getattr(cell, name) != getattr(first, name) for name in ("target", *SAMPLING_FIELDS)
        ):
            raise UsageError(
                f"{cell.target} and {first.target} (costs): expected one target "
                "under one sampling. Measure them apart"
            )


def within(contexts: Sequence[int], room: int, limit: int | None) -> list[int]:
    """Return the contexts that leave room for `room` tokens: the largest pass, a turn of rounds.

    Raises:
        UsageError: the limit is too short for any context.
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


def say_states(pairs: Sequence[Pair]) -> None:
    """Say the bytes of the states of models that keep some."""
    for cell, models in pairs:
        for spec, model in ((cell.target, models.target), (cell.draft, models.draft)):
            states = None if model is None else stateful(model)
            if states is not None:
                log.info(f"note: {spec}: {states}, of which a round of K keeps K + 2")


def enough(text: Sequence[int], count: int) -> list[int]:
    """Return at least `count` tokens, by repeating the text.

    Raises:
        UsageError: no tokens at all.
    """
    if not text:
        raise UsageError("an empty text (costs): expected tokens. Give prompts")
    return list(text) * -(-count // len(text))


def loop_meters(
    pairs: Iterable[Pair], lm: LM, text: Sequence[int], sizes: Sequence[int], draw: Random
) -> dict[str, LoopMeter]:
    """Return the loop over precomputed models by verifier, with the target's real logits."""
    most = sizes[-1]
    logits = lm.append(torch.tensor(text[:most]), keep=most).logits.clone()
    by_rule: dict[str, LoopMeter] = {}
    for cell, _ in pairs:
        name = str(cell.verifier)
        if name not in by_rule:
            rule: Verifier = make("verifiers", cell.verifier)
            plan = plan_of(cell.drafter)
            by_rule[name] = LoopMeter(logits, warp(cell), rule, plan, sizes, draw)
    return by_rule


def take_turns(
    meters: Sequence[Meter], pace: CostProgress, watch: Callable[[CostProgress], Any], draw: Random
) -> list[Reading]:
    """Run a warm-up turn, then turns until the time is up; return clock readings around each."""
    for meter in meters:
        meter.turn()
    readings = [read_clocks()]
    over = False
    while not over:
        for meter in draw.sample(meters, len(meters)):
            meter.turn()
        readings.append(read_clocks())
        over = pace.over()
        watch(pace)
    return readings


def quiet(readings: Sequence[Reading]) -> tuple[list[int], bool]:
    """Return the turns to use, and whether other work disturbed the turns.

    Undisturbed turns, if there are enough of them; otherwise all turns.
    """
    count = len(readings) - 1
    good = [i for i in range(count) if not loaded(readings[i], readings[i + 1])]
    kept = good if len(good) >= FEWEST_TURNS else list(range(count))
    return [turn + 1 for turn in kept], kept is not good


def surfaces(
    meters: Sequence[PassMeter],
    turns: Sequence[int],
    tokens: Sequence[int],
    contexts: Sequence[int],
) -> tuple[Surface, ...]:
    """Return the passes of a target by size of batch, from a meter for each context."""
    seconds = np.stack([meter.of(turns) for meter in meters], -1)  # [T, B, N, C]
    return tuple(Surface(tuple(tokens), tuple(contexts), of) for of in seconds.swapaxes(0, 1))


def arm_of(
    cell: Cell,
    meters: Sequence[RoundMeter],
    turns: Sequence[int],
    passes: Surface,
    rules: Mapping[str, Rule],
) -> Arm:
    """Return the costs of rounds at some contexts, less the costs of the parts alone."""
    verifier = str(cell.verifier)
    rule, ks = rules[verifier], meters[0].ks
    contexts = [meter.context for meter in meters]
    parts = np.stack([meter.of(turns)[:, :4, 0] for meter in meters], -1)  # [T, 4, K, C]
    drafted, draft, target, whole = (parts[:, i] for i in range(4))

    def surface(seconds: Floats) -> Surface:
        return Surface(ks, tuple(contexts), seconds)

    explained = np.empty_like(whole)
    for turn, k, c in np.ndindex(*whole.shape):
        tokens, at = float(drafted[turn, k, c]) + 1, contexts[c]
        whole_passes = (passes, rule.sampling, rule.verify, rule.host)
        explained[turn, k, c] = sum(
            part.of_turns([turn]).at(tokens, at)[0] for part in whole_passes
        )
    return Arm(
        verifier=verifier,
        drafted=surface(drafted),
        draft=surface(draft),
        target=surface(target),
        unexplained=surface(whole - draft - explained),
    )
