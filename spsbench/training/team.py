"""Processes that learn together: each does its part of a step, and all have the sum of gradients.

What torch.nn.parallel.DistributedDataParallel does for a module that is called once; heads are
called by their parts, so the gradients are added where a step ends.
"""

from collections.abc import Sequence
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from spsbench.engines.company import Company
from spsbench.hardware.ranks import ranks

Told = TypeVar("Told")


class Team:
    """A process alone: rank 0 of 1."""

    rank, size = 0, 1

    @property
    def leads(self) -> bool:
        """Whether this is the one that writes, and decides."""
        return self.rank == 0

    def told(self, value: Told) -> Told:
        """What rank 0 has."""
        return value

    def gathered(self, value: Told) -> list[Told]:
        """What each has, by rank."""
        return [value]

    def mine(self, values: Sequence[Told]) -> list[Told]:
        """Of what all have, those that are this one's to do."""
        return list(values[self.rank :: self.size])

    def all(self, mine: list[Told], count: int) -> list[Told]:
        """What came of `count` values by `mine`, in their order."""
        parts = self.gathered(mine)
        return [parts[i % self.size][i // self.size] for i in range(count)]

    def same(self, network: nn.Module) -> None:
        """Give all of them rank 0's weights."""

    def add(self, network: nn.Module) -> None:
        """Give all of them the sum of their gradients."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """Part; where all is well, none before all are done."""


class Ranks(Team):
    """One of several that torchrun started, gloo between CPUs and NCCL between GPUs.

    Raises:
        LostRankError: also by any of its calls, where another one has ended or is silent.
    """

    def __init__(self) -> None:
        here = ranks()
        self.rank, self.size = here.rank, here.size
        self._company = Company()

    def told(self, value: Told) -> Told:
        """As `Team.told`."""
        held = [value if self.leads else None]
        with self._company.together():
            dist.broadcast_object_list(held, 0)
        return held[0]  # type: ignore[return-value]

    def gathered(self, value: Told) -> list[Told]:
        """As `Team.gathered`."""
        held: list[Any] = [None] * self.size
        with self._company.together():
            dist.all_gather_object(held, value)
        return held

    def same(self, network: nn.Module) -> None:
        """As `Team.same`."""
        with self._company.together():
            for weight in network.state_dict().values():
                dist.broadcast(weight, 0)

    def add(self, network: nn.Module) -> None:
        """As `Team.add`; one that has done nothing adds zeros."""
        with self._company.together():
            for weight in network.parameters():
                if weight.requires_grad:
                    weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
                    dist.all_reduce(weight.grad)

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """As `Team` does."""
        if kind is None:
            self.gathered(None)
        self._company.part(in_order=kind is None)
        dist.destroy_process_group()
        if kind is None:
            self._company.check()


def team() -> Team:
    """Those of this process; it waits for all of them."""
    return Team() if ranks().size == 1 else Ranks()


def device_of(name: str) -> str:
    """The device of this rank: `cuda` is its own one."""
    here = ranks()
    if here.size == 1 or name not in ("cuda", "auto") or not torch.cuda.is_available():
        return name
    return f"cuda:{here.local}"
