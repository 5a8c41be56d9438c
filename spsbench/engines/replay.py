"""The seam of an engine that runs passes by programs of its own.

`ModelReplay` runs passes of a model: an engine keeps one beside its configuration
(`set_engine_config`), and sessions ask it. `NetworkReplay` runs passes of a head's network: an
engine that packs the network leaves a `replay_over` there, as `static` does.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn
from transformers import PreTrainedModel

from spsbench.engines.session.masks import PassInputs
from spsbench.loop.sampling import Warp

MAX_ROWS = 129  # tokens of a replayed pass: the newest and 128 nodes of a tree


class RollOut(NamedTuple):
    """The draws of a roll-out: passes of one token, each drawn from the logits of the one before.

    A token is drawn by inverse CDF, as `loop.sampling.sample` draws, up to rounding.
    """

    ids: Tensor  # [n] int64, filled with the tokens
    u: Tensor  # [n] float64 in [0, 1)
    warp: Warp
    start: int  # which number of a pass's result is the first logit
    tokens: int  # logits that are tokens; the rest is padding
    names: Tensor | None = None  # [tokens] int64: their ids; None: their numbers


class ModelReplay(Protocol):
    """Runs the passes of one model for all sessions over it."""

    def run(self, inputs: PassInputs, end: int) -> Any:
        """Return the output of a pass, as the model's own, and lengthen the cache to `end`."""

    def roll_out(
        self, inputs: PassInputs, end: int, logits: Tensor, rolled: RollOut
    ) -> Tensor | None:
        """Make n passes of a token; return the logits [n, V'] after each; None: nothing was done.

        The first token is drawn from `logits` [1, V'], each later one from the pass before; the
        tokens fill `rolled.ids`, which `inputs` has as ids. The first pass extends the cache to
        `end`, each later one by a row more.
        """

    def attach(self, model: PreTrainedModel) -> "ModelReplay | None":
        """Run the passes of another model, such as a view of this one; None: it cannot be."""


NetworkPass = Callable[[Sequence[Tensor], Any, Any], Tensor]
"""(inputs [m, ...], mask [1, 1, m, n] or None, cache) -> a tensor: the network's own code."""


class NetworkReplay(Protocol):
    """Runs the passes of a network over parts of a target."""

    def run(
        self,
        name: Hashable,
        plain: NetworkPass,
        tensors: Sequence[Tensor],
        mask: Any = None,
        cache: Any = None,
    ) -> Tensor:
        """Return `plain(tensors, mask, cache)`, a tensor of its own, perhaps without a call of it.

        All passes of one `name` run the same code, a function of `tensors` [m, ...], the additive
        mask and the cache alone. `cache` is that of the network's only layer with attention, and
        grows by m rows; None: no layer has attention.
        """

    def roll_out(
        self, name: Hashable, rows: Tensor, tables: Sequence[Tensor], cache: Any, rolled: RollOut
    ) -> bool:
        """Make n passes of one row each, and return True; False: nothing was done.

        A token is drawn from the logits, `rolled.start` on, of the result before it, in `rows`
        [n + 1, X], of which the first is given and the others filled; tokens fill `rolled.ids`. A
        pass, that of `name`, takes the token, a row of each of `tables` [n, ...], and that result.
        """


def replay_over(network: nn.Module, *parts: nn.Module) -> NetworkReplay | None:
    """Return what runs the passes of `network` over `parts` of a target; None: its own code."""
    make: Callable[..., NetworkReplay] | None = getattr(network, "replay_over", None)
    return None if make is None else make(*parts)
