"""Passes of a drafter's own network by programs: a head's, which is no model.

A pass is recorded with the tables and the parts of the target that it reads.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spsbench.engines.replay import MAX_ROWS, NetworkPass, RollOut
from spsbench.extensions.cpu.kernels.steps import is_read, text_record
from spsbench.extensions.cpu.replay.models import tensors_of
from spsbench.extensions.cpu.replay.program import Operands, Size
from spsbench.extensions.cpu.replay.record import Recorder, Recording, RecordingCache, record
from spsbench.extensions.cpu.replay.replay import Replay

SIZES = Size(16, 16), Size(6, 6), Size(9, 9)  # recorded; the last one is a check
PAST = 3  # tokens before them
RESULT = ""  # the name of the only output


class NetworkRequest(NamedTuple):
    """A pass of a network, or n of one row, which are `size`."""

    plain: Any  # a `NetworkPass`, its own code; None: a roll-out, which runs none
    tensors: Sequence[Tensor]  # [m, ...], of a roll-out [n, ...]
    mask: Any  # additive [1, 1, m, n]; None: each row sees all up to itself
    cache: Any  # a cache of one layer; None: there is no attention
    size: Size

    @property
    def cache_layers(self) -> list[Any]:
        """Return the layers of the cache."""
        return [] if self.cache is None else list(self.cache.layers)

    @property
    def kind(self) -> Hashable:
        return self.size, self.mask is None

    def outputs(self, is_checked: bool) -> tuple[str, ...]:
        return (RESULT,)


class NetworkBody:
    """A pass of a network over parts of a target.

    Args:
        modules: all whose weights the pass reads.
    """

    sizes: Sequence[Size] = SIZES

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.weights: Sequence[Tensor] = [
            x for module in modules for part in module.modules() for x in tensors_of(part)
        ]

    def run(self, request: NetworkRequest) -> Mapping[str, Tensor]:
        return {RESULT: request.plain(request.tensors, request.mask, request.cache)}

    def takes(self, request: NetworkRequest) -> bool:
        """Return whether rows are few, after others in the cache's only layer, if there is one."""
        layers = request.cache_layers
        fits = len(layers) == (request.cache is not None) and request.size.tokens <= MAX_ROWS
        return fits and all(layer.length > 0 for layer in layers)

    def operands(self, request: NetworkRequest, passes: int) -> Operands | None:
        layers, mask, m = request.cache_layers, request.mask, request.size.tokens
        end = layers[0].length + m if layers else 0
        has_room = all(end + passes - 1 <= layer.capacity for layer in layers)
        of_pass = request.tensors if passes == 1 else [x[:1] for x in request.tensors]
        if not has_room or not all(x.is_contiguous() for x in of_pass):
            return None
        if mask is not None and not (layers and is_read(mask, m, end, layers[0].keys.dtype)):
            return None
        texts = text_record(m, end, end, mask) if layers else ()
        return Operands(request.tensors, (), layers, texts, end)

    def record(self, request: NetworkRequest) -> list[Recording]:
        return [self._record_size(size.tokens, request) for size in SIZES]

    def _record_size(self, m: int, request: NetworkRequest) -> Recording:
        """Record a pass over `m` rows, those of `request` again and again."""
        rows = torch.arange(m) % len(request.tensors[0])
        inputs, layers = [x[rows].contiguous() for x in request.tensors], request.cache_layers
        cache = RecordingCache(PAST) if layers else None
        masks = [torch.zeros(1, 1, m, PAST + m, dtype=layer.keys.dtype) for layer in layers]
        mask = masks[0] if masks else None
        recorder = Recorder(inputs, None, masks, self.weights, cache)
        copied = request._replace(tensors=inputs, mask=mask, cache=cache)
        return record(lambda: self.run(copied), recorder)


class NetworkReplay:
    """Makes the passes of a network over parts of a target: see `engines.replay.NetworkReplay`.

    Args:
        modules: the network first, and whatever else has weights that its passes read.

    Attributes:
        replays: the replays by the name of a pass.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._body, self._lock = NetworkBody(modules), Lock()
        self._modules = modules  # which live as long as their programs
        self.replays: dict[Hashable, Replay[NetworkRequest]] = {}

    def run(
        self,
        name: Hashable,
        plain: NetworkPass,
        tensors: Sequence[Tensor],
        mask: Any = None,
        cache: Any = None,
    ) -> Tensor:
        """Return `plain(tensors, mask, cache)`."""
        replay = self.replays.setdefault(name, Replay(self._body, self._lock))
        m = len(tensors[0])
        return replay.make_pass(NetworkRequest(plain, tensors, mask, cache, Size(m, m)))[RESULT]

    def roll_out(
        self,
        name: Hashable,
        rows: Tensor,
        tables: Sequence[Tensor],
        cache: Any,
        rolled: RollOut,
    ) -> bool:
        """Fill all but the first of `rows` [n + 1, X]; return whether a checked program did."""
        if name not in self.replays:
            return False
        inputs = [rolled.ids, *tables, rows[:-1]]
        request = NetworkRequest(None, inputs, None, cache, Size(1, 1))
        logits = rows[0, rolled.start :]
        return self.replays[name].make_roll_out(request, rolled, logits, rows[1:]) is not None


def replays_of(network: nn.Module) -> Callable[..., NetworkReplay]:
    """Return a function from parts of a target to the programs of a network over them, cached."""
    replays: dict[tuple[int, ...], NetworkReplay] = {}

    def replay_over(*parts: nn.Module) -> NetworkReplay:
        key = tuple(map(id, parts))  # which live as long as their programs, which hold them
        if key not in replays:
            replays[key] = NetworkReplay([network, *parts])
        return replays[key]

    return replay_over
