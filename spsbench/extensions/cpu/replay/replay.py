"""Replays: passes by programs, each kind of them checked against own code before it is used.

A `PassBody` has the own code of passes, of a model or of a head's network, and says what a program
of them reads. It is recorded once, for passes of every size. The first pass of each kind is made by
the own code as well, and must agree bit for bit; else, and where an operator has no kernel, that
code stays in use.
"""

from collections.abc import Hashable, Mapping, Sequence
from threading import Lock
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from spsbench.engines.replay import RollOut
from spsbench.extensions.cpu.kernels.steps import ModuleTensors, UncoveredPassError
from spsbench.extensions.cpu.replay.program import Draws, Operands, PassProgram, Scratch, Size
from spsbench.extensions.cpu.replay.record import Recording


class PassRequest(Protocol):
    """The inputs of a pass and its cache; or of n passes of one row, a roll-out."""

    @property
    def size(self) -> Size:
        """Return the size of each pass."""

    @property
    def kind(self) -> Hashable:
        """Return the kind of the pass: the first of a kind is checked, for all."""

    def outputs(self, is_checked: bool) -> tuple[Any, ...]:
        """Return the names of the outputs to make, of a pass whose kind is checked or is not."""


Request = TypeVar("Request", bound=PassRequest)
AnyRequest = TypeVar("AnyRequest", bound=PassRequest, contravariant=True)


class PassBody(Protocol[AnyRequest]):
    """Own code of passes, and what a program of them reads.

    `sizes` are those of the recordings, of which the last one checks the others; `weights` are
    tensors that steps may read, numbered as in the recordings.
    """

    sizes: Sequence[Size]
    weights: Sequence[Tensor]

    def run(self, request: AnyRequest) -> Mapping[Any, Tensor]:
        """Make a pass by own code, which lengthens the cache; return its outputs by name."""

    def takes(self, request: AnyRequest) -> bool:
        """Return whether a pass may be recorded, and a program may make it."""

    def record(self, request: AnyRequest) -> list[Recording]:
        """Record passes of all `sizes` over caches of their own, with inputs like a request's.

        UncoveredPassError: they cannot be steps. Any other error means the same.
        """

    def operands(self, request: AnyRequest, passes: int) -> Operands | None:
        """Return what a program reads; None: it cannot read it, or `passes` have no room."""


class BodyReplay(Generic[Request]):
    """Makes the passes of one body, for all sessions over it; programs make one at a time.

    The lock is held while they do; bodies whose passes call each other's share it. `refused` says
    why passes, of some kind or of all, run own code; `counts` are passes by own code, and by
    programs.
    """

    def __init__(self, body: PassBody[Request], lock: Lock) -> None:
        self._body, self._lock = body, lock
        self.refused: str | None = None
        self.counts = [0, 0]
        self._scratch = Scratch()
        self._recordings: list[Recording] | None = []  # None: they cannot be programs
        self._programs: dict[tuple[Any, ...], PassProgram] = {}  # by the names of their outputs
        self._agrees: dict[Hashable, bool] = {}  # by the kind of a pass: program and own code
        self._weights = ModuleTensors([])

    def make_pass(self, request: Request) -> Mapping[Any, Tensor]:
        """Make a pass, which lengthens the cache; return its outputs by name.

        The first pass records the body. Own code makes a pass that comes while another is made, of
        a thread or of a hook, one that no program takes, and all if one cannot be steps, which
        `refused` then says.
        """
        if self._recordings is None or not self._lock.acquire(blocking=False):
            return self._run(request)
        try:
            if self._body.takes(request):
                outputs = self._make_pass(request, self._recordings or self._record(request))
                if outputs is not None:
                    return outputs
        except UncoveredPassError as error:
            self._recordings, self.refused = None, str(error)
        finally:
            self._lock.release()
        return self._run(request)

    def _run(self, request: Request) -> Mapping[Any, Tensor]:
        self.counts[0] += 1
        return self._body.run(request)

    def _make_pass(
        self, request: Request, recordings: list[Recording]
    ) -> Mapping[Any, Tensor] | None:
        """Return the outputs of a program, of own code for the first pass of a kind, or None.

        The first pass is made by both. If a bit differs, `refused` says so, and later passes of the
        kind return None, without an effect, as do all for which the body has no operands.
        """
        agrees = self._agrees.get(kind := request.kind)
        if agrees is False:
            return None
        names = request.outputs(bool(agrees))
        if names not in self._programs:
            self._programs[names] = PassProgram(self._body.sizes, recordings, names)
        program, weights = self._programs[names], self._weights.addresses()
        if weights is None or (operands := self._body.operands(request, 1)) is None:
            return None
        bound = program.at(request.size)
        shapes = zip(bound.shapes.items(), program.dtypes, strict=True)
        outputs = {name: torch.empty(x, dtype=dtype, device="cpu") for (name, x), dtype in shapes}
        program.run(bound, self._scratch, list(outputs.values()), operands, weights)
        if agrees:
            self.counts[1] += 1
            _extend_views(operands, 1)
            return outputs
        reference = self._run(request)  # last: its keys and values stay
        self._agrees[kind] = all(torch.equal(outputs[name], reference[name]) for name in names)
        if not self._agrees[kind]:
            self.refused = "a program of a pass differs from own code"
        return reference

    def make_roll_out(
        self, request: Request, rolled: RollOut, logits: Tensor, rows: Tensor | None = None
    ) -> Tensor | None:
        """Make n passes of one row, each after a draw from the logits of the one before.

        `request` has inputs of n rows; `rolled` the draws, whose ids are filled; the first token is
        drawn from `logits` [..., V']. Returns `rows` [n, X], or new memory [n, ...] for None,
        filled with the only output of each pass. None: nothing has changed, since no program of
        such a pass is checked, it cannot read the inputs, or another pass is being made.
        """
        program, agrees = self._programs.get(request.outputs(True)), self._agrees.get(request.kind)
        if program is None or not agrees or not self._lock.acquire(blocking=False):
            return None
        n = len(rolled.ids)
        try:
            operands = self._body.operands(request, n) if self._body.takes(request) else None
            if operands is None or (weights := self._weights.addresses()) is None:
                return None
            bound = program.at(request.size)
            if rows is None:
                (shape,) = bound.shapes.values()
                rows = torch.empty((n, *shape), dtype=program.dtypes[0], device="cpu")
            draws = Draws.of(rolled, logits, rows)
            program.run(bound, self._scratch, [rows], operands, weights, draws)
        finally:
            self._lock.release()
        self.counts[1] += n
        _extend_views(operands, n)
        return rows

    def _record(self, request: Request) -> list[Recording]:
        """Record passes of the body's sizes, keep and return them; UncoveredPassError: it fails."""
        try:
            recordings = self._body.record(request)
            self._weights = ModuleTensors([*self._body.weights, *recordings[0].constants])
        except UncoveredPassError:
            raise
        except Exception as error:  # foreign code may do anything
            raise UncoveredPassError(
                f"a pass cannot be recorded ({type(error).__name__})"
            ) from error
        self._recordings = recordings
        return recordings


def _extend_views(operands: Operands, passes: int) -> None:
    for layer in operands.cache_layers:
        layer.length = operands.end + passes - 1
