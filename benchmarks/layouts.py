"""What each layout of the compiled engine gains: the time of a pass without it, over one with it.

    .venv/bin/python benchmarks/layouts.py --targets nano smollm2
    SPSBENCH_MARCH=x86-64-v3 .venv/bin/python benchmarks/layouts.py   # the kernels for AVX2

A layout is switched off in a model of its own, which takes the next one: tiles -> panels -> torch's
products; halves -> panels of float32; dots -> panels of codes; programs -> the model's own code.
Passes with and without it alternate on one thread. A time is the least processor time of a thread,
which other work on the machine disturbs little: at 1.03 and more a layout gains 3 %. `roll-out` is
four passes in one call, and one by one. Results are kept by processor in results/layouts.json and
layouts.md.
"""

import argparse
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from spsbench.engines.session.engine_config import get_prepared, set_engine_config
from spsbench.extensions.cpu.fast import Fast
from spsbench.extensions.cpu.packing import coded_panels, panels
from spsbench.loop.sampling import Warp
from spsbench.models.source import source_of
from spsbench.settings.execution import Access
from spsbench.settings.models import ModelSpec
from timing import RESULTS, alternate, keep

LENGTHS = {"1 row": 1, "5 rows": 5, "64 rows": 64, "512 rows": 512}
CONTEXT = 100  # tokens in the cache before a pass of few rows; one of many is a prompt
FEW = 5
ROLLED = 4  # passes of a roll-out


class Side(NamedTuple):
    """A kind of model."""

    dtype: str = "bfloat16"
    weights: str = "checkpoint"
    layouts: tuple[str, ...] = ("tiles", "panels")  # those that may be chosen
    code_layouts: tuple[str, ...] = ("dots", "panels")
    halves: bool = True
    programs: bool = True


PANELS = Side(layouts=("panels",))
WIDE = Side("float32")
SWITCHES = {  # with a layout, and without it
    "tiles": (Side(), PANELS),
    "panels": (PANELS, Side(layouts=())),
    "panels of float32": (WIDE, WIDE._replace(layouts=())),
    "halves": (WIDE, WIDE._replace(halves=False)),
    "dots, int8": (Side(weights="int8"), Side(weights="int8", code_layouts=("panels",))),
    "dots, int4": (Side(weights="int4"), Side(weights="int4", code_layouts=("panels",))),
    "programs": (Side(), Side(programs=False)),
}


def session_of(target: str, side: Side) -> Any:
    """Return a session over a model of its own."""
    linear = {name: kind for name, kind in panels.LAYOUTS.items() if name in side.layouts}
    coded = {n: kind for n, kind in coded_panels.CODE_LAYOUTS.items() if n in side.code_layouts}
    halvable = panels.halvable if side.halves else lambda weight: False
    spec = ModelSpec(id=target, dtype=side.dtype, weights=side.weights)
    source = source_of(spec, Access(offline=True))
    model = source.model(source.locate(spec), mapped=True)
    with (
        patch.dict(panels.LAYOUTS, linear, clear=True),
        patch.dict(coded_panels.CODE_LAYOUTS, coded, clear=True),
        patch.object(panels, "halvable", halvable),
    ):
        Fast().prepare(model, threads=1)
    if not side.programs:
        set_engine_config(model, get_prepared(model).choice)
    return Fast().session(model)


def processor_time(call: Callable[[], Any], restore: Callable[[], Any]) -> float:
    """Return the processor time of this thread in a call; `restore` follows it, untimed."""
    began = time.thread_time()
    call()
    spent = time.thread_time() - began
    restore()
    return spent


def feed(lm: Any, tokens: int) -> Callable[[], Any]:
    """Return a pass of so many tokens, from an empty cache where they are many."""
    if tokens > FEW:
        lm.commit(0)
    elif lm.length < CONTEXT:
        lm.append(torch.arange(CONTEXT) % lm.vocab_size, keep=0)
    return partial(lm.append, torch.arange(tokens), keep=1)


def compared(calls: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, Any]:
    """Return the least ms with a layout, and the ratio of the least time without it to that."""
    times = alternate(calls, repeats)
    with_it, without = min(times["with"]), min(times["without"])
    return {"ms": round(1e3 * with_it, 3), "without over with": round(without / with_it, 3)}


def measure(target: str, flags: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each layout and each pass over a target."""
    rows: list[dict[str, Any]] = []
    for name in flags.layouts:
        sides = dict(zip(("with", "without"), SWITCHES[name], strict=True))
        lms = {side: session_of(target, kind) for side, kind in sides.items()}
        for label, tokens in LENGTHS.items():
            length = CONTEXT if tokens <= FEW else 0
            for lm in lms.values():
                lm.commit(0)
            calls = {
                side: partial(processor_time, feed(lm, tokens), partial(lm.commit, length))
                for side, lm in lms.items()
            }
            repeats = flags.repeats if tokens <= FEW else max(5, flags.repeats // 10)
            rows.append(
                {"target": target, "layout": name, "pass": label, **compared(calls, repeats)}
            )
    lm = session_of(target, Side())
    lm.append(torch.arange(CONTEXT) % lm.vocab_size, keep=0)
    u, warp, logits = torch.full((ROLLED,), 0.5).double(), Warp(1.0), torch.zeros(1, lm.vocab_size)
    logits = logits.to(torch.bfloat16)
    lm.append(torch.arange(1), keep=1), lm.append(torch.arange(1), keep=1)

    def step_by_step() -> None:
        for _ in range(ROLLED):
            warp(lm.append(torch.arange(1), keep=1).logits)

    ways: dict[str, Callable[[], Any]] = {}
    ways |= {"with": partial(lm.roll_out, logits, u, warp), "without": step_by_step}
    calls = {
        n: partial(processor_time, way, partial(lm.commit, CONTEXT)) for n, way in ways.items()
    }
    lm.commit(CONTEXT)
    rows.append({"target": target, "layout": "roll-out", "pass": "4 of 1 row"})
    rows[-1] |= compared(calls, flags.repeats)
    return rows


def main() -> None:
    """Run and write."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--targets", nargs="+", default=["nano", "smollm2"])
    options.add_argument("--layouts", nargs="+", default=list(SWITCHES), choices=list(SWITCHES))
    options.add_argument("--repeats", type=int, default=60)
    flags = options.parse_args()
    torch.set_num_threads(1)
    with torch.inference_mode():
        rows = [row for target in flags.targets for row in measure(target, flags)]
    keep(RESULTS / "layouts", "one thread, least processor time", rows, threads=1)


if __name__ == "__main__":
    main()
