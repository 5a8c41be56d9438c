"""Asking a verifier how it would rule, for many settings of its uniforms at once.

A verifier that never reads a value on the host can be asked for hundreds of settings in one call,
by `torch.func.vmap`; any other is asked one by one. This is how thresholds are searched for; what
is found is then run as it is.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from spsbench.loop.types import Draft, Noise, Purpose, Verdict, Verifier

Uniform = tuple[Purpose, int]
"""One of a round's numbers, by its purpose and slot."""

Fixed = Mapping[Uniform, float]
"""Uniforms whose values are given."""

Move = tuple[Fixed, Uniform]
"""What is fixed while one uniform moves, and that one."""

Ruling = tuple[int, ...]
"""The padded path of accepted nodes, then the final token."""

LATER = 7  # values that the uniforms which are not fixed try


@dataclass
class Asked:
    """A verifier with one draft and the target's laws `q` [N + 1, V] of it."""

    verifier: Verifier
    draft: Draft
    q: Tensor
    at_once: bool = field(init=False, default=True)  # until it turns out that it cannot be

    def one(self, fixed: Fixed, later: int) -> Ruling:
        """The ruling with some uniforms fixed and the others as trial `later` has them."""
        path, token, _ = self.verifier(self.draft, self.q, Probe(fixed, later))
        return (*path.tolist(), int(token))

    @cached_property
    def order(self) -> list[Uniform]:
        """The uniforms in the order in which it asks for them, as far as one ruling shows."""
        probe = Probe({}, 0)
        self.verifier(self.draft, self.q, probe)
        return list(dict.fromkeys(probe.heard))

    def after(self, uniform: Uniform) -> list[Uniform]:
        """Those that it asks for later than one; none where it is asked setting by setting."""
        if not self.at_once or uniform not in self.order:
            return []
        return self.order[self.order.index(uniform) + 1 :]

    def along(self, moves: Sequence[Move], points: Sequence[float]) -> Tensor:
        """[moves, LATER, points, N + 1] the rulings while one uniform moves along `points`.

        Each move is that uniform and what is fixed meanwhile. Fewer moves are answered, but the
        first one always is, where settings must be tried one by one.
        """
        if self.at_once:
            try:
                with quietly():
                    return self._together(moves, points)
            except Exception:  # it reads a value, or does what vmap cannot: whatever vmap raises
                self.at_once = False
        fixed, moved = moves[0]
        found = [[self.one({**fixed, moved: u}, later) for u in points] for later in range(LATER)]
        return torch.tensor([found])

    def _together(self, moves: Sequence[Move], points: Sequence[float]) -> Tensor:
        alone = trials(len(self.draft.tokens) + 2)[None, :, None]
        uniforms = alone.repeat(len(moves), 1, len(points), 1, 1)
        along = torch.tensor(points, dtype=torch.float64)
        for some, (fixed, moved) in zip(uniforms, moves, strict=True):
            for (purpose, slot), u in fixed.items():
                some[:, :, purpose, slot] = u
            some[:, :, moved[0], moved[1]] = along

        def ruled(u: Tensor) -> tuple[Tensor, Tensor]:
            verdict: Verdict = self.verifier(self.draft, self.q, Given(u))
            return verdict.path, verdict.token

        paths, tokens = torch.func.vmap(ruled)(uniforms.flatten(0, 2))
        return torch.cat([paths, tokens[:, None]], 1).view(*uniforms.shape[:3], -1)


@dataclass
class AskedDrafter:
    """A drafter after one text, asked as `Asked` is: a ruling is the number of a draft."""

    redraft: Callable[[Noise], Draft]
    at_once: bool = field(init=False, default=False)
    _numbers: dict[tuple[Any, ...], int] = field(init=False, default_factory=dict)

    def one(self, fixed: Fixed, later: int) -> Ruling:
        """The number of the draft with some uniforms fixed."""
        draft = self.redraft(Probe(fixed, later))
        parents = None if draft.parents is None else tuple(draft.parents.tolist())
        made = tuple(draft.tokens.tolist()), parents
        return (self._numbers.setdefault(made, len(self._numbers)),)

    def after(self, uniform: Uniform) -> list[Uniform]:
        """None: it is asked setting by setting."""
        return []

    def along(self, moves: Sequence[Move], points: Sequence[float]) -> Tensor:
        """[1, LATER, points, 1] the numbers while one uniform moves along `points`."""
        fixed, moved = moves[0]
        found = [[self.one({**fixed, moved: u}, later) for u in points] for later in range(LATER)]
        return torch.tensor([found])


@dataclass(frozen=True, slots=True)
class Probe(Noise):
    """Noise with some uniforms fixed; the others have the values of trial `later`."""

    fixed: Fixed
    later: int
    heard: list[Uniform] = field(default_factory=list)  # what was asked for

    def uniform(self, purpose: Purpose, n: int) -> Tensor:
        """[n] the fixed values; low, high, or scattered ones elsewhere."""
        self.heard.extend((purpose, i) for i in range(n))
        values = [self.fixed.get((purpose, i), other(self.later, purpose, i)) for i in range(n)]
        return torch.tensor(values, dtype=torch.float64)


@dataclass(frozen=True, slots=True)
class Given(Noise):
    """Noise whose uniforms are `values` [purposes, width]."""

    values: Tensor

    def uniform(self, purpose: Purpose, n: int) -> Tensor:
        """[n] of them."""
        if n > self.values.shape[-1]:
            raise ValueError(f"{n} uniforms: {self.values.shape[-1]} are there")
        return self.values[purpose, :n]


def other(later: int, purpose: Purpose, slot: int) -> float:
    """The value of a uniform that is not fixed, in one of `LATER` trials."""
    if later < 2:
        return (1e-9, 1.0 - 1e-9)[later]
    return (0.5 + 0.381966 * later * (1 + int(purpose) + 3 * slot)) % 1.0


@cache
def trials(width: int) -> Tensor:
    """[LATER, purposes, width] the values of all uniforms in each trial."""
    return torch.tensor(
        [[[other(later, p, i) for i in range(width)] for p in Purpose] for later in range(LATER)],
        dtype=torch.float64,
    )


@contextmanager
def quietly() -> Iterator[None]:
    """Without vmap's warnings of what is slow."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
