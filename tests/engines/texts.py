"""A text by an engine, to be held against that of another."""

from typing import Any

from spsbench.decode import decode
from spsbench.drafters.model import ModelDrafter
from spsbench.noise import PhiloxStream
from spsbench.sampling import Warp
from spsbench.schedules.constant import Constant
from spsbench.types import Engine, Limits
from spsbench.verifiers.sps import Sps


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
