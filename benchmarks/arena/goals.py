"""What the fast engine is held to: each a ratio that must, and one that should, not be passed."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from arena.figures import (
    MS,
    Ratio,
    Spread,
    block_cost,
    over_limit,
    over_turns,
    ratio,
    spread,
    steady_bytes,
    step,
)
from arena.roster import QUANTISED
from spsbench.settings.models import BUNDLED

OURS = "fast"
ALL = ""


class Goal(NamedTuple):
    """A limit for some pairs and dtypes; empty: for all, of pairs those of random weights.

    A bundled pair is too small for more than its own goal: it fits the caches.
    """

    what: str
    pair: str
    dtype: str
    must: float
    aim: float


STEP, BLOCK, ARS = "step(1) / memory limit", "v(K)", "ArS / HF generate"
SPS, OPENVINO = "SpS / HF assisted, equal K, by pass", "SpS / OpenVINO, by pass"
LLAMA_ARS, LLAMA_SPS = "ArS / llama.cpp", "SpS / llama.cpp, by pass"
OPENVINO_ARS = "ArS / OpenVINO"
GAIN, MEMORY = "SpS / ArS", "steady memory / weights"
LOAD, LOAD_HF = "load time / eager", "load time / HF"
BESIDE = "step(1) / memory limit beside it"

GOALS = (
    Goal(STEP, "gpt2-large", "bfloat16", 1.5, 1.25),
    Goal(STEP, "llama-1b", "bfloat16", 1.25, 1.1),
    Goal(STEP, "gpt2-large", "float32", 1.5, 1.3),
    Goal(BLOCK, ALL, "bfloat16", 1.2, 1.1),
    Goal(BLOCK, ALL, "float32", 1.3, 1.15),
    Goal(ARS, ALL, ALL, 0.5, 0.4),
    Goal(SPS, "gpt2-large", "float32", 0.33, 0.25),
    Goal(SPS, "gpt2-large", "bfloat16", 0.4, 0.33),
    Goal(SPS, "llama-1b", "bfloat16", 0.5, 0.4),
    Goal(OPENVINO, "gpt2-large", "bfloat16", 1.1, 0.95),
    Goal(LLAMA_ARS, ALL, "bfloat16", 1.3, 1.0),
    Goal(LLAMA_SPS, ALL, "bfloat16", 0.9, 0.75),
    Goal(GAIN, "nano", ALL, 0.7, 0.55),
    Goal(MEMORY, ALL, ALL, 1.25, 1.1),
    Goal(LOAD, ALL, ALL, 2.0, 1.0),
    Goal(LLAMA_SPS, ALL, "int8", 0.75, 0.6),
    Goal(LLAMA_ARS, ALL, "int8", 1.2, 1.0),
    Goal(OPENVINO_ARS, ALL, "int8", 1.2, 1.0),
    Goal(LLAMA_ARS, ALL, "int4", 1.3, 1.1),
    Goal(OPENVINO_ARS, ALL, "int4", 1.3, 1.1),
)


class Sizes(NamedTuple):
    """Bytes of weights."""

    target: int  # that one pass reads
    both: int


class Result(NamedTuple):
    """A ratio as measured, beside its goal where there is one for this pair and dtype."""

    what: str
    value: Spread
    goal: Goal | None

    @property
    def verdict(self) -> str:
        """`aim`, `pass` or `miss` by the median; empty without a goal."""
        if self.goal is None:
            return ""
        if self.value.median <= self.goal.aim:
            return "aim"
        return "pass" if self.value.median <= self.goal.must else "miss"


def results(
    engines: Mapping[str, Mapping[str, Any]],
    pair: str,
    dtype: str,
    *,
    bandwidth: float,
    sizes: Sizes,
    ours: str = OURS,
) -> Iterator[Result]:
    """Every ratio that this run has the engines for."""
    weights = ours.partition("@")[2]
    for what, value in ratios(engines, bandwidth, sizes, ours):
        fitting = (g for g in GOALS if g.what == what and fits(g, pair, weights or dtype))
        yield Result(what, value, next(fitting, None))


def fits(goal: Goal, pair: str, dtype: str) -> bool:
    """Whether it is a goal for this measurement."""
    pairs = (pair,) if pair in BUNDLED else (ALL, pair)
    dtypes = (dtype,) if dtype in QUANTISED else (ALL, dtype)
    return goal.pair in pairs and goal.dtype in dtypes


def ratios(
    engines: Mapping[str, Mapping[str, Any]], bandwidth: float, sizes: Sizes, ours: str
) -> Iterator[tuple[str, Spread]]:
    """What the run can tell of the engine `ours`."""
    mine = engines.get(ours)
    if mine is None:
        return
    if weights := ours.partition("@")[2]:
        yield from _quantised(engines, mine, weights)
        return
    one, beside, cost = step(mine, "one"), over_limit(mine, sizes.target), block_cost(mine)
    if one is not None and beside is not None:
        yield STEP, Spread(*(value * bandwidth / sizes.target / MS for value in one))
        yield BESIDE, beside
    if cost is not None:
        yield BLOCK, cost
    yield from _against(engines, mine)
    gain = _turns(mine, "sps") and ratio(_turns(mine, "sps"), _turns(mine, "ars"))
    if gain:
        yield GAIN, gain.by_token
    if mine["turns"]:
        yield MEMORY, spread([steady_bytes(mine) / sizes.both])
    for what, name in ((LOAD, "eager"), (LOAD_HF, "hf")):
        if name in engines and name != ours:
            yield what, spread([_load(mine) / _load(engines[name])])


def _quantised(
    engines: Mapping[str, Mapping[str, Any]], mine: Mapping[str, Any], weights: str
) -> Iterator[tuple[str, Spread]]:
    """Against peers whose weights have as many bits."""
    cost, gain = block_cost(mine), _rival(mine, mine, "sps", "ars")
    if cost is not None:
        yield BLOCK, cost
    if gain:
        yield GAIN, gain.by_token
    llama, plain = (engines.get(f"{name}@{weights}", {}) for name in ("llamacpp", "openvino-plain"))
    for what, rival in ((LLAMA_ARS, llama), (OPENVINO_ARS, plain)):
        if found := _rival(mine, rival, "ars", "ars"):
            yield what, found.by_token
    for what, name in ((LLAMA_SPS, "llamacpp"), (OPENVINO, "openvino")):
        if found := _rival(mine, engines.get(f"{name}@{weights}", {}), "sps", "sps"):
            yield what, found.by_pass


def _against(
    engines: Mapping[str, Mapping[str, Any]], mine: Mapping[str, Any]
) -> Iterator[tuple[str, Spread]]:
    rivals = {name: engines.get(name, {}) for name in ("hf", "openvino", "llamacpp")}
    for arm in fastest_plain(rivals["hf"])[:1]:
        if found := _rival(mine, rivals["hf"], "ars", arm):
            yield ARS, found.by_token
    for what, name in ((SPS, "hf"), (OPENVINO, "openvino"), (LLAMA_SPS, "llamacpp")):
        if found := _rival(mine, rivals[name], "sps", "sps"):
            yield what, found.by_pass
    if found := _rival(mine, rivals["llamacpp"], "ars", "ars"):
        yield LLAMA_ARS, found.by_token


def fastest_plain(hf: Mapping[str, Any]) -> list[str]:
    """The plain variants of transformers, the quickest first."""
    times = {
        arm: over_turns(hf, arm, lambda d: d.ms_per_token)
        for arm in hf.get("turns", {})
        if arm.startswith("ars")
    }
    known = {arm: time.median for arm, time in times.items() if time is not None}
    return sorted(known, key=lambda arm: known[arm])


def _rival(mine: Any, theirs: Any, my_arm: str, their_arm: str) -> Ratio | None:
    return ratio(_turns(mine, my_arm), _turns(theirs, their_arm))


def _turns(facts: Mapping[str, Any], arm: str) -> list[Mapping[str, Any]]:
    return list(facts.get("turns", {}).get(arm, []))


def _load(facts: Mapping[str, Any]) -> float:
    return min(load["seconds"] for load in facts["loads"])
