"""The losses by name: `kl`, `jsd:beta=0.1`."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from spsbench.errors import UsageError
from spsbench.spec import Spec
from spsbench.training.losses.acceptance import acceptance
from spsbench.training.losses.cross_entropy import cross_entropy
from spsbench.training.losses.forward_kl import forward_kl
from spsbench.training.losses.hybrid import hybrid
from spsbench.training.losses.jensen_shannon import jensen_shannon
from spsbench.training.losses.laws import Loss
from spsbench.training.losses.reverse_kl import reverse_kl
from spsbench.training.losses.top_k import top_k
from spsbench.training.losses.total_variation import total_variation

LOSSES: Mapping[str, Callable[..., Any]] = {
    "ce": cross_entropy,
    "kl": forward_kl,
    "reverse-kl": reverse_kl,
    "jsd": jensen_shannon,
    "tv": total_variation,
    "acceptance": acceptance,
    "hybrid": hybrid,
    "top-k": top_k,
}
ACCEPTANCES = frozenset({"tv", "acceptance", "hybrid"})
"""Those that are an acceptance: the target's law is warped for them as it will be."""

LAWLESS = frozenset({"ce"})
"""Those that look at the target's tokens alone: its law at each place is not needed for them."""


def loss_of(spec: Spec) -> Loss:
    """The loss that a user names.

    Raises:
        UsageError: no such loss, or an argument that it has not, or not so.
    """
    if spec.name not in LOSSES:
        raise UsageError(f"--loss {spec}: expected one of {', '.join(LOSSES)}. Choose one")
    made, known = LOSSES[spec.name], {"jsd": {"beta"}, "hybrid": {"steep"}, "top-k": {"k"}}
    given = dict(spec.args)
    if unknown := sorted(given.keys() - known.get(spec.name, set())):
        raise UsageError(f"--loss {spec}: {unknown[0]} is no argument of {spec.name}. Leave it out")
    ranges: dict[str, tuple[str, Callable[[Any], bool]]] = {
        "beta": ("a number between 0 and 1, such as 0.5", lambda v: 0 < v < 1),
        "steep": ("a number above 0", lambda v: v > 0),
        "k": ("a whole number of 1 or more", lambda v: type(v) is int and v >= 1),
    }
    for name, value in given.items():
        expected, holds = ranges[name]
        if isinstance(value, str | bool) or not holds(value):
            raise UsageError(f"--loss {spec}: expected {name} to be {expected}")
    return partial(made, **given) if given else made
