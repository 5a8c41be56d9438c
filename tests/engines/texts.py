"""A text by an engine, to be held against that of another."""

from typing import Any

from spsbench.loop.decode import decode
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Engine, Limits
from spsbench.methods.drafters.model import ModelDrafter
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.sps import Sps


def tokens(engine: Engine, target: Any, draft: Any, n: int, warp: Warp, seed: int = 0) -> list[int]:
    rounds = decode(
        [1, 2, 3],
        target=engine.session(target),
        drafter=ModelDrafter(engine.session(draft)),
        verifier=Sps(),
        schedule=Constant(4),
        warp=warp,
        noise=PhiloxStream(seed),
        limits=Limits(n),
    )
    return [token for done in rounds for token in done.tokens]
