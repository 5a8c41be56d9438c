"""Products of the same inputs by one operator, in traces: queries, keys, values; gate and up.

What each costs beside its arithmetic, a call and a wait for all threads, is then there once. The
numbers are the same.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from spsbench.extensions.cpu.kernels.operators import in_c, run
from spsbench.extensions.cpu.packing.coded_panels import QuantisedPanels
from spsbench.extensions.cpu.packing.panels import PanelLinear

MAX_MERGED = 3  # products of one operator, as in products.h

InPanels = PanelLinear | QuantisedPanels


@contextmanager
def merged(layer: nn.Module, once: Callable[[], object]) -> Iterator[None]:
    """Multiply inputs that several parts of `layer` share by all of them at once.

    Args:
        layer: as it is traced.
        once: runs the layer, to see which parts get the same inputs.
    """
    with ExitStack() as stack:
        stack.enter_context(together(of_same_inputs(layer, once)))
        yield


@contextmanager
def together(groups: Sequence[Sequence[InPanels]]) -> Iterator[None]:
    """Multiply the inputs of each group, as `of_same_inputs` returns it, by all of it at once."""
    with ExitStack() as stack:
        for parts in groups:
            products = _Together(parts)
            for number, part in enumerate(parts):
                stack.enter_context(_instead(part, products.product(number)))
        yield


class _Together:
    """Layers over the same inputs, whose products are computed together."""

    def __init__(self, parts: Sequence[InPanels]) -> None:
        self.parts = parts
        self._latest: tuple[Tensor, Sequence[Tensor]] | None = None  # inputs and their products

    def product(self, number: int) -> Callable[[Tensor], Tensor]:
        """Return the forward of one of the parts."""
        plain: Any = self.parts[number].forward

        def forward(x: Tensor) -> Any:
            if number == 0:
                self._latest = x, self._all(x)
            latest = self._latest  # read once: another thread may run the same parts
            if latest is None or latest[0] is not x:
                return plain(x)
            if number == len(self.parts) - 1:  # its memory is soon used again
                self._latest = None
            return latest[1][number]

        return forward

    def _all(self, x: Tensor) -> Sequence[Tensor]:
        first, empty = self.parts[0], [None] * (MAX_MERGED - len(self.parts))
        weights = [*(part.weight for part in self.parts), *empty]
        biases = [*(part.bias for part in self.parts), *empty]
        sizes = [*(part.out_features for part in self.parts), *(0 for _ in empty)]
        arguments: Any = x.contiguous(), *weights, *biases, *sizes, *first.how(x.dtype)
        products: Any = run(f"{first.operator}_{MAX_MERGED}", *arguments)
        return tuple(products)


def of_same_inputs(layer: nn.Module, once: Callable[[], object]) -> list[list[InPanels]]:
    """Return the parts of `layer` called in sequence with the same inputs, once each."""
    parts = [part for part in layer.modules() if isinstance(part, InPanels)]
    parts = [part for part in parts if in_c(f"{part.operator}_{MAX_MERGED}") is not None]
    if len(parts) < 2:
        return []
    watch = _Watch()
    with ExitStack() as stack:
        for part in parts:
            stack.enter_context(_instead(part, watch.over(part)))
        once()
    called = Counter(part for group in watch.groups for part in group)
    return [g for g in watch.groups if len(g) > 1 and all(called[part] == 1 for part in g)]


class _Watch:
    """Groups of the layers that are called in sequence with the same inputs."""

    def __init__(self) -> None:
        self.groups: list[list[InPanels]] = []
        self._inputs: Tensor | None = None

    def over(self, part: InPanels) -> Callable[[Tensor], Tensor]:
        """Return a forward of `part` that is noted."""
        plain: Any = part.forward

        def forward(x: Tensor) -> Any:
            alike = x is self._inputs and _alike(self.groups[-1][0], part, x)
            if alike and len(self.groups[-1]) < MAX_MERGED:
                self.groups[-1].append(part)
            else:
                self.groups.append([part])
            self._inputs = x
            return plain(x)

        return forward


def _alike(one: InPanels, other: InPanels, x: Tensor) -> bool:
    """Return whether one operator can multiply both by `x`."""
    return one.operator == other.operator and one.how(x.dtype) == other.how(x.dtype)


@contextmanager
def _instead(part: nn.Module, forward: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Run `forward` for a part."""
    vars(part)["forward"] = forward  # before that of its class
    try:
        yield
    finally:
        del vars(part)["forward"]
