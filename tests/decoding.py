"""Texts of the shipping loop, with the usual parts where a test names none."""

from collections.abc import Sequence
from typing import Any

from spsbench.loop.decode import decode
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import Warp
from spsbench.loop.types import LM, Drafter, Engine, Limits, Round
from spsbench.methods.drafters.model import ModelDrafter, NoDrafter
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.sps import Sps


def rounds_of(
    target: LM,
    drafter: Drafter | None = None,
    tokens: int = 30,
    *,
    prompt: Sequence[int] = (1, 2, 3),
    k: int = 4,
    seed: int = 0,
    **parts: Any,
) -> list[Round]:
    """Rounds of a text: greedy, by the paper's rule and with a constant K where no part differs."""
    usual = {
        "verifier": Sps(),
        "schedule": Constant(k),
        "warp": Warp(0),
        "noise": PhiloxStream(seed),
        "limits": Limits(tokens),
    }
    return list(decode(prompt, target=target, drafter=drafter or NoDrafter(), **usual | parts))


def output(rounds: Sequence[Round]) -> list[int]:
    """The tokens of all rounds."""
    return [token for done in rounds for token in done.tokens]


def text_of(
    engine: Engine, target: Any, draft: Any, tokens: int, warp: Warp, seed: int = 0
) -> list[int]:
    """Tokens of a pair of models under an engine."""
    drafter = ModelDrafter(engine.session(draft))
    return output(rounds_of(engine.session(target), drafter, tokens, warp=warp, seed=seed))
